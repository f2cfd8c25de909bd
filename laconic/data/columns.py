"""Samples of data sets as pairs (input, target): pairs already, or dicts with named columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from laconic.core.errors import DataError, warn
from laconic.data.arrays import Pair, named_inputs
from laconic.data.doubts import equal_where_counted
from laconic.data.federated import Array, Selection

TOKENS = ("input_ids", "attention_mask", "token_type_ids")
"""The columns of a tokenizer."""
TARGETS = ("label", "labels", "target")
"""Names of a target column that is not given."""
CLIENT_COLUMNS = ("client", "client_id")
"""Names of a column of clients that is not given."""
NUMBERS = ("idx", "id", "index")
"""Columns that number the examples. Nobody misses them among the inputs."""


@dataclass(frozen=True)
class Columns(Selection):
    """Reads the input and target columns of samples."""

    def names(self, present: Iterable[str]) -> tuple[list[str], str]:
        """The input columns and the target column, among those that are present."""
        known = list(present)
        tokens = [name for name in TOKENS if name in known]
        target = self._target(known, tokens[:1] if self.next_token else [])
        others = [name for name in known if name not in (target, *TARGETS, *CLIENT_COLUMNS)]
        inputs = self._given_inputs() or tokens or others
        self._check(known, inputs, target)
        return list(self.order) or inputs, target

    def _given_inputs(self) -> list[str]:
        return [self.inputs] if isinstance(self.inputs, str) else list(self.inputs or ())

    def _check(self, known: Sequence[str], inputs: Sequence[str], target: str) -> None:
        """Refuse columns that are missing, and input columns that differ from those of the first client."""
        for name in (*inputs, target):
            if name not in known:
                raise DataError(f"there is no column '{name}'; allowed: {', '.join(known)}")
        if not inputs:
            raise DataError(f"there is no input beside the target '{target}'")
        if self.order and {*inputs} != {*self.order}:
            raise DataError(
                f"the input columns are {', '.join(inputs)}, but those of the first client are {', '.join(self.order)}; "
                "name them: inputs=[COLUMN, …]"
            )

    def resolved(self, dataset: Any, samples: Sequence[Any], guess: bool) -> Columns:
        """The columns for all data sets, as one of them and its first samples show them.

        With `guess`, labels that equal the tokens, the usual form for language models, and tokens without labels mean next
        tokens.
        """
        if not samples or not isinstance(samples[0], Mapping):
            return self
        columns = replace(self, next_token=self.next_token or (guess and self._are_tokens(samples)))
        inputs, target = columns.names(samples[0])
        found = None if target in inputs else target
        others = [name for name in samples[0] if name not in (*inputs, target)]
        left_out = [] if self.inputs else [name for name in others if _is_missed(name, inputs, samples[0][name])]
        columns = replace(columns, order=tuple(inputs), found=found, left_out=tuple(left_out))
        return replace(columns, classes=columns.class_names(dataset))

    def doubt(self, name: str) -> None:
        """Warn of columns that are no inputs, although nobody said so."""
        if self.left_out:
            columns = " and ".join(f"'{column}'" for column in self.left_out)
            reason = "" if TOKENS[0] in self.order else ", which may give the target away"
            named = [*self.order[:1], "…", *self.left_out]
            which = "it" if len(self.left_out) == 1 else "them"
            warn(f"{name}: the model does not get {columns}{reason}; to pass {which}, name all inputs: inputs={named}")

    @classmethod
    def of_training(
        cls, trained: Selection, inputs: Sequence[str], classes: Sequence[str], next_token: bool
    ) -> Columns:
        """The columns of training for further data sets, which may have more. `inputs` are those of a table."""
        names = trained.order or tuple(inputs) or None
        return cls(names, trained.target, next_token, classes=tuple(classes), found=trained.found)

    def _are_tokens(self, samples: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the targets are the tokens themselves wherever they count, or the only column is one of tokens."""
        tokens = TOKENS[0]
        if tokens not in samples[0] or self.inputs is not None:
            return False
        if self.target is None and not any(name in samples[0] for name in TARGETS):
            return True
        _, target = self.names(samples[0])
        try:
            pairs = [(as_tensor(sample[tokens]), as_tensor(sample[target])) for sample in samples]
        except (TypeError, ValueError, RuntimeError):  # text, or no rectangular array
            return False
        return all(equal_where_counted(*pair) for pair in pairs)

    def of_table(self, names: Sequence[str], shape: Sequence[int]) -> tuple[str, ...] | None:
        """The names of the columns, if they are joined to one input without a name of this shape; otherwise None."""
        return self.order if not names and tuple(shape) == (len(self.order),) else None

    def class_names(self, dataset: Any) -> tuple[str, ...]:
        """The names of the classes, if the target column of a Hugging Face data set has them."""
        if not is_hugging_face(dataset) or dataset.format["type"] == "custom":
            return ()
        _, target = self.names(shown(dataset))
        return tuple(getattr(dataset.features[target], "names", None) or ())

    def _target(self, known: Sequence[str], tokens: Sequence[str]) -> str:
        found = [name for name in (self.found, *TARGETS) if name is not None and name in known]
        target = self.target or next(iter([*found, *tokens]), None)
        if target is None:
            raise DataError(f"no target among the columns {', '.join(known)}; name it: target=COLUMN")
        return target

    def pair(self, sample: Any) -> Pair:
        """A sample's input and target. Text targets stay text."""
        if isinstance(sample, Mapping):
            names, target_name = self.names(sample)
            columns = {name: as_tensor(sample[name]).unsqueeze(0) for name in names}
            joined = _joined(columns)
            target = sample[target_name]
            if self.next_token:
                joined, targets = _shifted(joined, as_tensor(target).unsqueeze(0))
                target = targets[0]
            inputs = {name: part[0] for name, part in joined.items()} if isinstance(joined, dict) else joined[0]
        else:
            first, *more, target = sample
            parts = first if isinstance(first, tuple) and not more else (first, *more)
            tensors = tuple(map(as_tensor, parts))
            inputs = tensors[0] if len(tensors) == 1 else named_inputs(tensors)
        return inputs, target if isinstance(target, str) else torch.as_tensor(target)

    def tensors(self, dataset: Any) -> Pair | None:
        """All examples of a data set that is a table of tensors. None if samples are computed when they are read."""
        if type(dataset) is TensorDataset and len(dataset.tensors) > 1:
            *inputs, targets = dataset.tensors
            return named_inputs(tuple(inputs)) if len(inputs) > 1 else inputs[0], targets
        if type(dataset) is Subset:
            whole = self.tensors(dataset.dataset)
            return None if whole is None else _rows(whole, torch.as_tensor(dataset.indices, dtype=torch.int64))
        if is_hugging_face(dataset) and dataset.format["type"] != "custom":
            return self._hugging_face(dataset)
        return None

    def _hugging_face(self, dataset: Any) -> Pair:
        names, target = self.names(shown(dataset))
        table = dataset.with_format("torch", columns=[*names, target])[:]
        for name in names:
            if not isinstance(table[name], Tensor):
                raise DataError(f"column '{name}' {_fault(name, table[name])}")
            if type(dataset.features[name]).__name__ == "Image":
                table[name] = torch.from_numpy(eight_bits(table[name].numpy()))
        targets = table[target]
        if isinstance(targets, Tensor) and targets.dtype == torch.bool:
            targets = targets.to(torch.int64)
        targets = self._numbered(self.class_names(dataset), targets)
        joined = _joined({name: table[name] for name in names})
        return _shifted(joined, targets) if self.next_token else (joined, targets)

    def _numbered(self, names: Sequence[str], targets: Any) -> Any:
        """Class numbers as those of the first client, by the names of the classes."""
        if not self.classes or not names or tuple(names) == self.classes:
            return targets
        unknown = [name for name in names if name not in self.classes]
        if unknown:
            raise DataError(f"class '{unknown[0]}' is not among those of training: {', '.join(self.classes)}")
        numbers = torch.tensor([self.classes.index(name) for name in names])
        return torch.where(targets < 0, targets, numbers[targets.clamp(min=0)])


def is_hugging_face(dataset: object) -> bool:
    """Whether an object is a `datasets.Dataset`."""
    return all(hasattr(dataset, name) for name in ("column_names", "with_format", "format", "features", "__getitem__"))


def shown(dataset: Any) -> list[str]:
    """The visible columns of a Hugging Face data set.

    The columns selected by `with_format`; all columns if none are selected or `output_all_columns` is set.
    """
    selected = None if dataset.format.get("output_all_columns") else dataset.format["columns"]
    return list(selected or dataset.column_names)


def _is_missed(name: str, inputs: Sequence[str], value: Any) -> bool:
    """Whether a column that is no input has numbers. Clients are not missed; beside tokens, labels are not, either."""
    expected = (*NUMBERS, *TARGETS) if TOKENS[0] in inputs else ()
    if name in (*expected, *CLIENT_COLUMNS) or isinstance(value, str) or value is None:
        return False
    try:
        as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True


def as_tensor(value: Any) -> Tensor:
    """A number, an array, or an image of Pillow (uint8, channels first) as a tensor."""
    if hasattr(value, "getbands"):
        pixels = torch.from_numpy(eight_bits(np.array(value)))
        return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    return torch.as_tensor(value)


def eight_bits(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Pixels of 16 bits as pixels of 8 bits. Others are unchanged."""
    return np.round(pixels / 257).astype(np.uint8) if pixels.dtype.kind == "u" and pixels.itemsize == 2 else pixels


def _shifted(inputs: Array, targets: Tensor) -> Pair:
    """Sequences without their last token, and the token after each. Padding does not count."""
    parts = inputs if isinstance(inputs, dict) else {"input_ids": inputs}
    targets = targets[:, 1:].clone()
    if "attention_mask" in parts:
        targets[parts["attention_mask"][:, 1:] == 0] = -100
    shorter = {name: part[:, :-1] for name, part in parts.items()}
    return (shorter if isinstance(inputs, dict) else shorter["input_ids"]), targets


def _joined(columns: Mapping[str, Tensor]) -> Array:
    """[N, …]: one column, or several columns of numbers side by side; a dict of several columns of arrays."""
    if len(columns) > 1 and all(column.ndim > 1 for column in columns.values()):
        return dict(columns)
    for name, column in columns.items():
        if len(columns) > 1 and column.ndim != 1:
            raise DataError(
                f"column '{name}' has values of shape {tuple(column.shape[1:])}, one of {len(columns)} input columns; "
                "name one of them: inputs=COLUMN"
            )
    if all(column.ndim == 1 for column in columns.values()):
        return torch.stack([column.to(torch.float32) for column in columns.values()], 1)
    return next(iter(columns.values()))


def _rows(pair: Pair, indices: Tensor) -> Pair:
    inputs, targets = pair
    chosen = {name: part[indices] for name, part in inputs.items()} if isinstance(inputs, dict) else inputs[indices]
    if isinstance(targets, Tensor):
        return chosen, targets[indices]
    return chosen, [targets[index] for index in indices.tolist()]


def _fault(name: str, values: Sequence[Any]) -> str:
    if any(isinstance(value, str) for value in values):
        return "is text; convert it to numbers or tokens first, or name the inputs: inputs=[COLUMN, …]"
    if any(value is None for value in values):
        return f"has no value in row {next(row for row, value in enumerate(values) if value is None)}"
    if name in TOKENS:
        return "has sequences of different lengths; pad them: tokenizer(…, padding='max_length', max_length=128)"
    return "has values of different shapes; resize or pad them first"
