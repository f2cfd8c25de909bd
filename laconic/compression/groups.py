"""Granularity: which entries are compressed together. The whole model, each parameter tensor, or chunks of N entries."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from laconic.core.errors import ConfigError, suggestion
from laconic.core.layout import Layout

Bounds: TypeAlias = NDArray[np.int64]
"""The starts of all groups, and the end of the last one."""
SMALLEST_CHUNK = 64
"""In smaller chunks the scales would dominate, and a malicious packet would be expensive to decode."""
LARGEST_CHUNK = 2**31
_CHUNK = "chunk:"


def check_granularity(text: str) -> str:
    """Return the text if it is `model`, `layer` or `chunk:N`; `ConfigError` otherwise."""
    if text in ("model", "layer"):
        return text
    digits = text.removeprefix(_CHUNK)
    if text.startswith(_CHUNK) and digits.isdecimal() and SMALLEST_CHUNK <= int(digits) <= LARGEST_CHUNK:
        return f"{_CHUNK}{int(digits)}"
    near = suggestion(text, ("model", "layer"))
    allowed = f"allowed are model, layer and chunk:N with N of at least {SMALLEST_CHUNK}"
    raise ConfigError(f"granularity = '{text}': {near}{' ' if near else ''}{allowed}")


Granularity = Annotated[str, AfterValidator(check_granularity)]
"""`model`, `layer`, or `chunk:N`."""


def chunk_size(granularity: str) -> int | None:
    """N of `chunk:N`.

    >>> chunk_size("chunk:4096"), chunk_size("layer")
    (4096, None)
    """
    return int(granularity.removeprefix(_CHUNK)) if granularity.startswith(_CHUNK) else None


def group_bounds(layout: Layout, granularity: str) -> Bounds:
    """The non-empty groups of a layout."""
    chunk = chunk_size(granularity)
    if chunk is not None:
        return chunk_bounds(layout.size, chunk)
    return _bounds(layout.sizes if granularity == "layer" else (layout.size,))


@lru_cache(maxsize=64)
def _bounds(sizes: tuple[int, ...]) -> Bounds:
    return np.cumsum([0, *(size for size in sizes if size)])


def chunk_bounds(size: int, chunk: int) -> Bounds:
    """The chunks of a vector; the last one may be shorter."""
    return np.append(np.arange(0, size, chunk), size) if size else np.zeros(1, dtype=np.int64)


def spans(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """The start and end of each group."""
    return itertools.pairwise(bounds.tolist())


def kept(ratio: float, size: int) -> int:
    """k = max(1, floor(ratio d)) for a group of d entries."""
    return max(1, math.floor(ratio * size))


def kept_bounds(ratio: float, groups: Bounds) -> Bounds:
    """The bounds of each group's kept values in the vector of all kept values."""
    return np.cumsum([0, *(kept(ratio, end - start) for start, end in spans(groups))])
