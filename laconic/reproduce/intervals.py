"""Student's t: the interval of a mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import atan, cos, inf, isinf, pi, sin, sqrt
from statistics import stdev

LEVEL = 0.95


def probability(t: float, freedom: int) -> float:
    """Return the probability that a variable of Student's t distribution is between -t and t.

    >>> round(probability(4.302653, 2), 6), round(probability(2.776445, 4), 6), round(probability(3.182446, 3), 6)
    (0.95, 0.95, 0.95)
    """
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = (cos(angle), 0.0) if odd else (1.0, 0.0)
    for step in range(1 + odd, freedom, 2):
        total += term
        term *= cos(angle) ** 2 * step / (step + 1)
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total


def quantile(level: float, freedom: int) -> float:
    """Return the t with `probability(t, freedom) == level`.

    >>> round(quantile(0.95, 1), 3), round(quantile(0.95, 2), 3), round(quantile(0.99, 9), 3)
    (12.706, 4.303, 3.25)
    """
    low, high = 0.0, 1.0
    while probability(high, freedom) < level:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle, freedom) < level else (low, middle)
    return high


def half_width(values: Sequence[float], level: float = LEVEL) -> float:
    """Return half of the width of the mean's interval. Two values or more are needed."""
    if any(map(isinf, values)):
        return inf
    return quantile(level, len(values) - 1) * stdev(values) / sqrt(len(values))
