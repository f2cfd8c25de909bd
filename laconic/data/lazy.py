"""Torch data sets as clients, read batch by batch, so that random augmentation in a data set works and repeats."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from laconic.core.counts import counted
from laconic.core.errors import DataError
from laconic.core.randomness import seeded
from laconic.core.user_code import blamed, one_line
from laconic.data.arrays import Pair, check_labels, first_line, from_arrays, in_order, of_kind, without_empty
from laconic.data.checks import check_examples
from laconic.data.columns import Columns
from laconic.data.doubts import doubt_classes, doubt_kind, doubt_repeats, doubt_tokens
from laconic.data.federated import (
    Examples,
    FederatedData,
    Indices,
    Kind,
    Normalize,
    add_to_digest,
    check_shapes,
    described,
)
from laconic.data.scales import checked_normalize

FIXED_SEED = 0
"""The seed under which examples are read outside of training."""
FEW = 8
"""Samples that are dicts, and are read to find out what their columns are."""
BLOCK = 256
"""Examples that are read at once in a pass over all data."""


class LazyData:
    """One map-style torch data set per client, read batch by batch. `from_datasets` builds it."""

    def __init__(
        self,
        datasets: Sequence[Dataset[Any]],
        test: Pair | None = None,
        kind: Kind | None = None,
        classes: int | None = None,
        name: str = "datasets",
        normalize: Normalize | None = None,
        labels: Sequence[str] | None = None,
        columns: Columns | None = None,
    ) -> None:
        self.name, self.classes = name, classes
        self._datasets, self._columns = datasets, columns or Columns()
        self.labels = None if labels is None else tuple(labels)
        self.labels_found = False
        self.client_names: tuple[str, ...] | None = None
        inputs, targets = self._stacked(0, [0], FIXED_SEED)
        doubt_repeats(name, (inputs, targets), self._stacked(0, [0], FIXED_SEED))
        parts: dict[str | None, Tensor] = inputs if isinstance(inputs, dict) else {None: inputs}
        self.input_names = tuple(part for part in parts if part is not None)
        self._shapes = {part: tuple(tensor.shape[1:]) for part, tensor in parts.items()}
        self.input_shape: tuple[int, ...] = next(iter(self._shapes.values()))
        self.columns = self._columns.of_table(self.input_names, self.input_shape)
        self.normalize = checked_normalize(name, normalize, self.input_shape)
        self.kind: Kind = kind or _kind_of(targets)
        if self.kind != "regression":
            self._set_classes(targets, test, kind)
        if isinstance(targets, Tensor):
            doubt_tokens(name, self.kind, [*parts.values()], targets)
        self.test = None if test is None else self._examples(f"{name} (test)", *test)

    def __len__(self) -> int:
        return len(self._datasets)

    def __repr__(self) -> str:
        """A summary without the data."""
        examples = counted(int(self.sizes().sum()), "example")
        return f"<{self.name}: {counted(len(self), 'client')}, {examples} read lazily, {described(self)}>"

    @property
    def selection(self) -> Columns:
        """The input and target columns of samples that are dicts."""
        return self._columns

    def size(self, client: int) -> int:
        """Number of examples of a client."""
        return len(self._datasets[client])  # type: ignore[arg-type]

    def sizes(self) -> Indices:
        """Number of examples of every client."""
        return np.array([self.size(client) for client in range(len(self))], dtype=np.int64)

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """A client's examples at `positions`, read under a fixed seed."""
        return self.augmented(client, positions, dtype, FIXED_SEED)

    def augmented(self, client: int, positions: Indices, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
        """A client's examples at `positions`, read with the generators of torch, NumPy and `random` seeded."""
        inputs, targets = self._stacked(client, positions.tolist(), seed)
        examples = self._examples(f"{self.name}, client {client}", inputs, targets, positions.tolist())
        return examples.batch(torch.arange(len(examples)), dtype)

    def targets(self) -> np.ndarray[Any, Any]:
        """The targets of all clients' examples, in order, by reading each of them once."""
        parts = [self._targets(client) for client in range(len(self))]
        return np.concatenate([self._encoded(part).numpy() for part in parts])

    def part(self, clients: Sequence[int]) -> Self:
        """The same data with some of the clients only."""
        names = None if self.client_names is None else [self.client_names[client] for client in clients]
        return self._with([self._datasets[client] for client in clients]).named(names)

    def divided(self, split: Sequence[Indices]) -> Self:
        """The same examples with other clients; `split` numbers the examples of all clients in order."""
        whole: Dataset[Any] = ConcatDataset(self._datasets) if len(self) > 1 else self._datasets[0]
        return self._with([Subset(whole, indices.tolist()) for indices in split]).named(None)

    def named(self, names: Sequence[str] | None) -> Self:
        """The same data with names of the clients, or without."""
        other = copy.copy(self)
        other.client_names = None if names is None else tuple(names)
        return other

    def selected(self, positions: Sequence[Indices]) -> Self:
        """The same clients with some of their examples."""
        pairs = zip(self._datasets, positions, strict=True)
        return self._with([Subset(dataset, chosen.tolist()) for dataset, chosen in pairs])

    def without_test(self) -> Self:
        """The same clients without the test set, to send to another process."""
        other = self._with(self._datasets)
        other.test = None
        return other

    def fingerprint(self) -> str:
        """Return the sha256 of sizes, test set, and every client's first and last example, read under a fixed seed."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.kind}/{self.classes}/{self.labels}/{self.sizes().tolist()}".encode())
        ends = [self.batch(client, np.array([0, self.size(client) - 1])) for client in range(len(self))]
        if self.test is not None:
            ends.append(tuple(self.test.tensors()))
        for tensor in (tensor for pair in ends for tensor in pair):
            add_to_digest(digest, tensor)
        return digest.hexdigest()

    def _with(self, datasets: Sequence[Dataset[Any]]) -> Self:
        other = copy.copy(self)
        other.__dict__.pop("_fingerprint", None)
        other._datasets = datasets
        return other

    def _stacked(self, client: int, positions: Sequence[int], seed: int) -> Pair:
        where = f"{self.name}, client {client}"
        return stacked(where, self._datasets[client], positions, self._columns, seed)

    def _examples(self, where: str, inputs: Any, targets: Any, numbers: Sequence[int] | None = None) -> Examples:
        main, *more = map(torch.as_tensor, in_order(where, inputs, self.input_names))
        extra = dict(zip(self.input_names[1:], more, strict=True))
        encoded = of_kind(where, self._encoded(targets), self.kind)
        examples = Examples(main, encoded, self.normalize, extra, next(iter(self.input_names), None))
        check_examples(where, main, encoded, self.kind, self.classes, numbers, extra)
        check_shapes(f"{where}: an", examples, self._shapes, "the first input of client 0")
        return examples

    def _encoded(self, targets: Any) -> Tensor:
        if not _is_text(targets):
            return torch.as_tensor(targets)
        known = check_labels(self.name, np.array(targets, dtype=object), self.labels)
        return torch.tensor([known.index(label) for label in targets])

    def _targets(self, client: int) -> Any:
        """All targets of a client: a tensor, or an array of text."""
        positions = range(self.size(client))
        blocks = [positions[start : start + BLOCK] for start in range(0, len(positions), BLOCK)]
        parts = [self._stacked(client, block, FIXED_SEED)[1] for block in blocks]
        return torch.cat(parts) if isinstance(parts[0], Tensor) else np.concatenate(parts)

    def _set_classes(self, targets: Any, test: Pair | None, kind: Kind | None) -> None:
        """Set the number of classes from the labels. Read all examples if this number or the text labels are unknown."""
        self.classes = self.classes or len(self.labels or ()) or None
        if self.classes is None or not (isinstance(targets, Tensor) or self.labels):
            self._find_classes(test, kind)

    def _find_classes(self, test: Pair | None, kind: Kind | None) -> None:
        """Collect the text labels, or count the classes, in one pass over all examples."""
        train = [self._targets(client) for client in range(len(self))]
        found = [*train, *([] if test is None else [test[1]])]
        texts = [part for part in found if _is_text(part)]
        if texts and len(texts) < len(found):
            raise DataError(f"{self.name}: some targets are numbers, but others are text")
        if texts:
            self.labels_found = self.labels is None
            self.labels = check_labels(self.name, np.concatenate(texts), self.labels)
            self.classes = len(self.labels)
        else:
            self.classes = 1 + max(int(torch.as_tensor(part).to(torch.int64).max()) for part in found if len(part))
        if self.kind == "classification":
            tested = None if test is None else self._encoded(test[1])
            self._doubt(torch.cat([self._encoded(part) for part in train]), tested, kind)

    def _doubt(self, targets: Tensor, tested: Tensor | None, kind: Kind | None) -> None:
        """Warn if the kind of task or the classes, where they were not given, are probably wrong."""
        assert self.classes is not None
        if kind is None and self.labels is None and doubt_kind(self.name, targets, self.classes):
            return
        if self.labels is None or self.labels_found:
            doubt_classes(self.name, targets, tested, self.classes, self.labels)


def from_datasets(
    clients: Sequence[Dataset[Any]],
    test: Dataset[Any] | Pair | None = None,
    kind: Kind | None = None,
    classes: int | None = None,
    name: str = "datasets",
    normalize: Normalize | None = None,
    labels: Sequence[str] | None = None,
    *,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    in_memory: bool = False,
    skip_empty: bool = False,
) -> FederatedData | LazyData:
    """Build federated data from one map-style torch data set per client.

    A sample is a pair (input, target) or a dict. Data sets are read batch by batch, so that random augmentation differs
    between epochs. Each batch is read with torch, NumPy and `random` seeded, so a run is reproducible. `TensorDataset`,
    its subsets and lists are not random and are read at once, as is the test set.

    Args:
        clients: The data set of each client.
        test: The data set, or pair of arrays, that the server evaluates the model on.
        kind: As for `from_arrays`.
        classes: Without it, classification takes one pass over all examples to count the classes.
        name: The name of the data in tables and reports.
        normalize: As for `from_arrays`.
        labels: As for `from_arrays`.
        inputs: The input's key, or several keys of numbers, if samples are dicts. Default: the keys of a tokenizer, if
            there are some; otherwise all keys but those with names of targets and clients.
        target: The target's key, if samples are dicts. Default: "label", "labels" or "target".
        in_memory: Read every example once and keep it. Random augmentation is then frozen.
        skip_empty: Leave out clients without examples instead of refusing them.
    """
    for client, dataset in enumerate(clients):
        check_map_style(f"{name}, client {client}", dataset)
    clients = without_empty(name, clients, lambda dataset: len(dataset), skip_empty)  # type: ignore[arg-type]
    columns, kind = columns_of(name, clients[0], inputs, target, kind)
    columns.doubt(name)
    classes = classes or len(columns.classes) or None
    if test is None or isinstance(test, tuple):
        test_pair = test
    else:
        test_pair = read(f"{name} (test)", test, columns)
    tables = [_table(f"{name}, client {client}", dataset, columns) for client, dataset in enumerate(clients)]
    if not in_memory and any(pair is None for pair in tables):
        return LazyData(clients, test_pair, kind, classes, name, normalize, labels, columns)
    pairs = [
        read(f"{name}, client {client}", dataset, columns) if pair is None else pair
        for client, (dataset, pair) in enumerate(zip(clients, tables, strict=True))
    ]
    data = from_arrays(pairs, test_pair, kind, classes, name, normalize, labels)
    table_columns = columns.of_table(data.input_names, data.input_shape)
    return replace(data, labels=data.labels or columns.classes or None, columns=table_columns, selection=columns)


def columns_of(
    name: str, dataset: Any, inputs: str | Sequence[str] | None, target: str | None, kind: Kind | None
) -> tuple[Columns, Kind | None]:
    """Which columns are input and target, as the first client shows it, and the kind of task: next tokens, or as given."""
    where = f"{name}, client 0"
    with seeded(FIXED_SEED):
        samples = _samples(where, dataset, range(min(1, len(dataset))))
        if samples and isinstance(samples[0], Mapping):
            samples = _samples(where, dataset, range(min(FEW, len(dataset))))
    try:
        given = Columns(inputs, target, next_token=kind == "next_token")
        columns = given.resolved(dataset, samples, guess=kind is None)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    return columns, "next_token" if columns.next_token else kind


def check_map_style(where: str, dataset: Any) -> None:
    """Refuse data whose batches could not be repeated."""
    if isinstance(dataset, DataLoader):
        raise DataError(f"{where}: DataLoader makes batches of its own; pass its data set: loader.dataset")
    is_iterable = isinstance(dataset, IterableDataset)
    if is_iterable or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{where}: {type(dataset).__name__} has no length and numbered samples, which batches that repeat need; "
            "write a Dataset with __len__ and __getitem__, or read it into a list: list(dataset)"
        )


def _table(where: str, dataset: Any, columns: Columns) -> Pair | None:
    """All examples of a data set that is not random. None for others."""
    if type(dataset) is list:
        return stacked(where, dataset, range(len(dataset)), columns, FIXED_SEED)
    try:
        return columns.tensors(dataset)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error


def read(where: str, dataset: Any, columns: Columns) -> Pair:
    """All examples of a data set, read once under a fixed seed."""
    check_map_style(where, dataset)
    if len(dataset) == 0:
        raise DataError(f"{where} has no examples")
    pair = _table(where, dataset, columns)
    return stacked(where, dataset, range(len(dataset)), columns, FIXED_SEED) if pair is None else pair


def stacked(where: str, dataset: Any, positions: Sequence[int], columns: Columns, seed: int) -> Pair:
    """The examples at `positions`, read with the global generators seeded. Text targets are an array of objects."""
    inputs: list[Any] = []
    targets: list[Any] = []
    with seeded(seed):
        samples = _samples(where, dataset, positions)
        for position, sample in zip(positions, samples, strict=True):
            try:
                value, target = columns.pair(sample)
            except (TypeError, ValueError, RuntimeError) as error:
                reason = f"sample {position} is not a pair of numbers or arrays ({first_line(error)})"
                raise DataError(f"{where}: {reason}") from error
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            inputs.append(value)
            targets.append(target)
    try:
        is_text = isinstance(targets[0], str)
        return _stack(where, inputs, positions), np.array(targets, dtype=object) if is_text else torch.stack(targets)
    except (RuntimeError, TypeError, KeyError) as error:
        raise DataError(f"{where}: the samples differ in shape ({first_line(error)})") from error


def _stack(where: str, inputs: list[Any], positions: Sequence[int]) -> Any:
    if not isinstance(inputs[0], dict):
        return torch.stack(inputs)
    names, first = tuple(inputs[0]), f"sample {positions[0]}"
    samples = zip(positions, inputs, strict=True)
    rows = [in_order(f"{where}, sample {position}", sample, names, first) for position, sample in samples]
    return dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))


def _samples(where: str, dataset: Any, positions: Sequence[int]) -> list[Any]:
    try:
        if hasattr(dataset, "__getitems__"):
            return list(dataset.__getitems__(list(positions)))
        return [dataset[position] for position in positions]
    except Exception as error:
        location = blamed(error)
        at = f" at {location[0]}" if location else ""
        raise DataError(f"{where}: reading samples failed{at}: {one_line(error)}") from error


def _kind_of(targets: Any) -> Kind:
    """The kind of task that a client's first target suggests."""
    return "regression" if isinstance(targets, Tensor) and targets.is_floating_point() else "classification"


def _is_text(targets: Any) -> bool:
    return not isinstance(targets, Tensor) and len(targets) > 0 and isinstance(targets[0], str)
