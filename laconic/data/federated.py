"""Federated data sets: examples and their split over clients.

A `FederatedData` is one compact pool of examples plus, for every client, the indices of its examples in the pool.
Engines use the `ClientData` protocol only, so that data too large for memory can be generated on demand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laconic.core.counts import counted
from laconic.core.errors import DataError
from laconic.data.checks import check_examples, check_indices

Kind = Literal["classification", "regression", "next_token", "per_position"]
Indices = npt.NDArray[np.int64]
Normalize = tuple[tuple[float, ...], tuple[float, ...]]
Array = Any
"""Anything that torch.as_tensor accepts: NumPy arrays, tensors, lists of numbers."""


@dataclass(frozen=True)
class Selection:
    """Which columns of a data set are input and target."""

    inputs: str | Sequence[str] | None = None
    target: str | None = None
    next_token: bool = False
    """Whether the targets are the tokens after each token: those of the target column, default input_ids."""
    order: tuple[str, ...] = ()
    """The input columns of the first client. Those of all other data sets are put into this order."""
    classes: tuple[str, ...] = ()
    """The names of the classes of the first client, in order. Those of all other data sets are numbered like these."""
    found: str | None = None
    """The target column of the first client, if `target` is not given. Data sets that have it use it."""
    left_out: tuple[str, ...] = ()
    """Columns of numbers of the first client that could be inputs, but are used only if they are named."""


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets in their compact form: uint8 images (NCHW), small-integer tokens, features.

    Args:
        normalize: (mean, standard deviation) per channel of images or column of a table. Pixels that are integers are
            divided by 255 first.

    >>> white = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    >>> images = Examples(white, torch.tensor([0, 1]), normalize=((0.5,), (0.25,)))
    >>> images.batch(torch.tensor([1]))
    (tensor([[[[2., 2.],
              [2., 2.]]]]), tensor([1]))
    """

    inputs: Tensor
    targets: Tensor
    normalize: Normalize | None = None
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Further inputs by name, such as attention masks. A batch has them between inputs and targets."""
    input_name: str | None = None
    """The name of `inputs`, such as input_ids, if inputs have names."""

    def __post_init__(self) -> None:
        for name, tensor in self.extra.items():
            if len(tensor) != len(self.inputs):
                raise DataError(
                    f"input '{name}' has {counted(len(tensor), 'example')}, but '{self.input_name}' has {len(self)}"
                )

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(
        self, indices: Tensor, dtype: torch.dtype = torch.float32, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the examples at `indices`, normalized and converted for a model. `change` gets compact inputs first."""
        indices = indices.to(self.inputs.device)
        inputs = (self._compact if dtype.itemsize < 8 else self.inputs).index_select(0, indices)
        if change is not None:
            inputs = change(inputs)
        targets = self.targets.index_select(0, indices)
        extra = [_converted(tensor.index_select(0, indices), dtype) for tensor in self.extra.values()]
        return self._model_inputs(inputs, dtype), *extra, _converted(targets, dtype)

    def rows(self, indices: Tensor) -> Examples:
        """Return some of the examples in their compact form."""
        return self._with(lambda tensor: tensor[indices])

    def tensors(self) -> list[Tensor]:
        """All tensors: inputs, further inputs and targets."""
        return [self.inputs, *self.extra.values(), self.targets]

    def shapes(self) -> dict[str | None, tuple[int, ...]]:
        """The shape of one example of each input by name; None is the name of an only input."""
        named: dict[str | None, Tensor] = {self.input_name: self.inputs}
        named.update(self.extra)
        return {name: tuple(tensor.shape[1:]) for name, tensor in named.items()}

    def _with(self, change: Callable[[Tensor], Tensor]) -> Examples:
        extra = {name: change(tensor) for name, tensor in self.extra.items()}
        return replace(self, inputs=change(self.inputs), targets=change(self.targets), extra=extra)

    def to(self, device: str | torch.device) -> Examples:
        """Return the same examples on another device."""
        return self._with(lambda tensor: tensor.to(device))

    def _model_inputs(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        if self.normalize is None:
            return _converted(inputs, dtype)
        # Half precision has too few bits for two steps: compute in float32 and round once at the end.
        working = dtype if dtype.itemsize >= 4 else torch.float32
        if working not in self._affine:
            self._affine[working] = self._scale_and_shift(self.normalize, working)
        scale, shift = self._affine[working]
        return inputs.to(working).mul_(scale).add_(shift).to(dtype)

    @cached_property
    def _compact(self) -> Tensor:
        """The inputs without float64, NumPy's default, which only runs in float64 need."""
        return self.inputs.to(torch.float32) if self.inputs.dtype == torch.float64 else self.inputs

    @cached_property
    def _affine(self) -> dict[torch.dtype, tuple[Tensor, Tensor]]:
        return {}

    def _scale_and_shift(self, normalize: Normalize, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Express (x/255 - mean)/std, or (x - mean)/std, as one multiplication and one addition per channel or column."""
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in normalize)
        shape = (-1, *[1] * (self.inputs.ndim - 2))
        integers = not self.inputs.is_floating_point()
        is_pixels = self.inputs.dtype == torch.uint8 or (integers and self.inputs.ndim > 2)
        scale, shift = 1 / ((255 if is_pixels else 1) * deviation), -mean / deviation
        device = self.inputs.device
        return scale.view(shape).to(device, dtype), shift.view(shape).to(device, dtype)


def check_shapes(where: str, examples: Examples, wanted: Mapping[str | None, tuple[int, ...]], whose: str) -> None:
    """Raise DataError if an input does not have its shape in `wanted`, which is that of `whose` inputs."""
    for name, shape in examples.shapes().items():
        if shape != wanted[name]:
            title = "input" if name is None else f"input '{name}'"
            raise DataError(f"{where} {title} has shape {shape}, {whose} {wanted[name]}")


def _converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype if values.is_floating_point() else torch.int64)


@runtime_checkable
class Described(Protocol):
    """What a model depends on: data, or a description of it."""

    @property
    def kind(self) -> Kind:
        """The kind of task, which determines loss and metrics."""

    @property
    def classes(self) -> int | None:
        """Number of classes or tokens; None for regression."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""


@runtime_checkable
class ClientData(Described, Protocol):
    """The protocol that training requires of data. Any object with these members will do."""

    @property
    def test(self) -> Examples | None:
        """The test set, which no client has."""

    def __len__(self) -> int:
        """Number of clients."""

    def size(self, client: int) -> int:
        """Number of examples of a client."""

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """A client's examples at `positions` (0..size-1, in the client's own order)."""


@runtime_checkable
class AugmentedData(Protocol):
    """The capability of data whose training batches are random, such as randomly cropped images."""

    def augmented(self, client: int, positions: Indices, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
        """The batch for training at `positions`. All of its randomness comes from the seed."""


@runtime_checkable
class NamedInputs(Protocol):
    """The capability of data whose inputs have names, by which a module's `forward` gets them."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of a batch's inputs, in order; empty if they have none."""


def input_names(examples: Examples) -> tuple[str, ...]:
    """The names of the inputs of examples."""
    return () if examples.input_name is None else (examples.input_name, *examples.extra)


@runtime_checkable
class Sized(Protocol):
    """The capability to list all clients' sizes at once."""

    def sizes(self) -> Indices:
        """Number of examples of every client."""


@runtime_checkable
class Fingerprinted(Protocol):
    """The capability to tell whether data is the same as in an earlier process."""

    def fingerprint(self) -> str:
        """A hash of examples and clients."""


def described(data: ClientData) -> str:
    """The kind of task and the number of classes, as in `classification, 10 classes`."""
    return data.kind if data.classes is None else f"{data.kind}, {counted(data.classes, 'class')}"


def sizes_of(data: ClientData) -> Indices:
    """Number of examples of every client."""
    if isinstance(data, Sized):
        return data.sizes()
    return np.fromiter((data.size(client) for client in range(len(data))), np.int64, len(data))


def fingerprint_of(data: ClientData) -> str:
    """The data's own fingerprint, or else a hash of the number of clients and the examples of the first and last one."""
    if isinstance(data, Fingerprinted):
        return data.fingerprint()
    digest = hashlib.sha256(f"{data.kind}/{data.classes}/{len(data)}".encode())
    for client in (0, len(data) - 1):
        for tensor in data.batch(client, np.arange(data.size(client))):
            add_to_digest(digest, tensor)
    return digest.hexdigest()


def add_to_digest(digest: hashlib._Hash, tensor: Tensor) -> None:
    """Hash the type, shape and content of a tensor."""
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    digest.update(tensor.cpu().contiguous().numpy().tobytes())


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Examples in memory and their split over clients. `clients[i]` lists client i's examples in its own order."""

    name: str
    kind: Kind
    examples: Examples
    clients: Sequence[Indices]
    test: Examples | None = None
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    """Names of the classes, if the targets were text."""
    labels_found: bool = False
    """Whether `labels` was collected from these examples alone: another part of the data may number them differently."""
    client_names: tuple[str, ...] | None = None
    """Names of the clients, if the data has them."""
    columns: tuple[Any, ...] | None = None
    """Names of the input's columns, if it was a table. New inputs that are a DataFrame get this order."""
    selection: Selection | None = None
    """The input and target columns, if the examples come from a data set whose samples are dicts, or from a table."""

    def __post_init__(self) -> None:
        for part, examples in (("train", self.examples), ("test", self.test)):
            if examples is not None:
                where = f"{self.name} ({part})"
                check_examples(where, examples.inputs, examples.targets, self.kind, self.classes, extra=examples.extra)
        if self.test is not None:
            check_shapes(f"{self.name}: a test", self.test, self.examples.shapes(), "a training input")
        check_indices(self.name, self.clients, len(self.examples))

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        """A summary without the data."""
        test = 0 if self.test is None else len(self.test)
        examples = f"{self.sizes().sum():,} + {counted(test, 'example')}"
        return f"<{self.name}: {counted(len(self), 'client')}, {examples}, {described(self)}>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.examples.inputs.shape[1:])

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of a batch's inputs; empty if they have none."""
        return input_names(self.examples)

    @property
    def normalize(self) -> Normalize | None:
        """Mean and standard deviation that images are normalized by."""
        return self.examples.normalize

    def size(self, client: int) -> int:
        """Number of examples of a client."""
        return len(self.clients[client])

    def sizes(self) -> Indices:
        """Number of examples of every client."""
        return np.array([len(indices) for indices in self.clients], dtype=np.int64)

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """A client's examples at `positions` (0..size-1, in the client's own order)."""
        return self.examples.batch(torch.from_numpy(self.clients[client][positions]), dtype)

    def targets(self) -> np.ndarray[Any, Any]:
        """The targets of all examples, numbered as in `clients`."""
        return self.examples.targets.cpu().numpy()

    def divided(self, split: Sequence[Indices]) -> Self:
        """The same examples with other clients."""
        return replace(self, clients=split, client_names=None)

    def selected(self, positions: Sequence[Indices]) -> Self:
        """The same clients with some of their examples."""
        pairs = zip(self.clients, positions, strict=True)
        return replace(self, clients=[indices[chosen] for indices, chosen in pairs])

    def named(self, names: Sequence[str]) -> Self:
        """The same data with names of the clients."""
        return replace(self, client_names=tuple(names))

    def part(self, clients: Sequence[int]) -> Self:
        """The same data with some of the clients only."""
        names = None if self.client_names is None else tuple(self.client_names[client] for client in clients)
        return replace(self, clients=[self.clients[client] for client in clients], client_names=names)

    def label_counts(self) -> Indices:
        """Count every client's examples (or tokens) of every class: [clients, classes]."""
        if self.classes is None:
            raise DataError(f"{self.name}: {self.kind} data has no classes to count")
        targets = self.targets()
        counts = [np.bincount(targets[indices].ravel(), minlength=self.classes) for indices in self.clients]
        return np.stack(counts).astype(np.int64)

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.kind}/{self.classes}/{len(self.clients)}".encode())
        for examples in (self.examples, self.test):
            if examples is None:
                digest.update(b"no test")
                continue
            for tensor in examples.tensors():
                add_to_digest(digest, tensor)
            digest.update(repr(examples.normalize).encode())
        for indices in self.clients:
            digest.update(len(indices).to_bytes(8, "little"))
            digest.update(indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the sha256 of examples and split. Equal fingerprints mean equal data, clients and order."""
        return self._fingerprint

    def to(self, device: str | torch.device) -> FederatedData:
        """Return the same data on another device. The split stays on the host."""
        test = None if self.test is None else self.test.to(device)
        return replace(self, examples=self.examples.to(device), test=test)
