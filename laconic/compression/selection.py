"""Exact top-k selection through a sampled threshold.

A sample estimates the k-th largest magnitude. One pass collects the entries above a slightly lower threshold, and the exact
selection is made among these. A poor sample costs time but does not change the result.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from laconic.compression.entropy import blocks
from laconic.compression.gap_coding import Positions
from laconic.core.errors import PacketError

_SAMPLE = 1 << 17
_ABOVE = 1 << 8
"""The number of entries of the sample that should be above the threshold; more would save few candidates."""
_SMALL = 1 << 13
"""Up to this size sampling saves no time."""


def largest(values: NDArray[np.floating], count: int) -> Positions:
    """The sorted positions of the `count` largest magnitudes. Ties go to the lower position.

    >>> largest(np.array([1.0, -3.0, 2.0, 3.0, -2.0]), 3)
    array([1, 2, 3])
    """
    if count >= len(values):
        peak(values)
        return np.arange(len(values))
    threshold = _likely_threshold(values, count)
    candidates, magnitudes = _at_least(values, threshold, 2 * count + _SMALL)
    if len(candidates) < count:
        candidates, magnitudes = _at_least(values, values.dtype.type(0), len(values))
    return candidates[_exactly(magnitudes, count)]


def peak(values: NDArray[np.floating]) -> float:
    """The largest magnitude; `PacketError` for NaN and infinity, which packets cannot contain."""
    highest = 0.0
    for start, end in blocks(len(values)):
        low, high = float(values[start:end].min()), float(values[start:end].max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise PacketError("not finite", "the vector to send has NaN or infinity")
        highest = max(highest, -low, high)
    return highest


def _likely_threshold(values: NDArray[np.floating], count: int) -> np.floating:
    """A lower bound of the k-th largest magnitude, which holds with a margin of four standard deviations."""
    if len(values) <= _SMALL:
        return values.dtype.type(0)
    # Sampling 16 adjacent entries costs as many cache misses as sampling one.
    runs = min(_SAMPLE, len(values) // 8, max(_SMALL, _ABOVE * len(values) // count)) // 16
    apart = len(values) // runs
    sample = np.abs(values[: runs * apart].reshape(runs, apart)[:, :16]).reshape(-1)
    expected = count / len(values) * len(sample)
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank >= len(sample):
        return values.dtype.type(0)
    threshold: np.floating = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    return threshold


def _at_least(
    values: NDArray[np.floating], threshold: np.floating, room: int
) -> tuple[Positions, NDArray[np.floating]]:
    """The sorted positions and the magnitudes of all entries with magnitude >= threshold."""
    from laconic.compression import kernels  # late: Numba is slow to load

    positions, magnitudes = np.empty(room, dtype=np.int64), np.empty(room, dtype=values.dtype)
    count = kernels.find_reaching(values, threshold, positions, magnitudes)
    if count > room:
        return _at_least(values, threshold, count)
    peak(magnitudes[:count])
    return positions[:count], magnitudes[:count]


def _exactly(magnitudes: NDArray[np.floating], count: int) -> NDArray[np.bool_]:
    """A mask of the `count` largest entries. Ties go to the first ones."""
    last = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    kept: NDArray[np.bool_] = magnitudes > last
    ties = np.flatnonzero(magnitudes == last)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept
