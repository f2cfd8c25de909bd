"""Federations of real machines: Flower transports the messages, Laconic implements the algorithms.

    # server_app.py
    app = server_app("fed_cams", "mlp:64", "digits", clients=3, rounds=20, out="run")

    # client_app.py
    app = client_app("mlp:64", "digits")

Needs the extra `flower`. Both names are imported on first use, so that SuperLink and SuperNodes do not import torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
