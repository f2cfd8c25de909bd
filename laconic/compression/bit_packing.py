"""Numbers of few bits one after the other, and the bound that codes of positions are measured by."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
"""Bits, the lowest first; the last word is spare, so that a number can be read from two words wherever it lies."""
HalfWords: TypeAlias = NDArray[np.uint32]
"""The same in words of 32 bits: two of them hold any number of up to 32 bits."""
Widths: TypeAlias = NDArray[np.uint8]


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits.

    >>> packed_size(9, 3), packed_size(8, 13)
    (4, 13)
    """
    return -(-count * width // 8)


def pack(numbers: NDArray[Any], widths: int | Widths) -> bytes:
    """Whole numbers, each in as many bits as its width says, or as all widths are."""
    from laconic.compression import kernels

    each = np.full(len(numbers), widths, dtype=np.uint8) if isinstance(widths, int) else widths
    bits = int(each.sum(dtype=np.int64))
    words = np.zeros(bits // 64 + 2, dtype=np.uint64)
    kernels.pack(numbers.astype(np.uint32), each, words)
    return words.astype("<u8", copy=False).tobytes()[: -(-bits // 8)]


def words_of(data: memoryview | Bytes) -> Words:
    """Bytes as words."""
    return _padded(data, "<u8").astype(np.uint64, copy=False)


def half_words_of(data: memoryview | Bytes) -> HalfWords:
    """Bytes as words of 32 bits."""
    return _padded(data, "<u4").astype(np.uint32, copy=False)


def _padded(data: memoryview | Bytes, kind: str) -> NDArray[Any]:
    words = np.zeros(len(data) // np.dtype(kind).itemsize + 2, dtype=kind)
    words.view(np.uint8)[: len(data)] = data
    return words


def unpack(words: HalfWords, width: int, start: int, end: int) -> NDArray[np.uint32]:
    """The numbers from `start` to `end` of those that were packed with one width."""
    from laconic.compression import kernels

    numbers = np.empty(end - start, dtype=np.uint32)
    kernels.unpack(words, width, start, numbers)
    return numbers


def position_bound(size: int, count: int) -> float:
    """log2 C(d, k): no code for arbitrary sets of positions can do with fewer bits.

    >>> round(position_bound(10, 3), 6) == round(math.log2(120), 6)
    True
    """
    logarithm = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return logarithm / math.log(2)
