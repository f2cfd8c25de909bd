"""Engines run clients: inline or on Ray, with simulated faults, attacks and networks."""
