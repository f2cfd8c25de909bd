"""What a compressor treats as one: the whole model, or each parameter tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laconic.compression.body import Floats
from laconic.core.layout import Layout

Group = Literal["model", "layer"]
Bounds: TypeAlias = NDArray[np.int64]
"""Where groups begin, and where the last one ends."""


def group_bounds(layout: Layout, by: Group) -> Bounds:
    """The groups of a layout that are not empty."""
    return _bounds((layout.size,) if by == "model" else layout.sizes)


@lru_cache(maxsize=64)
def _bounds(sizes: tuple[int, ...]) -> Bounds:
    return np.cumsum([0, *(size for size in sizes if size)])


def spans(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """Start and end of every group."""
    edges = bounds.tolist()
    return itertools.pairwise(edges)


def kept(ratio: float, size: int) -> int:
    """k = max(1, floor(ratio d)) of a group of d."""
    return max(1, math.floor(ratio * size))


def kept_bounds(ratio: float, groups: Bounds) -> Bounds:
    """Where each group's kept values begin, when they stand one after the other."""
    return np.cumsum([0, *(kept(ratio, end - start) for start, end in spans(groups))])


@dataclass(frozen=True)
class Chosen:
    """The values that a packet will hold, group by group, and what is left to say about their places."""

    places: int
    """`Places` and flags for the codec number."""
    values: Floats
    bounds: Bounds
    """The groups within `values`."""
    groups: Bounds
    """The groups within the whole vector."""
