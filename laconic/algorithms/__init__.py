"""An algorithm is four parts: method, uplink, optimizer, downlink; recipes name them."""
