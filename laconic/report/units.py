"""Bytes and durations as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

UNITS = {"%": 0.01, "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "s": 1.0}
"""Units in which a mean and its deviation are written together."""

TIES_UP = 1 + 1e-12
"""Factor that makes Python round a tie up, as JavaScript does, and not to the even digit."""


def size(count: float) -> str:
    """Format a number of bytes. Ties are rounded up, as in the report's page.

    >>> size(999), size(1_234_567), size(45_600_000_000)
    ('999 B', '1.23 MB', '45.6 GB')
    >>> size(310_500)
    '311 kB'
    """
    count *= TIES_UP
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


def with_deviation(mean: float, deviation: float, text: Callable[[float], str]) -> str:
    """Format a mean and its standard deviation in one unit. A deviation that is zero at this precision is left out.

    >>> with_deviation(39_800, 5_530, size), with_deviation(60_000, 400, size), with_deviation(4.03, 3e-5, duration)
    ('39.8 ± 5.5 kB', '60.0 ± 0.4 kB', '4.03 s')
    >>> with_deviation(0.9564, 0.0058, lambda share: f"{100 * share:.2f} %")
    '95.64 ± 0.58 %'
    """
    _, _, unit = text(mean).partition(" ")
    if unit not in UNITS or mean <= 0:
        return f"{text(mean)} ± {text(deviation)}" if deviation else text(mean)
    scaled = mean / UNITS[unit]
    digits = 2 - math.floor(math.log10(scaled))  # three significant digits
    decimals = {"B": 0, "%": 2}.get(unit, max(0, digits))
    spread = f"{deviation / UNITS[unit]:.{decimals}f}"
    return f"{scaled:.{decimals}f} ± {spread} {unit}" if float(spread) else text(mean)
