"""A set of positions as the gaps between them, within a fraction of a per cent of log2 C(d, k) bits, or far below it.

Two forms:

- `SplitGaps` (Golomb, 1966; Rice, 1979). Each gap is split at bit `width`: the low bits of random gaps are close to random
  and are sent as they are; the high parts are written in unary (so many zeros, then a one) into a second stream of bits.
  `coding="rice"` sends that stream as it is; `coding="ans"` codes its bytes at their information.
- `ClassedGaps`. Each gap has a class, two to an octave, which is entropy-coded, and the bits that tell it from others
  of its class. It follows any distribution: real updates are clustered, and take about half the bits of random ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laconic.compression.bit_packing import Bytes, Widths, half_words_of, pack, words_of
from laconic.core.errors import PacketError

Positions: TypeAlias = NDArray[np.int64]
Coding = Literal["ans", "rice"]

RUN = 128
"""Gaps that share a width, so that Rice codes follow the density of clustered positions."""
WIDTH_BITS = 5
CLASSES = 64
_FULLEST = {"ans": 0.7, "rice": 0.96}
"""The most that 2^width may be of a mean gap: less where the unary part is entropy-coded, the best where it is not."""
_MOST_ENTRIES = 2**32
"""So many bits, shifted by the largest width, are below 2^64; no packet can carry so large a model anyhow."""
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

    widths: Widths
    low: bytes
    unary: Bytes

    @classmethod
    def of(cls, gaps: NDArray[np.int64], size: int, coding: Coding) -> SplitGaps:
        """Only Rice codes take several widths: where the unary part is entropy-coded, classes do better."""
        widths = own_widths(gaps, size) if coding == "rice" else usual_widths(len(gaps), size, coding)
        each = np.repeat(widths, RUN)[: len(gaps)]
        ends = np.cumsum(gaps >> each) + np.arange(len(gaps))
        unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
        unary[ends] = 1
        low = pack(gaps & ((1 << each.astype(np.int64)) - 1), each)
        return cls(widths, low, np.packbits(unary, bitorder="little"))


def usual_widths(count: int, size: int, coding: Coding) -> Widths:
    """The common width of all runs: both sides compute it from what they know."""
    return np.full(-(-count // RUN), _width(size / max(1, count), coding), dtype=np.uint8)


def own_widths(gaps: NDArray[np.int64], size: int) -> Widths:
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


def low_size(widths: Widths, count: int) -> int:
    """Bytes of the low bits of `count` gaps; the last run may be short."""
    unused = int(widths[-1]) * (-count % RUN) if count else 0
    return (int(widths.sum(dtype=np.int64)) * RUN - unused + 7) // 8


def unary_limit(count: int, size: int) -> int:
    """The most bytes of a unary stream that is any use: a bit for every entry, and one for every position."""
    return (count + size + 7) // 8


def join_split(widths: Widths, low: memoryview, unary: Bytes, count: int, size: int) -> Positions:
    """The positions back, checked."""
    from laconic.compression import kernels

    if size > _MOST_ENTRIES:
        raise PacketError("positions", f"in a vector of {size}, where {_MOST_ENTRIES} is the most")
    positions = np.empty(count, dtype=np.int64)
    if not kernels.join_split(words_of(unary), half_words_of(low), widths, RUN, size, positions):
        raise PacketError("positions", f"not {count} of {size}")
    return positions


@dataclass(frozen=True)
class ClassedGaps:
    """A class for each gap, and the bits within the class."""

    classes: Bytes
    low: bytes

    @classmethod
    def of(cls, gaps: NDArray[np.int64]) -> ClassedGaps:
        """By where each gap lies among the starts of the classes."""
        classes = (np.searchsorted(_CLASS_STARTS, gaps, side="right") - 1).astype(np.uint8)
        return cls(classes, pack(gaps - _CLASS_STARTS[classes], classes // 2))


def join_classes(classes: NDArray[np.uint16], low: memoryview, size: int) -> Positions:
    """The positions back, checked."""
    from laconic.compression import kernels

    positions = np.empty(len(classes), dtype=np.int64)
    bits = kernels.join_classes(classes, half_words_of(low), 8 * len(low), size, positions)
    if bits < 0 or len(low) != (bits + 7) // 8:
        raise PacketError("positions", f"not {len(classes)} of {size}")
    return positions
