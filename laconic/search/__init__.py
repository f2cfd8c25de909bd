"""Hyperparameter search: sweeps over given settings, and recommendations by successive halving."""
