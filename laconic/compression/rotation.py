"""Seeded random rotations of a vector, in place and without padding.

Each group of n entries is multiplied by random signs and transformed by Walsh-Hadamard matrices, reversed, multiplied
and transformed again. A transform has one block for every power of two in n, the largest first. The reversal mixes the small
blocks at the end of a group with the large one.
"""

from __future__ import annotations

import numpy as np

from laconic.compression.body import Floats
from laconic.compression.groups import Bounds, spans


def rotate(vector: Floats, groups: Bounds, seed: int, *, back: bool = False) -> None:
    """Rotate the groups of a vector, or with `back` undo it. Entries beyond the range of the type are clipped."""
    from laconic.compression import kernels  # late: Numba is slow to load

    most = float(np.finfo(vector.dtype).max)
    highest = float(max(vector.max(initial=0), -vector.min(initial=0)))
    large = highest > most / max(1, len(vector))
    if large:
        vector /= highest
    # The raw draws of a bit generator are the same in all versions of NumPy.
    draws = np.random.Philox(key=seed)
    for start, end in spans(groups):
        group = vector[start:end]
        first, second = (np.asarray(draws.random_raw(-(-len(group) // 64))) for _ in range(2))
        if back:
            _transform(group)
            kernels.flip(group, second)
            kernels.reverse(group)
            _transform(group)
            kernels.flip(group, first)
        else:
            kernels.flip(group, first)
            _transform(group)
            kernels.reverse(group)
            kernels.flip(group, second)
            _transform(group)
    if large:
        with np.errstate(over="ignore"):
            vector *= highest
        np.clip(vector, -most, most, out=vector)


def _transform(group: Floats) -> None:
    """Orthonormal Walsh-Hadamard transforms of consecutive blocks."""
    from laconic.compression import kernels  # late: Numba is slow to load

    start = 0
    while left := len(group) - start:
        size = 1 << (left.bit_length() - 1)
        block = group[start : start + size]
        kernels.hadamard(block)
        block *= group.dtype.type(size**-0.5)
        start += size
