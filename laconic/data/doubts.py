"""Warnings about data that is valid but probably not what the user meant. Each is one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laconic.core.errors import KindWarning, warn

MANY_CLASSES = 50
FEW_CLASSES = 10
"""Whole numbers of this many different values may be classes, even if they are floating-point."""
RARE = 5
"""A class with fewer examples is rare."""
LARGE = 100
"""A mean or standard deviation of an input that slows down training."""
UNLIKE = 1000
"""A ratio of standard deviations of inputs that slows down training."""


def doubt_kind(name: str, targets: Tensor, classes: int | None) -> bool:
    """Warn if the targets' type may suggest the wrong kind of task, and return whether it does.

    `classes` is None for regression.
    """
    doubt = _zeros_and_ones(targets) or _whole_numbers(targets) if classes is None else _rare_classes(targets, classes)
    if doubt:
        warn(f"{name}: {doubt}", KindWarning)
    return bool(doubt)


def _zeros_and_ones(targets: Tensor) -> str:
    values = targets.squeeze(-1) if targets.ndim > 1 and targets.shape[-1] == 1 else targets
    if not bool(((values == 0) | (values == 1)).all()) or not bool((values == 1).any()):
        return ""
    if values.ndim == 1:
        return (
            "all targets are 0.0 or 1.0; they are floating-point, so this is regression; for two classes pass "
            "kind='classification' (--dataset …,kind=classification)"
        )
    if values.ndim == 2 and bool((values.sum(1) == 1).all()):
        return (
            "the targets look one-hot; they are floating-point, so this is regression; for "
            f"{values.shape[1]} classes pass the numbers of the classes: targets.argmax(1)"
        )
    return ""


def _whole_numbers(targets: Tensor) -> str:
    if targets.shape[1:].numel() != 1 or not bool((targets == targets.round()).all()):
        return ""
    values = torch.unique(targets)
    if not 1 < len(values) <= min(FEW_CLASSES, len(targets) // RARE):
        return ""
    return (
        f"all targets are one of {len(values)} whole numbers, {values[0]:g}..{values[-1]:g}; they are floating-point, so "
        "this is regression; for classes pass kind='classification' (--dataset …,kind=classification), otherwise "
        "kind='regression'"
    )


def _rare_classes(targets: Tensor, classes: int) -> str:
    if classes <= MANY_CLASSES:
        return ""
    _, counts = np.unique(targets.cpu().numpy(), return_counts=True)
    if classes - np.count_nonzero(counts >= RARE) <= classes / 2:
        return ""
    if np.count_nonzero(counts >= RARE) > len(counts) / 2:
        return (
            f"the labels go up to {classes - 1}, so the model needs {classes} outputs, but only {len(counts)} labels occur; "
            "renumber those of all clients and of the test together: np.unique(labels, return_inverse=True)[1]"
        )
    return (
        f"the targets are integers, so this is classification, with {classes} classes, most of them with fewer than "
        f"{RARE} examples; for regression pass kind='regression' (--dataset …,kind=regression)"
    )


def doubt_classes(name: str, train: Tensor, test: Tensor | None, classes: int, labels: Sequence[str] | None) -> None:
    """Warn if the classes that were found in the data are not those that training needs."""
    trained = np.unique(train.cpu().numpy())
    tested = trained if test is None else np.unique(test.cpu().numpy())
    lowest = min(int(part.min()) for part in (trained, tested) if len(part))
    if lowest > 0:
        warn(
            f"{name}: the labels are {lowest}..{classes - 1}; class 0 has no examples, and the model needs {classes} "
            f"outputs; subtract {lowest} from the labels, or pass classes={classes}"
        )
    unseen = np.setdiff1d(tested, trained).tolist()
    if unseen:
        label = f"'{labels[unseen[0]]}'" if labels else str(unseen[0])
        more = f" and of {len(unseen) - 1} more" if len(unseen) > 1 else ""
        warn(f"{name}: the test has examples of class {label}{more}, but training has none; the model cannot learn it")


def equal_where_counted(inputs: Tensor, targets: Tensor) -> bool:
    """Whether targets are tokens that equal the inputs wherever they count (not at -100), and some count."""
    if targets.ndim == 0 or targets.is_floating_point() or targets.shape != inputs.shape:
        return False
    counted = targets != -100
    return bool(counted.any()) and bool((inputs[counted] == targets[counted]).all())


def doubt_tokens(name: str, kind: str, inputs: Sequence[Tensor], targets: Tensor) -> None:
    """Warn if a model could copy its targets from its inputs."""
    if not any(equal_where_counted(part, targets) for part in inputs):
        return
    equal = f"{name}: the targets equal the inputs wherever they count"
    if kind == "per_position":
        warn(
            f"{equal}; to predict the next token pass kind='next_token', unless the module shifts its labels itself, as in "
            "laconic.Task(module)"
        )
    if kind == "next_token":
        warn(f"{equal}; targets are the tokens after each: pass tokens[:, :-1] as inputs and tokens[:, 1:] as targets")


def doubt_repeats(name: str, once: tuple[Any, Any], again: tuple[Any, Any]) -> None:
    """Warn if an example that is read twice under the same seed differs, so that runs cannot repeat."""
    parts = [[*pair[0].values()] if isinstance(pair[0], dict) else [pair[0]] for pair in (once, again)]
    same = [np.array_equal(np.asarray(one), np.asarray(other)) for one, other in zip(*parts, strict=True)]
    if not all(same) or not np.array_equal(np.asarray(once[1]), np.asarray(again[1])):
        warn(
            f"{name}: the first sample differs each time it is read, so no run can be repeated; in __getitem__ use "
            "torch.rand, np.random or random, which are seeded before each batch, instead of a generator of its own"
        )


def doubt_scale(name: str, inputs: Tensor, columns: Sequence[str] | None, remedy: str) -> None:
    """Warn if columns of a table of numbers have a large mean or deviation, or deviations of very different size."""
    if inputs.ndim != 2 or not inputs.is_floating_point() or len(inputs) < 2:
        return
    deviations, means = (values.cpu().numpy() for values in torch.std_mean(inputs.float(), 0))
    sizes = np.maximum(abs(means), deviations)
    varied = deviations[deviations > 0]
    unlike = len(varied) > 0 and varied.max() > max(UNLIKE * float(varied.min()), LARGE / 10)
    if len(sizes) and (unlike or sizes.max() > LARGE):
        worst = int(sizes.argmax())
        column = str(worst) if columns is None else f"'{columns[worst]}'"
        warn(
            f"{name}: the inputs are not scaled: column {column} has mean {means[worst]:.3g} and standard deviation "
            f"{deviations[worst]:.3g}; training works best near 0 and 1; {remedy}"
        )
