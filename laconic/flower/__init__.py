"""Federations of real machines: Flower transports the messages, Laconic implements the algorithms.

    # server_app.py
    app = server_app("fed_cams", "mlp:64", "digits", clients=3, rounds=20, out="run")

    # client_app.py
    app = client_app("mlp:64", "digits")

Needs the extra `flower`.
"""

from laconic.flower.client import client_app
from laconic.flower.server import server_app

__all__ = ["client_app", "server_app"]
