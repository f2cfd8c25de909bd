"""Packing of integers of few bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.compression.words import Bytes, HalfWords, Widths, Words


def packed_size(count: int, width: int) -> int:
    """The size in bytes of `count` numbers of `width` bits.

    >>> packed_size(9, 3), packed_size(8, 13)
    (4, 13)
    """
    return -(-count * width // 8)


def pack(numbers: NDArray[Any], widths: int | Widths) -> bytes:
    """Pack non-negative integers, each in its own number of bits or all in the same."""
    from laconic.compression import kernels  # late: Numba is slow to load

    if isinstance(widths, int):
        widths = np.full(len(numbers), widths, dtype=np.uint8)
    bits = int(widths.sum(dtype=np.int64))
    words = np.zeros(bits // 64 + 2, dtype=np.uint64)
    kernels.pack(numbers.astype(np.uint32, copy=False), widths, words)
    return words.astype("<u8", copy=False).tobytes()[: -(-bits // 8)]


def words_of(data: memoryview | Bytes) -> Words:
    """View bytes as 64-bit words."""
    return _padded(data, "<u8").astype(np.uint64, copy=False)


def half_words_of(data: memoryview | Bytes) -> HalfWords:
    """View bytes as 32-bit words."""
    return _padded(data, "<u4").astype(np.uint32, copy=False)


def _padded(data: memoryview | Bytes, kind: str) -> NDArray[Any]:
    words = np.zeros(len(data) // np.dtype(kind).itemsize + 2, dtype=kind)
    words.view(np.uint8)[: len(data)] = data
    return words


def unpack(words: HalfWords, width: int, start: int, end: int) -> NDArray[np.uint32]:
    """Unpack the numbers `start` to `end` of a sequence that was packed with one width."""
    from laconic.compression import kernels  # late: Numba is slow to load

    numbers = np.empty(end - start, dtype=np.uint32)
    kernels.unpack(words, width, start, numbers)
    return numbers
