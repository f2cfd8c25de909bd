"""Reproductions of the papers' tables and figures: their numbers beside ours, and which of their claims hold."""
