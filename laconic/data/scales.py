"""The means and standard deviations that inputs are normalized by: their check, and their form in files."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from laconic.core.counts import counted
from laconic.core.errors import DataError
from laconic.data.federated import Normalize

_NEEDED = "normalize=(means, deviations) needs"


def checked_normalize(name: str, normalize: object, shape: Sequence[int]) -> Normalize | None:
    """`normalize` as tuples of floats for inputs of `shape`; None for None. Raises `DataError` if it does not fit them."""
    if normalize is None:
        return None
    parts = _floats(normalize)
    if parts is None:
        raise DataError(f"{name}: {_NEEDED} two lists of numbers, not {type(normalize).__name__}")
    channels = shape[0] if shape else 1
    part = "channel" if len(shape) > 1 else "column"
    for what, values in zip(("mean", "deviation"), parts, strict=True):
        if len(values) not in (1, channels):
            found = f"not {counted(len(values), what)}; the inputs have {counted(channels, part)}"
            raise DataError(f"{name}: {_NEEDED} one {what} per {part} or a single one, {found}")
        for number, value in enumerate(values):
            if not math.isfinite(value):
                raise DataError(f"{name}: {_NEEDED} finite numbers; the {what} of {part} {number} is {value}")
            if what == "deviation" and value <= 0:
                constant = "; for a constant input pass 1" if value == 0 else ""
                raise DataError(f"{name}: {_NEEDED} deviations above 0; that of {part} {number} is {value:g}{constant}")
    return parts


def stored_normalize(normalize: object) -> list[list[float]] | None:
    """`normalize` as lists for a JSON file; None if it is something of a user's own, which cannot be stored."""
    parts = _floats(normalize)
    if parts is None or not all(map(math.isfinite, (*parts[0], *parts[1]))):
        return None
    return [list(values) for values in parts]


def _floats(normalize: object) -> Normalize | None:
    """Two lists of numbers, or two numbers, as tuples of floats; None for anything else."""
    try:
        means, deviations = (np.asarray(values, dtype=np.float64).reshape(-1).tolist() for values in normalize)  # type: ignore[attr-defined]
    except (TypeError, ValueError, RuntimeError):
        return None
    return tuple(means), tuple(deviations)
