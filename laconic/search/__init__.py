"""Trying settings: sweeps over what a person names, and advice from what is known to matter."""
