"""Bytes and durations as people read them."""

from __future__ import annotations


def size(count: float) -> str:
    """Format a number of bytes.

    >>> size(999), size(1_234_567), size(45_600_000_000)
    ('999 B', '1.23 MB', '45.6 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    raise AssertionError


def duration(seconds: float | None) -> str:
    """Format seconds; empty for None.

    >>> duration(0.25), duration(75), duration(7384), duration(200_000)
    ('0.25 s', '1 min 15 s', '2 h 3 min', '2 d 7 h')
    """
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min {seconds % 60 // 1:.0f} s"
    if seconds < 86400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
    return f"{seconds // 86400:.0f} d {seconds % 86400 // 3600:.0f} h"
