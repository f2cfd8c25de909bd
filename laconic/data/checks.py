"""Validation of data sets before a run starts. Every error message is one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laconic.core.counts import counted
from laconic.core.errors import DataError

KINDS = ("classification", "regression", "next_token", "per_position")


def check_examples(
    where: str,
    inputs: Tensor,
    targets: Tensor,
    kind: str,
    classes: int | None,
    numbers: Sequence[int] | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise DataError if inputs and targets do not match each other, the task or the number of classes.

    `numbers` are the examples' numbers in error messages. Default: 0, 1, … `extra` are further inputs by name.
    """
    if kind not in KINDS:
        raise DataError(f"{where}: kind is '{kind}'; allowed: {', '.join(KINDS)}")
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the examples")
    numbers = range(len(inputs)) if numbers is None else numbers
    if len(inputs) != len(targets):
        raise DataError(f"{where}: {counted(len(inputs), 'input')} but {counted(len(targets), 'target')}")
    check_finite(where, "input", inputs, numbers)
    for name, values in (extra or {}).items():
        check_finite(where, f"input '{name}', example", values, numbers)
    check_finite(where, "target", targets, numbers)
    if kind == "regression":
        if not targets.is_floating_point():
            raise DataError(f"{where}: regression needs floating targets, not {targets.dtype}")
        return
    if classes is None or classes < 1:
        raise DataError(f"{where}: {kind} needs a number of classes of at least 1, not {classes}")
    _check_classes(where, inputs, targets, kind, classes, numbers)


def _check_classes(
    where: str, inputs: Tensor, targets: Tensor, kind: str, classes: int, numbers: Sequence[int]
) -> None:
    """Raise DataError if the targets are not labels or tokens of these classes."""
    if targets.is_floating_point():
        raise DataError(f"{where}: {kind} needs integer targets, not {targets.dtype}")
    if kind == "classification" and targets.ndim != 1:
        if targets.shape[1:].numel() == 1:
            found = f"targets of shape {tuple(targets.shape)}; pass one dimension: targets.ravel()"
            raise DataError(f"{where}: classification needs one label per example, not {found}")
        raise DataError(
            f"{where}: classification needs one label per example, not targets of shape {tuple(targets.shape)}; for a class "
            "per token or pixel pass kind='per_position', for the next token kind='next_token'; for several labels per "
            "example pass them as floats, and a Task with binary_cross_entropy_with_logits as its loss"
        )
    if kind == "per_position" and targets.ndim == 1:
        raise DataError(f"{where}: per_position needs a class for every token or pixel, not one label per example")
    # -100 marks positions that do not count, such as padding.
    wide = targets.to(torch.int64)
    counted = wide if kind == "classification" else wide.where(wide != -100, 0)
    _check_range(where, "label", counted, classes, numbers)
    if kind == "next_token":
        if inputs.is_floating_point():
            raise DataError(f"{where}: next_token needs integer inputs, not {inputs.dtype}")
        _check_range(where, "input token", inputs, classes, numbers)


def check_indices(where: str, clients: Sequence[npt.NDArray[np.int64]], examples: int) -> None:
    """Raise DataError for a split without clients, with an empty client or with an index out of range."""
    if len(clients) == 0:
        raise DataError(f"{where}: there are no clients")
    for client, indices in enumerate(clients):
        if indices.ndim != 1 or indices.dtype != np.int64:
            raise DataError(f"{where}: client {client} needs a list of int64 indices, not {indices.dtype}")
        if len(indices) == 0:
            raise DataError(f"{where}: client {client} has no examples")
        for extreme in (int(indices.min()), int(indices.max())):
            if not 0 <= extreme < examples:
                raise DataError(f"{where}: client {client} has index {extreme}; allowed: 0..{examples - 1}")


def check_finite(where: str, what: str, values: Tensor, numbers: Sequence[int]) -> None:
    """Raise DataError for a NaN or an infinite number."""
    if not values.is_floating_point():
        return
    # A finite sum proves that all values are finite: one pass without a mask almost always suffices.
    if bool(torch.isfinite(values.sum())):
        return
    bad = torch.nonzero(~torch.isfinite(values))
    if len(bad):
        first = bad[0].tolist()
        value = values[tuple(first)].item()
        raise DataError(f"{where}: {what} {numbers[first[0]]} contains {value}; numbers must be finite")


def _check_range(where: str, what: str, values: Tensor, classes: int, numbers: Sequence[int]) -> None:
    if values.numel() == 0:
        return
    # uint16 and similar types have no comparison kernels, so compare as int64.
    wide = values.to(torch.int64)
    if int(wide.min()) >= 0 and int(wide.max()) < classes:
        return
    first = torch.nonzero((wide < 0) | (wide >= classes))[0].tolist()
    value = wide[tuple(first)].item()
    if value < 0:
        raise DataError(
            f"{where}: {what} {value} at index {numbers[first[0]]} is negative; {what}s are numbered from 0: renumber "
            "them, as in np.unique(labels, return_inverse=True)[1]"
        )
    raise DataError(f"{where}: {what} {value} at index {numbers[first[0]]} is out of range; allowed: 0..{classes - 1}")
