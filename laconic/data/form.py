"""The form of a data set: how further examples become tensors for a model that was trained on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from laconic.core.errors import DataError, suggestion
from laconic.data.arrays import (
    Pair,
    first_line,
    has_text,
    is_pair,
    like_training,
    named_inputs,
    pooled,
    tensor_of,
    with_named_inputs,
)
from laconic.data.columns import Columns
from laconic.data.federated import Array, ClientData, Examples, Kind, NamedInputs, Normalize, Selection
from laconic.data.lazy import read

_EVALUATED = "the data to evaluate"
_ONLY_CLIENT = rf"^{_EVALUATED}(, client 0| \(train\)|: client 0(?= has))"


def _refuse_no_pair(given: Any, input_shape: tuple[int, ...]) -> None:
    """Refuse inputs without targets, and a list of clients, whose arrays look like samples."""
    if isinstance(given, np.ndarray | Tensor):
        raise DataError("data: an array without targets; pass a pair (inputs, targets)")
    if isinstance(given, list | tuple) and len(given) > 0 and all(map(is_pair, given)):
        shapes = [getattr(pair[0], "shape", ()) for pair in given]
        if all(len(shape) == 1 + len(input_shape) and tuple(shape[1:]) == input_shape for shape in shapes):
            raise DataError(f"data: a list of {len(given)} clients; pass a pair (inputs, targets)")


@dataclass(frozen=True)
class Form:
    """What a model expects of its examples. It does not keep the data that it describes."""

    kind: Kind
    classes: int | None
    input_shape: tuple[int, ...]
    input_names: tuple[str, ...] = ()
    normalize: Normalize | None = None
    normalizes: bool = True
    """Whether `normalize` is known: a `ClientData` of a user's own may normalize its batches itself."""
    labels: tuple[str, ...] | None = None
    columns: tuple[Any, ...] | None = None
    selection: Selection | None = None
    """The columns of the data set that the data was read from, if it was one."""
    floating: bool | None = None
    """Whether inputs are floating-point; None if that is unknown."""

    @classmethod
    def of(cls, data: ClientData) -> Self:
        """The form of a data set."""
        names = data.input_names if isinstance(data, NamedInputs) else ()
        details: dict[str, Any] = {
            name: getattr(data, name, None) for name in ("normalize", "labels", "columns", "selection")
        }
        if not hasattr(data, "normalize"):
            details |= {"normalize": data.test and data.test.normalize, "normalizes": data.test is not None}
        examples = getattr(data, "examples", None)
        floating = examples.inputs.is_floating_point() if isinstance(examples, Examples) else None
        return cls(data.kind, data.classes, data.input_shape, names, floating=floating, **details)

    def inputs(self, given: Array | Mapping[str, Array]) -> Examples:
        """Inputs without targets, as examples whose targets are all 0."""
        parts = self._in_order(given)
        try:
            main, *more = (tensor_of(part) for part in parts)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"inputs: not an array of numbers ({first_line(error)})") from error
        self._check_shape(main)
        main = self._like_training("inputs", main)
        extra = dict(zip(self.input_names[1:], more, strict=True))
        return Examples(main, torch.zeros(len(main)), self.normalize, extra, next(iter(self.input_names), None))

    def examples(self, given: Examples | ClientData | Pair | Dataset[Any] | Mapping[str, Any]) -> Examples:
        """Examples with targets: a pair of arrays, a data set, or the test set of a `ClientData`."""
        if isinstance(given, Mapping) and "test" in given:
            given = given["test"]
        if isinstance(given, Examples):
            return self._normalized(given)
        if isinstance(given, ClientData):
            if given.test is None:
                raise DataError("data: it has no test examples; pass a pair (inputs, targets)")
            self._check_names(given)
            return self._normalized(given.test)
        inputs, targets = self._pair(given)
        if self.input_names:
            inputs = dict(zip(self.input_names, self._in_order(inputs), strict=True))
        if self.labels is None and has_text(targets):
            raise DataError("data: the targets are text, but the model was trained on numbers; pass numbers of classes")
        try:
            data = pooled([(inputs, targets)], None, self.kind, self.classes, _EVALUATED, labels=self.labels)
        except DataError as error:
            # The examples are the only client of a data set, of which the user knows nothing.
            raise DataError(re.sub(_ONLY_CLIENT, _EVALUATED, str(error))) from error
        self._check_shape(data.examples.inputs)
        inputs = self._like_training(_EVALUATED, data.examples.inputs)
        return replace(data.examples, inputs=inputs, normalize=self.normalize)

    def _pair(self, given: Any) -> Pair:
        """Inputs and targets of data in a form that training takes."""
        if hasattr(given, "iloc"):
            given = self._pair_of_frame(given)
        _refuse_no_pair(given, self.input_shape)
        if is_pair(given):
            given = (self._selected(given[0]), given[1])
        given = with_named_inputs(given)
        if not is_pair(given):
            trained, next_token = self.selection or Selection(), self.kind == "next_token"
            columns = Columns.of_training(trained, self.columns or (), self.labels or (), next_token)
            given = read("data", given, columns)
        inputs, targets = given
        return inputs, targets

    def _pair_of_frame(self, frame: Any) -> Pair:
        """A DataFrame with the target column of training as a pair."""
        target = None if self.selection is None else self.selection.target
        if target is None or target not in frame.columns:
            missing = "its targets" if target is None else f"the column '{target}'"
            raise DataError(
                f"data: a DataFrame without {missing}; pass a pair (inputs, targets): (frame, frame[COLUMN])"
            )
        targets = frame[target]
        return frame, targets.astype("int64") if targets.dtype.kind == "b" else targets

    def _normalized(self, given: Examples) -> Examples:
        """Examples with the normalization of training instead of their own."""
        inputs = self._like_training("data", given.inputs)
        return replace(given, inputs=inputs, normalize=self.normalize) if self.normalizes else given

    def _check_names(self, data: ClientData) -> None:
        """Refuse data with other names, or with names in another order: its numbers mean something else."""
        other = Form.of(data)
        for what, found, wanted in (
            ("classes", other.labels, self.labels),
            ("columns", other.columns, self.columns),
            ("inputs", other.input_names, self.input_names),
        ):
            if found and wanted and tuple(found) != tuple(wanted):
                names = [", ".join(map(str, part)) for part in (found, wanted)]
                raise DataError(
                    f"data: its {what} are {names[0]}, but the model was trained on {names[1]}, in this order"
                )

    def _in_order(self, given: Any) -> list[Any]:
        """The inputs in the order of a batch."""
        given = named_inputs(self._selected(given))
        if not isinstance(given, Mapping):
            if len(self.input_names) > 1:
                raise DataError(f"inputs: the model needs {' and '.join(self.input_names)}: pass a dict of arrays")
            return [given]
        missing = [name for name in self.input_names if name not in given]
        if missing or not self.input_names:
            wanted = f"a dict with {' and '.join(self.input_names)}" if self.input_names else "an array"
            raise DataError(f"inputs: {wanted} is allowed, not a dict with {' and '.join(map(str, given))}")
        return [given[name] for name in self.input_names]

    def _selected(self, given: Any) -> Any:
        """The columns of a DataFrame that the model was trained on, in their order. Other inputs are unchanged."""
        if self.columns is None or not hasattr(given, "columns"):
            return given
        for column in self.columns:
            if column not in given.columns:
                near = suggestion(str(column), map(str, given.columns))
                raise DataError(
                    f"inputs: there is no column '{column}', which the model was trained on{near and f'; {near}'}"
                )
        return given[list(self.columns)]

    def _like_training(self, where: str, inputs: Tensor) -> Tensor:
        return inputs if self.floating is None else like_training(where, inputs, self.floating)

    def _check_shape(self, inputs: Tensor) -> None:
        # Sequences may have another length than in training.
        if self.kind != "next_token" and not self.input_names and tuple(inputs.shape[1:]) != self.input_shape:
            wanted = ", ".join(["examples", *map(str, self.input_shape)])
            raise DataError(f"inputs: shape {tuple(inputs.shape)}, but the model was trained on ({wanted})")
