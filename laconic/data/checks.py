"""Validation of data sets before a run starts. Every error message is one line."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laconic.core.errors import DataError

KINDS = ("classification", "regression", "next_token")


def check_examples(where: str, inputs: Tensor, targets: Tensor, kind: str, classes: int | None) -> None:
    """Raise DataError if inputs and targets do not match each other, the task or the number of classes."""
    if kind not in KINDS:
        raise DataError(f"{where}: kind is '{kind}'; allowed: {', '.join(KINDS)}")
    if inputs.ndim == 0 or targets.ndim == 0:
        raise DataError(f"{where}: inputs and targets need a first dimension that counts the examples")
    if len(inputs) != len(targets):
        raise DataError(f"{where}: {len(inputs)} inputs but {len(targets)} targets")
    _check_finite(where, "input", inputs)
    _check_finite(where, "target", targets)
    if kind == "regression":
        if not targets.is_floating_point():
            raise DataError(f"{where}: regression needs floating targets, not {targets.dtype}")
        return
    if classes is None or classes < 1:
        raise DataError(f"{where}: {kind} needs a number of classes of at least 1, not {classes}")
    if targets.is_floating_point():
        raise DataError(f"{where}: {kind} needs integer targets, not {targets.dtype}")
    if kind == "classification" and targets.ndim != 1:
        raise DataError(f"{where}: classification needs one label per example, not {tuple(targets.shape)}")
    _check_range(where, "label", targets, classes)
    if kind == "next_token":
        if inputs.is_floating_point():
            raise DataError(f"{where}: next_token needs integer inputs, not {inputs.dtype}")
        _check_range(where, "input token", inputs, classes)


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


def _check_finite(where: str, what: str, values: Tensor) -> None:
    if not values.is_floating_point():
        return
    # A finite sum proves that all values are finite: one pass without a mask almost always suffices.
    if bool(torch.isfinite(values.sum())):
        return
    bad = torch.nonzero(~torch.isfinite(values))
    if len(bad):
        first = bad[0].tolist()
        raise DataError(f"{where}: {what} {first[0]} contains {values[tuple(first)].item()}; numbers must be finite")


def _check_range(where: str, what: str, values: Tensor, classes: int) -> None:
    if values.numel() == 0:
        return
    # uint16 and similar types have no comparison kernels, so compare as int64.
    wide = values.to(torch.int64)
    if int(wide.min()) >= 0 and int(wide.max()) < classes:
        return
    first = torch.nonzero((wide < 0) | (wide >= classes))[0].tolist()
    value = wide[tuple(first)].item()
    raise DataError(f"{where}: {what} {value} at index {first[0]} is out of range; allowed: 0..{classes - 1}")
