"""Coding of sorted positions as the gaps between them.

Random positions take less than 1 % more than log2 C(d, k) bits, clustered ones far less. There are two forms:

- `split` (Golomb, 1966; Rice, 1979) splits each gap at bit `width`. The low bits are nearly random and stored directly.
  The high part is written in unary, as zeros followed by a one, into a second bit stream, which `coding="rice"` stores
  directly and `coding="ans"` entropy-codes.
- `classify` assigns each gap to a class, two per octave: they begin at 0, 1, 2, 4, 6, 10, 14, 22, … The class is
  entropy-coded; the bits within the class are stored directly. This adapts to any distribution: positions of real updates
  are clustered and take about half the bits of random ones.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laconic.compression.bit_packing import half_words_of, pack, words_of
from laconic.compression.words import Bytes, Widths
from laconic.core.errors import PacketError

Positions: TypeAlias = NDArray[np.int64]
Coding = Literal["ans", "rice"]

RUN = 128
"""Gaps that share a width, so that Rice codes adapt to clustered positions."""
WIDTH_BITS = 5
CLASSES = 64
_FULLEST = {"ans": 0.7, "rice": 0.96}
"""The upper bound of 2^width relative to the mean gap; smaller if the unary part is entropy-coded."""
_MOST_ENTRIES = 2**32
"""Keeps shifted positions below 2^64. No packet can contain a larger model."""
_OWN_WIDTH_FACTOR = 2
"""A run gets its own width if its mean gap is larger or smaller than the overall mean by this factor."""


def gaps_of(positions: Positions) -> NDArray[np.int64]:
    """The number of entries between each position and the one before it."""
    gaps = positions.copy()
    gaps[1:] -= positions[:-1]
    gaps[1:] -= 1
    return gaps


def split(gaps: NDArray[np.int64], size: int, coding: Coding) -> tuple[Widths, bytes, Bytes]:
    """The width of each run, the low bits of the gaps, and their high parts in unary.

    Only Rice codes vary the width: with entropy coding classes are better for varying gaps.
    """
    from laconic.compression import kernels  # late: Numba is slow to load

    widths = own_widths(gaps, size) if coding == "rice" else common_widths(len(gaps), size, coding)
    most_bits = (int(gaps.sum()) >> int(widths.min(initial=31))) + len(gaps)
    low, unary = np.empty(len(gaps), dtype=np.uint32), np.zeros(most_bits // 64 + 1, dtype=np.uint64)
    bits = int(kernels.split_gaps(gaps, widths, RUN, low, unary))
    packed = pack(low, np.repeat(widths, RUN)[: len(gaps)])
    return widths, packed, unary.astype("<u8", copy=False).view(np.uint8)[: -(-bits // 8)]


def common_widths(count: int, size: int, coding: Coding) -> Widths:
    """The default width of all runs, which both sides can compute."""
    return np.full(-(-count // RUN), _width(size / max(1, count), coding), dtype=np.uint8)


def own_widths(gaps: NDArray[np.int64], size: int) -> Widths:
    """The width of each run of Rice codes: the common one, unless the run's mean gap is very different."""
    widths = common_widths(len(gaps), size, "rice")
    runs = gaps[: len(gaps) // RUN * RUN].reshape(-1, RUN)  # a shorter last run keeps the common width
    means, overall = runs.mean(axis=1) + 1, size / max(1, len(gaps))
    for run in np.flatnonzero((means * _OWN_WIDTH_FACTOR < overall) | (means > overall * _OWN_WIDTH_FACTOR)):
        widths[run] = _width(float(means[run]), "rice")
    return widths


def _width(mean_gap: float, coding: Coding) -> int:
    """floor(log2), in integer arithmetic to avoid rounding."""
    return max(1, int(_FULLEST[coding] * mean_gap)).bit_length() - 1


def low_size(widths: Widths, count: int) -> int:
    """The size in bytes of the low bits of `count` gaps."""
    # The last run may be short.
    unused = int(widths[-1]) * (-count % RUN) if count else 0
    return (int(widths.sum(dtype=np.int64)) * RUN - unused + 7) // 8


def unary_limit(count: int, size: int) -> int:
    """The largest size in bytes of a valid unary stream: one bit per entry and one per position."""
    return (count + size + 7) // 8


def join_split(widths: Widths, low: memoryview, unary: Bytes, count: int, size: int) -> Positions:
    """Decode split gaps to positions; `PacketError` if they are invalid."""
    from laconic.compression import kernels  # late: Numba is slow to load

    if size > _MOST_ENTRIES:
        raise PacketError("positions", f"in a vector of {size}, where {_MOST_ENTRIES} is the most")
    positions = np.empty(count, dtype=np.int64)
    if not kernels.join_split(words_of(unary), half_words_of(low), widths, RUN, size, positions):
        raise PacketError("positions", f"not {count} of {size}")
    return positions


def classify(gaps: NDArray[np.int64]) -> tuple[Bytes, bytes]:
    """The class of each gap, and its bits within the class."""
    from laconic.compression import kernels  # late: Numba is slow to load

    classes, widths = np.empty(len(gaps), dtype=np.uint8), np.empty(len(gaps), dtype=np.uint8)
    within = np.empty(len(gaps), dtype=np.uint32)
    kernels.classify_gaps(gaps, classes, widths, within)
    return classes, pack(within, widths)


def join_classes(classes: NDArray[np.uint16], low: memoryview, size: int) -> Positions:
    """Decode classed gaps to positions; `PacketError` if they are invalid."""
    from laconic.compression import kernels  # late: Numba is slow to load

    positions = np.empty(len(classes), dtype=np.int64)
    bits = kernels.join_classes(classes, half_words_of(low), 8 * len(low), size, positions)
    if bits < 0 or len(low) != (bits + 7) // 8:
        raise PacketError("positions", f"not {len(classes)} of {size}")
    return positions
