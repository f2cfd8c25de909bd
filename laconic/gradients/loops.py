"""Loops that several compiled operations share."""

from __future__ import annotations

from typing import Any, cast

import numba

from laconic.core.compiled import Function
from laconic.gradients.vectors import transpose


def inlined(function: Function) -> Function:
    """Decorator: compile as a part of the caller only. Compiling the function by itself as well takes seconds."""
    return cast(Function, numba.njit(inline="always")(function))


@inlined
def block_size(remaining: int, most: int) -> int:
    """The size of the next block: one of `ROWS` or `COLUMNS`."""
    if remaining >= most:
        return most
    return remaining - remaining % 2 if remaining > 1 else 1


@inlined
def transpose_matrix(
    source: Any, at: int, stride: int, rows: int, columns: int, lanes: int, to: Any, begin: int, step: int
) -> None:
    """to[begin + c * step + r] = source[at + r * stride + c], in squares of vectors where that is possible."""
    for row in range(0, rows, lanes):
        full = 0
        if row + lanes <= rows:
            full = columns - columns % lanes
            for column in range(0, full, lanes):
                transpose(source, at + row * stride + column, stride, to, begin + column * step + row, step)
        for column in range(full, columns):
            for index in range(row, min(row + lanes, rows)):
                to[begin + column * step + index] = source[at + index * stride + column]
