"""The command line."""

from laconic.cli.entry_point import main

__all__ = ["main"]
