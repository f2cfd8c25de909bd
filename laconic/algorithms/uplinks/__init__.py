"""Uplinks: how a client encodes its update, and what compression error it keeps for later."""
