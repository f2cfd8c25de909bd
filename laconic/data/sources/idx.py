"""The idx format of the MNIST family: zero, zero, type code, number of dimensions, sizes, values."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from laconic.core.errors import DataError

TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def size(shape: tuple[int, ...], item_bytes: int = 1) -> int:
    """Return the bytes of an idx file with an array of this shape.

    >>> size((60_000, 28, 28))
    47040016
    """
    return 4 + 4 * len(shape) + math.prod(shape) * item_bytes


def parse(content: bytes, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.integer]:
    """Return the array in an idx file, which must have exactly the given shape."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES:
        raise DataError(f"{name} is not an idx file of bytes or 32-bit integers")
    kind, dimensions = TYPES[content[2]], content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{name} ends within its header")
    actual = struct.unpack(f">{dimensions}I", content[4:start])
    if actual != shape:
        raise DataError(f"{name} contains an array of shape {actual}, expected {shape}")
    expected = size(shape, kind.itemsize)
    if len(content) != expected:
        raise DataError(f"{name} has {len(content)} bytes, expected {expected}")
    values: npt.NDArray[np.integer] = np.frombuffer(content, kind, offset=start).reshape(shape)
    return values
