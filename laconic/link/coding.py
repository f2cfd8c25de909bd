"""Bits and positions: numbers of fixed width, and a set of positions as gaps (Golomb, 1966; Rice, 1979).

A sorted set of k positions below d is its k gaps. Each gap is split at bit `width`: the low bits are close to random and
are packed as they are; the high parts are written in unary (so many zeros, then a one) into a second stream of bits.
`coding="rice"` sends that stream as it is; `coding="range"` codes its bytes at their information, which leaves the whole
within a fraction of a per cent of the bound log2 C(d, k). Both are a few passes of vector arithmetic.
"""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.errors import PacketError

Positions: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Coding = Literal["range", "rice"]

BITMAP_ABOVE = 1 / 8
"""The share of positions from which a bit per coordinate is simpler than gaps, and no larger once it is entropy-coded."""

_FULLEST = {"range": 0.7, "rice": 0.96}
"""The most that 2^width k/d may be: with unary parts entropy-coded, with unary parts as they are (then the best)."""


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits.

    >>> packed_size(9, 3), packed_size(8, 13)
    (6, 13)
    """
    return count * (width // 8) + -(-count // 8) * (width % 8)


def pack(numbers: NDArray[Any], width: int) -> bytes:
    """Whole numbers of `width` bits: whole bytes plane by plane, then eight remainders in as many bytes as bits."""
    planes = [(numbers >> (8 * plane)).astype(np.uint8).tobytes() for plane in range(width // 8)]
    rest = width % 8
    if rest:
        padded = np.zeros((-(-len(numbers) // 8), 8), dtype=np.uint64)
        padded.reshape(-1)[: len(numbers)] = (numbers >> (width - rest)) & ((1 << rest) - 1)
        words = np.bitwise_or.reduce(padded << _shifts(rest), axis=1)
        planes.append(words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :rest].tobytes())
    return b"".join(planes)


def unpack(data: memoryview, count: int, width: int) -> NDArray[np.int64]:
    """What `pack` was given; `data` has `packed_size(count, width)` bytes."""
    whole, rest = divmod(width, 8)
    numbers = np.zeros(count, dtype=np.int64)
    if rest:
        groups = -(-count // 8)
        padded = np.zeros((groups, 8), dtype=np.uint8)
        padded[:, :rest] = np.frombuffer(data, np.uint8, groups * rest, whole * count).reshape(groups, rest)
        lanes = (padded.view("<u8") >> _shifts(rest)) & np.uint64((1 << rest) - 1)
        numbers = lanes.view(np.int64).reshape(-1)[:count]
    for plane in reversed(range(whole)):
        numbers <<= 8
        numbers |= np.frombuffer(data, np.uint8, count, plane * count)
    return numbers


def _shifts(width: int) -> NDArray[np.uint64]:
    return np.arange(8, dtype=np.uint64) * np.uint64(width)


def gap_width(count: int, size: int, coding: Coding) -> int:
    """At which bit gaps are split: both sides compute it from what they know."""
    fullest = _FULLEST[coding] * size
    return max(0, math.floor(math.log2(fullest / count))) if 0 < count < fullest else 0


def split_gaps(positions: Positions, width: int) -> tuple[bytes, Bytes]:
    """Sorted positions as packed low bits of their gaps, and the unary stream of the high parts."""
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gaps >> width) + np.arange(len(gaps))
    unary = np.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=np.uint8)
    unary[ends] = 1
    return pack(gaps & ((1 << width) - 1), width), np.packbits(unary)


def unary_limit(count: int, size: int, width: int) -> int:
    """The most bytes that an honest unary stream can have."""
    return (count + (size >> width) + 7) // 8


def join_gaps(low: memoryview, unary: Bytes, count: int, size: int, width: int) -> Positions:
    """The positions back, checked: exactly `count` of them, all below `size`."""
    ends = np.flatnonzero(np.unpackbits(unary).view(bool))
    if len(ends) != count:
        raise PacketError("positions", f"{len(ends)} of them where {count} are announced")
    # The high parts add up to ends - index and each gap takes one position more. Both run along with the low bits:
    # position = (ends << width) + sum over the gaps so far of (low + 1 - 2^width), and 2^width - 1 once.
    steps = unpack(low, count, width)
    steps += 1 - (1 << width)
    if count:
        steps[0] += (1 << width) - 1
    ends <<= width
    ends += torch.cumsum(torch.from_numpy(steps), 0).numpy()  # whole numbers: exact, and faster than NumPy's
    if count and ends[-1] >= size:
        raise PacketError("positions", f"position {ends[-1]} of {size}")
    return ends


def position_bound(size: int, count: int) -> float:
    """log2 C(d, k): no code for arbitrary sets of positions can do with fewer bits.

    >>> round(position_bound(10, 3), 6) == round(math.log2(120), 6)
    True
    """
    logarithm = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return logarithm / math.log(2)
