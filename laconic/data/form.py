"""The form of a data set: how further examples become tensors for a model that was trained on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from laconic.core.errors import DataError
from laconic.data.arrays import Pair, first_line, has_text, is_pair, named_inputs, pooled, tensor_of, with_named_inputs
from laconic.data.columns import Columns
from laconic.data.federated import Array, ClientData, Examples, Kind, NamedInputs, Normalize
from laconic.data.lazy import read


@dataclass(frozen=True)
class Form:
    """What a model expects of its examples. It does not keep the data that it describes."""

    kind: Kind
    classes: int | None
    input_shape: tuple[int, ...]
    input_names: tuple[str, ...] = ()
    normalize: Normalize | None = None
    labels: tuple[str, ...] | None = None

    @classmethod
    def of(cls, data: ClientData) -> Self:
        """The form of a data set."""
        names = data.input_names if isinstance(data, NamedInputs) else ()
        details = (getattr(data, "normalize", None), getattr(data, "labels", None))
        return cls(data.kind, data.classes, data.input_shape, names, *details)

    def inputs(self, given: Array | Mapping[str, Array]) -> Examples:
        """Inputs without targets, as examples whose targets are all 0."""
        parts = self._in_order(given)
        try:
            main, *more = (tensor_of(part) for part in parts)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DataError(f"inputs: not an array of numbers ({first_line(error)})") from error
        self._check_shape(main)
        extra = dict(zip(self.input_names[1:], more, strict=True))
        return Examples(main, torch.zeros(len(main)), self.normalize, extra, next(iter(self.input_names), None))

    def examples(self, given: Examples | ClientData | Pair | Dataset[Any]) -> Examples:
        """Examples with targets: a pair of arrays, a data set, or the test set of a `ClientData`."""
        if isinstance(given, Examples):
            return given
        if isinstance(given, ClientData):
            if given.test is None:
                raise DataError("data: it has no test examples; pass a pair (inputs, targets)")
            return given.test
        given = with_named_inputs(given)
        if not is_pair(given):
            given = read("data", given, Columns(next_token=self.kind == "next_token"))
        inputs, targets = given
        if self.input_names:
            inputs = dict(zip(self.input_names, self._in_order(inputs), strict=True))
        if self.labels is None and has_text(targets):
            raise DataError("data: the targets are text, but the model was trained on numbers; pass numbers of classes")
        options: dict[str, Any] = {"normalize": self.normalize, "labels": self.labels}
        data = pooled([(inputs, targets)], None, self.kind, self.classes, "data", **options)
        self._check_shape(data.examples.inputs)
        return data.examples

    def _in_order(self, given: Any) -> list[Any]:
        """The inputs in the order of a batch."""
        given = named_inputs(given)
        if not isinstance(given, Mapping):
            if len(self.input_names) > 1:
                raise DataError(f"inputs: the model needs {' and '.join(self.input_names)}: pass a dict of arrays")
            return [given]
        missing = [name for name in self.input_names if name not in given]
        if missing or not self.input_names:
            wanted = f"a dict with {' and '.join(self.input_names)}" if self.input_names else "an array"
            raise DataError(f"inputs: {wanted} is allowed, not a dict with {' and '.join(map(str, given))}")
        return [given[name] for name in self.input_names]

    def _check_shape(self, inputs: Tensor) -> None:
        # Sequences may have another length than in training.
        if self.kind != "next_token" and not self.input_names and tuple(inputs.shape[1:]) != self.input_shape:
            wanted = ", ".join(["examples", *map(str, self.input_shape)])
            raise DataError(f"inputs: shape {tuple(inputs.shape)}, but the model was trained on ({wanted})")
