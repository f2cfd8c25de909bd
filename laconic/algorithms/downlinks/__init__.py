"""Downlinks: how the server encodes the model for a client."""
