"""Examples, and who holds them.

A data set is one compact pool of examples plus, for every client, the positions of its own examples in the
pool. An engine sees neither: it sees `ClientData`, so that data which does not fit in memory can be
generated on demand.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from laconic.core.errors import ConfigError, DataError
from laconic.core.lru import LRUCache
from laconic.data.checks import check_examples, check_indices

Kind = Literal["classification", "regression", "next_token"]
Indices = npt.NDArray[np.int64]
Normalize = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets as they are stored: uint8 images (NCHW), small-integer tokens, float32 features.

    `normalize` is (mean, standard deviation) per channel of the inputs divided by 255.

    >>> white = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    >>> images = Examples(white, torch.tensor([0, 1]), normalize=((0.5,), (0.25,)))
    >>> images.batch(torch.tensor([1]))
    (tensor([[[[2., 2.],
              [2., 2.]]]]), tensor([1]))
    """

    inputs: Tensor
    targets: Tensor
    normalize: Normalize | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """The examples at `indices`, ready for a model: one gather each, then arithmetic in place."""
        indices = indices.to(self.inputs.device)
        inputs = self.inputs.index_select(0, indices)
        targets = self.targets.index_select(0, indices)
        return self._ready(inputs, dtype), targets.to(_target_dtype(targets, dtype))

    def to(self, device: str | torch.device) -> Examples:
        """The same examples on another device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))

    def _ready(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        if self.normalize is None:
            return inputs.to(dtype if inputs.is_floating_point() else torch.int64)
        # Half precision has too few bits for the two steps; it is rounded once, at the end.
        working = dtype if dtype.itemsize >= 4 else torch.float32
        if working not in self._affine:
            self._affine[working] = self._scale_and_shift(self.normalize, working)
        scale, shift = self._affine[working]
        ready = inputs.to(working).mul_(scale).add_(shift)
        return ready if working == dtype else ready.to(dtype)

    @cached_property
    def _affine(self) -> dict[torch.dtype, tuple[Tensor, Tensor]]:
        return {}

    def _scale_and_shift(self, normalize: Normalize, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(x/255 - mean)/std as one multiplication and one addition per channel."""
        mean, deviation = (torch.tensor(values, dtype=torch.float64) for values in normalize)
        shape = (-1, *[1] * (self.inputs.ndim - 2))
        scale, shift = 1 / (255 * deviation), -mean / deviation
        device = self.inputs.device
        return scale.view(shape).to(device, dtype), shift.view(shape).to(device, dtype)


def compact(values: Tensor) -> Tensor:
    """Double precision is what NumPy happens to make; models are trained in float32."""
    return values.to(torch.float32) if values.dtype == torch.float64 else values


def _target_dtype(targets: Tensor, dtype: torch.dtype) -> torch.dtype:
    return dtype if targets.is_floating_point() else torch.int64


@runtime_checkable
class ClientData(Protocol):
    """All that an engine asks of data: anything with these members can be trained on."""

    @property
    def kind(self) -> Kind:
        """What the targets mean; decides loss and metrics."""

    @property
    def classes(self) -> int | None:
        """Number of classes or tokens; None for regression."""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def test(self) -> Examples | None:
        """Examples that no client holds."""

    def __len__(self) -> int:
        """Number of clients."""

    def size(self, client: int) -> int:
        """Number of examples that a client holds."""

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """A client's examples at `positions` (0..size-1, in the client's own order)."""


def sizes_of(data: ClientData) -> Indices:
    """Number of examples of every client."""
    if isinstance(data, FederatedData | GeneratedData):
        return data.sizes()
    return np.fromiter((data.size(client) for client in range(len(data))), np.int64, len(data))


@dataclass(frozen=True, eq=False)
class FederatedData:
    """Examples in memory and their split over clients; a client's own order of examples is kept."""

    name: str
    kind: Kind
    examples: Examples
    clients: Sequence[Indices]
    test: Examples | None = None
    classes: int | None = None
    labels: tuple[str, ...] | None = None
    """What the classes are called, where they were given as text."""
    labels_found: bool = False
    """Whether their order is that of these examples alone, so that others may number them otherwise."""

    def __post_init__(self) -> None:
        for part, examples in (("train", self.examples), ("test", self.test)):
            if examples is not None:
                where = f"{self.name} ({part})"
                check_examples(where, examples.inputs, examples.targets, self.kind, self.classes)
        if self.test is not None and self.test.inputs.shape[1:] != self.examples.inputs.shape[1:]:
            raise DataError(
                f"{self.name}: a test input has shape {tuple(self.test.inputs.shape[1:])}, "
                f"a training input {self.input_shape}"
            )
        check_indices(self.name, self.clients, len(self.examples))

    def __len__(self) -> int:
        return len(self.clients)

    def __repr__(self) -> str:
        """What a person wants to see, not the numbers themselves."""
        test = 0 if self.test is None else len(self.test)
        held = sum(len(indices) for indices in self.clients)
        classes = "" if self.classes is None else f", {self.classes} classes"
        return f"<{self.name}: {len(self)} clients, {held:,} + {test:,} examples, {self.kind}{classes}>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.examples.inputs.shape[1:])

    def size(self, client: int) -> int:
        """Number of examples that a client holds."""
        return len(self.clients[client])

    def sizes(self) -> Indices:
        """Number of examples of every client."""
        return np.array([len(indices) for indices in self.clients], dtype=np.int64)

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """A client's examples at `positions` (0..size-1, in the client's own order)."""
        return self.examples.batch(torch.from_numpy(self.clients[client][positions]), dtype)

    def label_counts(self) -> Indices:
        """How often every client has every class (or token): [clients, classes]."""
        if self.classes is None:
            raise DataError(f"{self.name}: {self.kind} data has no classes to count")
        targets = self.examples.targets.cpu().numpy()
        counts = [np.bincount(targets[held].ravel(), minlength=self.classes) for held in self.clients]
        return np.stack(counts).astype(np.int64)

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.kind}/{self.classes}/{len(self.clients)}".encode())
        for examples in (self.examples, self.test):
            if examples is None:
                digest.update(b"no test")
                continue
            for tensor in (examples.inputs, examples.targets):
                digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
            digest.update(repr(examples.normalize).encode())
        for indices in self.clients:
            digest.update(len(indices).to_bytes(8, "little"))
            digest.update(indices.astype("<i8").tobytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """The sha256 of contents and split: equal means the same data, clients and order."""
        return self._fingerprint

    def to(self, device: str | torch.device) -> FederatedData:
        """The same data on another device; the split stays on the host."""
        test = None if self.test is None else self.test.to(device)
        return replace(self, examples=self.examples.to(device), test=test)


Array = Any
"""Whatever torch.as_tensor reads: NumPy arrays, tensors, lists of numbers."""
Make = Callable[[int], tuple[Array, Array]]
Size = Callable[[int], int]


class GeneratedData:
    """Data made or opened on demand, for more clients than memory holds: `make(client)` returns its (inputs, targets).

    `make` must return the same arrays each time that it is called for a client, and `size` must know how many examples
    that are without making them. The last `cache` clients are kept.

    >>> def make(client): return torch.full((3, 2), float(client)), torch.zeros(3, dtype=torch.int64)
    >>> million = GeneratedData(1_000_000, 3, make, kind="classification", classes=2)
    >>> len(million), million.input_shape, million.batch(999_999, np.array([0]))[0]
    (1000000, (2,), tensor([[999999., 999999.]]))
    """

    def __init__(
        self,
        clients: int,
        size: int | Size,
        make: Make,
        *,
        kind: Kind,
        classes: int | None = None,
        test: Examples | None = None,
        normalize: Normalize | None = None,
        cache: int = 64,
        name: str = "generated",
    ) -> None:
        if clients < 1:
            raise ConfigError(f"{name}: clients is {clients}; at least 1 is needed")
        self.name, self.kind, self.classes, self.test = name, kind, classes, test
        self._clients, self._size, self._make = clients, size, make
        self._normalize = normalize
        self._cache: LRUCache[int, Examples] = LRUCache(cache)
        if test is not None:
            check_examples(f"{name} (test)", test.inputs, test.targets, kind, classes)
        self.input_shape: tuple[int, ...] = tuple(self._examples(0).inputs.shape[1:])

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        """Number of examples that a client holds."""
        return self._size if isinstance(self._size, int) else self._size(client)

    def sizes(self) -> Indices:
        """Number of examples of every client."""
        if isinstance(self._size, int):
            return np.full(len(self), self._size, dtype=np.int64)
        return np.fromiter(map(self._size, range(len(self))), np.int64, len(self))

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(f"{self.kind}/{self.classes}/{len(self)}".encode())
        for client in {0, len(self) - 1}:
            examples = self._examples(client)
            for tensor in (examples.inputs, examples.targets):
                digest.update(f"{client}{tensor.dtype}{tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """The sha256 of the first and the last client: enough to notice another seed, and no more than that."""
        return self._fingerprint

    def unmade(self) -> GeneratedData:
        """The same clients, none of them made yet, and nothing held out: what another process needs of them."""
        other = copy.copy(self)
        other.test, other._cache = None, LRUCache(self._cache.limit)
        return other

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """A client's examples at `positions`; the client is made first unless it is still in the cache."""
        return self._examples(client).batch(torch.from_numpy(np.ascontiguousarray(positions)), dtype)

    def _examples(self, client: int) -> Examples:
        if not 0 <= client < self._clients:
            raise DataError(f"{self.name}: there is no client {client}; allowed: 0..{self._clients - 1}")
        examples = self._cache.get(client)
        if examples is None:
            inputs, targets = (compact(torch.as_tensor(part)) for part in self._make(client))
            where = f"{self.name}, client {client}"
            check_examples(where, inputs, targets, self.kind, self.classes)
            if len(inputs) != self.size(client):
                raise DataError(f"{where}: {len(inputs)} examples were made, size says {self.size(client)}")
            examples = Examples(inputs, targets, self._normalize)
            self._cache.put(client, examples)
        return examples
