"""A set of positions as the gaps between them, within a fraction of a per cent of log2 C(d, k) bits, or far below it.

Two forms, both a few passes of vector arithmetic:

- `SplitGaps` (Golomb, 1966; Rice, 1979). Each gap is split at bit `width`: the low bits of random gaps are close to random
  and are packed as they are; the high parts are written in unary (so many zeros, then a one) into a second stream of bits.
  `coding="rice"` sends that stream as it is; `coding="range"` codes its bytes at their information.
- `ClassedGaps`. Each gap has a class, two to an octave, which is entropy-coded, and the bits that tell it from others
  of its class. It follows any distribution: real updates are clustered, and take about half the bits of random ones.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.errors import PacketError
from laconic.link.coding import Bytes, pack, packed_size, unpack

Positions: TypeAlias = NDArray[np.int64]
Coding = Literal["range", "rice"]

RUN = 128
"""Gaps that share a width, so that Rice codes follow the density of clustered positions."""
WIDTH_BITS = 5
CLASSES = 64
_FULLEST = {"range": 0.7, "rice": 0.96}
"""The most that 2^width may be of a mean gap: less where the unary part is entropy-coded, the best where it is not."""
_UNUSUAL = 2
"""How much larger or smaller the mean of a run must be to get a width of its own; random positions keep a common one."""

_CLASS_WIDTHS = np.arange(CLASSES) // 2
_CLASS_STARTS = ((2 + np.arange(CLASSES) % 2) << _CLASS_WIDTHS) - 2
"""The smallest gap of each class: 0, 1, 2, 4, 6, 10, 14, 22, ..."""


def gaps_of(positions: Positions) -> NDArray[np.int64]:
    """How many entries are left out before each position."""
    return np.diff(positions, prepend=-1) - 1


@dataclass(frozen=True)
class SplitGaps:
    """Low bits and unary high parts, split at a width per run of gaps."""

    widths: NDArray[np.int64]
    low: bytes
    """The low bits, of the runs of smaller width first."""
    unary: Bytes

    @classmethod
    def of(cls, gaps: NDArray[np.int64], size: int, coding: Coding) -> SplitGaps:
        """Only Rice codes take several widths: where the unary part is entropy-coded, classes do better."""
        widths = own_widths(gaps, size) if coding == "rice" else usual_widths(len(gaps), size, coding)
        each = np.repeat(widths, RUN)[: len(gaps)]
        ends = np.cumsum(gaps >> each) + np.arange(len(gaps))
        unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
        unary[ends] = 1
        low = b"".join(pack(gaps[each == width] & ((1 << width) - 1), width) for width in np.unique(widths).tolist())
        return cls(widths, low, np.packbits(unary))


def usual_widths(count: int, size: int, coding: Coding) -> NDArray[np.int64]:
    """The common width of all runs: both sides compute it from what they know."""
    return np.full(-(-count // RUN), _width(size / max(1, count), coding), dtype=np.int64)


def own_widths(gaps: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """The width of every run of Rice codes: the usual one, but where the run's mean gap is another."""
    widths = usual_widths(len(gaps), size, "rice")
    whole = gaps[: len(gaps) // RUN * RUN].reshape(-1, RUN)  # a last, shorter run keeps the usual width
    means, usual = whole.mean(axis=1) + 1, size / max(1, len(gaps))
    for run in np.flatnonzero((means * _UNUSUAL < usual) | (means > usual * _UNUSUAL)):
        widths[run] = _width(float(means[run]), "rice")
    return widths


def _width(mean_gap: float, coding: Coding) -> int:
    """floor(log2), without a logarithm that might be rounded."""
    return max(1, int(_FULLEST[coding] * mean_gap)).bit_length() - 1


def low_size(widths: NDArray[np.int64], count: int) -> int:
    """Bytes of the low bits of `count` gaps."""
    return sum(packed_size(_gaps_at(widths, width, count), width) for width in np.unique(widths).tolist())


def _gaps_at(widths: NDArray[np.int64], width: int, count: int) -> int:
    """How many gaps are split at this width; the last run may be short."""
    runs = int(np.count_nonzero(widths == width))
    return runs * RUN - ((-count) % RUN if widths[-1] == width else 0)


def unary_limit(count: int, size: int) -> int:
    """The most bytes of a unary stream that is any use: a bit for every entry, and one for every position."""
    return (count + size + 7) // 8


def join_split(widths: NDArray[np.int64], low: memoryview, unary: Bytes, count: int, size: int) -> Positions:
    """The positions back, checked."""
    bits = np.unpackbits(unary).view(bool)
    if np.count_nonzero(bits) != count:
        raise PacketError("positions", f"not as many as the {count} announced")
    ends = np.flatnonzero(bits)
    if not count:
        return ends
    if (widths != widths[0]).any():
        steps = np.diff(ends, prepend=-1) - 1
        steps <<= np.repeat(widths, RUN)[:count]
        steps += _low_bits(widths, low, count)
        return _positions(steps, size)
    # With one width no gap is needed by itself. The high parts add up to ends - index, and each gap takes one position
    # more: position = (ends << width) + the sum so far of (low + 1 - 2^width), and 2^width - 1 once.
    width = int(widths[0])
    steps = unpack(low, count, width).astype(np.int64)
    steps += 1 - (1 << width)
    steps[0] += (1 << width) - 1
    ends <<= width
    ends += _running_sum(steps)
    return _checked(ends, size)


def _low_bits(widths: NDArray[np.int64], low: memoryview, count: int) -> NDArray[np.int64]:
    numbers = np.zeros((len(widths), RUN), dtype=np.int64)
    at = 0
    for width in np.unique(widths).tolist():
        those = np.flatnonzero(widths == width)
        part = _gaps_at(widths, width, count)
        found = np.zeros((len(those), RUN), dtype=np.int64)
        found.reshape(-1)[:part] = unpack(low[at:], part, width)
        numbers[those] = found
        at += packed_size(part, width)
    return numbers.reshape(-1)[:count]


@dataclass(frozen=True)
class ClassedGaps:
    """A class for each gap, and the bits within the class."""

    classes: Bytes
    low: bytes
    """The bits within, of the lower classes first."""

    @classmethod
    def of(cls, gaps: NDArray[np.int64]) -> ClassedGaps:
        """By where each gap lies among the starts of the classes."""
        classes = (np.searchsorted(_CLASS_STARTS, gaps, side="right") - 1).astype(np.uint8)
        order = np.argsort(classes, kind="stable")
        within = (gaps - _CLASS_STARTS[classes])[order]
        edges = np.cumsum([0, *np.bincount(classes, minlength=CLASSES).reshape(-1, 2).sum(1)]).tolist()
        parts = (pack(within[edges[width] : edges[width + 1]], width) for width in range(CLASSES // 2))
        return cls(classes, b"".join(parts))


def join_classes(classes: Bytes, low: memoryview, size: int) -> Positions:
    """The positions back, checked."""
    counts = np.bincount(classes, minlength=CLASSES)
    edges = np.cumsum([0, *counts.reshape(-1, 2).sum(1)]).tolist()
    if len(low) != sum(packed_size(end - start, width) for width, (start, end) in enumerate(itertools.pairwise(edges))):
        raise PacketError("positions", "the bits of the gaps do not fit their classes")
    sorted_gaps = np.repeat(_CLASS_STARTS, counts)
    at = 0
    for width, (start, end) in enumerate(itertools.pairwise(edges)):
        if width and end > start:
            sorted_gaps[start:end] += unpack(low[at:], end - start, width)
            at += packed_size(end - start, width)
    gaps = np.empty_like(sorted_gaps)
    gaps[np.argsort(classes, kind="stable")] = sorted_gaps
    return _positions(gaps, size)


def _positions(gaps: NDArray[np.int64], size: int) -> Positions:
    gaps += 1
    ends = _running_sum(gaps)
    ends -= 1
    return _checked(ends, size)


def _checked(positions: Positions, size: int) -> Positions:
    if len(positions) and not 0 <= positions[-1] < size:
        raise PacketError("positions", f"position {positions[-1]} of {size}")
    return positions


def _running_sum(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    # Whole numbers: exact, and faster than NumPy's.
    total: NDArray[np.int64] = torch.cumsum(torch.from_numpy(numbers), 0).numpy()
    return total
