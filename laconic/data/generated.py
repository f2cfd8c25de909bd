"""Data that is generated or opened on demand, for more clients than fit in memory."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from laconic.core.counts import counted
from laconic.core.errors import ConfigError, DataError
from laconic.core.lru import LRUCache
from laconic.data.checks import check_examples
from laconic.data.federated import Array, Examples, Indices, Kind, Normalize, add_to_digest
from laconic.data.scales import checked_normalize

Make = Callable[[int], tuple[Array, Array]]
Size = Callable[[int], int]
Augment = Callable[[Tensor, int], Tensor]
"""A function of compact inputs and a seed."""


class GeneratedData:
    """Data generated or opened on demand, for more clients than fit in memory.

    Args:
        size: Number of examples of every client, or a function of the client that returns it.
        make: Returns a client's (inputs, targets): the same arrays on every call.
        cache: Number of most recently used clients kept in memory.

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
        self.normalize = normalize
        self._cache: LRUCache[int, Examples] = LRUCache(cache)
        if test is not None:
            check_examples(f"{name} (test)", test.inputs, test.targets, kind, classes)
        self.input_shape: tuple[int, ...] = tuple(self._examples(0).inputs.shape[1:])
        self.normalize = checked_normalize(name, normalize, self.input_shape)

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        """Number of examples of a client."""
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
                digest.update(str(client).encode())
                add_to_digest(digest, tensor)
        return digest.hexdigest()

    def fingerprint(self) -> str:
        """Return the sha256 of the first and the last client, which detects a different seed but not every difference."""
        return self._fingerprint

    def with_augmentation(self, augmentation: Augment) -> AugmentedGeneratedData:
        """Return the same data with augmented training batches: `augmentation(compact inputs, seed)` changes them."""
        return AugmentedGeneratedData(self, augmentation)

    def selected(self, positions: Sequence[Indices]) -> GeneratedData:
        """The same clients with some of their examples."""
        other = self.without_cache()
        other.__dict__.pop("_fingerprint", None)
        other.test = self.test
        other._size = [len(chosen) for chosen in positions].__getitem__
        other._make = partial(_selected, self._make, positions)
        return other

    def without_cache(self) -> GeneratedData:
        """Return a copy without cached clients and test set, to send to another process."""
        other = copy.copy(self)
        other.test, other._cache = None, LRUCache(self._cache.limit)
        return other

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """A client's examples at `positions`, generated unless the client is cached."""
        return self._examples(client).batch(torch.from_numpy(np.ascontiguousarray(positions)), dtype)

    def _examples(self, client: int) -> Examples:
        if not 0 <= client < self._clients:
            raise DataError(f"{self.name}: there is no client {client}; allowed: 0..{self._clients - 1}")
        examples = self._cache.get(client)
        if examples is None:
            inputs, targets = (torch.as_tensor(part) for part in self._make(client))
            where = f"{self.name}, client {client}"
            check_examples(where, inputs, targets, self.kind, self.classes)
            if len(inputs) != self.size(client):
                raise DataError(
                    f"{where}: make returned {counted(len(inputs), 'example')}, but size is {self.size(client)}"
                )
            examples = Examples(inputs, targets, self.normalize)
            self._cache.put(client, examples)
        return examples


class AugmentedGeneratedData(GeneratedData):
    """Generated data whose training batches are augmented. Evaluations get them unchanged."""

    def __init__(self, data: GeneratedData, augmentation: Augment) -> None:
        vars(self).update(vars(data))
        self._augmentation = augmentation

    def augmented(self, client: int, positions: Indices, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
        """A client's examples at `positions`, augmented."""
        indices = torch.from_numpy(np.ascontiguousarray(positions))
        return self._examples(client).batch(indices, dtype, lambda inputs: self._augmentation(inputs, seed))


def _selected(make: Make, positions: Sequence[Indices], client: int) -> tuple[Tensor, Tensor]:
    inputs, targets = make(client)
    chosen = torch.from_numpy(positions[client])
    return torch.as_tensor(inputs)[chosen], torch.as_tensor(targets)[chosen]
