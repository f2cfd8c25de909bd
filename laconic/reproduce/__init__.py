"""The papers' tables and figures, run again: their numbers beside ours, and which of their claims hold."""
