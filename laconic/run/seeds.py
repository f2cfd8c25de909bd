"""Numbers of runs that differ only in their seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean


def over_seeds(
    values: Sequence[float | None], of: Callable[[list[float]], float] = fmean, least: int = 1
) -> float | None:
    """The mean, or another function, of the values of all seeds; None if one is missing or there are fewer than `least`.

    >>> over_seeds([1.0, 2.0]), over_seeds([1.0, None])
    (1.5, None)
    """
    known = [value for value in values if value is not None]
    return of(known) if len(known) == len(values) >= least else None
