"""Algorithms: four parts each (method, uplink, optimizer, downlink), and the recipes that combine them."""
