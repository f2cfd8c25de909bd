"""Exact top-k selection through a sampled threshold.

A sorted sample tells about where the k-th largest magnitude lies. One pass in blocks that fit the cache keeps what is
above a slightly lower threshold; the exact choice is then made among those few. A poor sample costs time, never the result.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from laconic.compression.entropy import blocks
from laconic.compression.gap_coding import Positions
from laconic.core.errors import PacketError

_SAMPLE = 1 << 17
_SMALL = 1 << 13
"""Below this size a selection without sampling is as fast."""


def largest(values: NDArray[np.floating], count: int) -> Positions:
    """The sorted positions of the `count` largest magnitudes; among equals the lower position wins.

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
    """The largest magnitude; NaN and infinity, which no packet may carry, are refused."""
    highest = 0.0
    for start, end in blocks(len(values)):
        block = float(np.abs(values[start:end]).max())
        if not math.isfinite(block):
            raise PacketError("not finite", "the vector to send has NaN or infinity")
        highest = max(highest, block)
    return highest


def _likely_threshold(values: NDArray[np.floating], count: int) -> np.floating:
    """A magnitude that the wanted ones probably exceed; four standard deviations of the sample's rank on the safe side."""
    if len(values) <= _SMALL:
        return values.dtype.type(0)
    # Runs of 16 neighbors cost as many cache misses as single entries would, so they are sampled together.
    runs = min(_SAMPLE, len(values) // 8) // 16
    starts = np.arange(runs) * (len(values) // runs)
    sample = np.abs(values[(starts[:, None] + np.arange(16)).reshape(-1)])
    expected = count / len(values) * len(sample)
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank >= len(sample):
        return values.dtype.type(0)
    threshold: np.floating = np.partition(sample, len(sample) - rank)[len(sample) - rank]
    return threshold


def _at_least(
    values: NDArray[np.floating], threshold: np.floating, room: int
) -> tuple[Positions, NDArray[np.floating]]:
    """Positions, sorted, and magnitudes of all entries whose magnitude reaches the threshold."""
    from laconic.compression import kernels

    positions, magnitudes = np.empty(room, dtype=np.int64), np.empty(room, dtype=values.dtype)
    found = kernels.find_reaching(values, threshold, positions, magnitudes)
    if found > room:
        return _at_least(values, threshold, found)
    peak(magnitudes[:found])
    return positions[:found], magnitudes[:found]


def _exactly(magnitudes: NDArray[np.floating], count: int) -> NDArray[np.bool_]:
    """Which entries are the `count` largest, the first ones among equals."""
    last = np.partition(magnitudes, len(magnitudes) - count)[len(magnitudes) - count]
    kept: NDArray[np.bool_] = magnitudes > last
    ties = np.flatnonzero(magnitudes == last)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept
