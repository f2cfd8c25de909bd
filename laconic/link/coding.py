"""Numbers of fixed width as bits, and the bound that codes of positions are measured by."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bytes: TypeAlias = NDArray[np.uint8]


def packed_size(count: int, width: int) -> int:
    """Bytes of `count` numbers of `width` bits.

    >>> packed_size(9, 3), packed_size(8, 13)
    (6, 13)
    """
    return -(-count // 8) * width


def pack(numbers: NDArray[Any], width: int) -> bytes:
    """Whole numbers of `width` bits each, plane by plane: the highest bits of all of them, then the next ones."""
    if not len(numbers):
        return b""
    return b"".join(np.packbits((numbers >> bit & 1).astype(bool)).tobytes() for bit in reversed(range(width)))


def unpack(
    data: memoryview, count: int, width: int, start: int = 0, end: int | None = None
) -> NDArray[np.unsignedinteger]:
    """The numbers that `pack` was given `count` of, or those from `start` to `end`, in the smallest type that holds them."""
    end = count if end is None else end
    sent = np.frombuffer(data, dtype=np.uint8, count=packed_size(count, width)).reshape(width, -(-count // 8))
    numbers = np.zeros(end - start, dtype=_unsigned(width))
    for plane in sent[:, start // 8 : -(-end // 8)]:
        numbers += numbers  # faster than a shift
        numbers |= np.unpackbits(plane)[start % 8 :][: end - start]
    return numbers


def _unsigned(width: int) -> type[np.unsignedinteger]:
    return np.uint8 if width <= 8 else np.uint16 if width <= 16 else np.uint32


def position_bound(size: int, count: int) -> float:
    """log2 C(d, k): no code for arbitrary sets of positions can do with fewer bits.

    >>> round(position_bound(10, 3), 6) == round(math.log2(120), 6)
    True
    """
    logarithm = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return logarithm / math.log(2)
