"""Payloads: decoded vectors, dense or sparse, that a server can add."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from laconic.compression.entropy import BLOCK, blocks

_PIECE = 1 << 15


class Payload(Protocol):
    """A decoded vector. Adding a sparse one does not make it dense."""

    @property
    def nbytes(self) -> int:
        """The memory that the decoded entries take, in bytes."""
        ...

    def dense(self) -> Tensor:
        """The whole vector."""
        ...

    def norm(self) -> float:
        """The 2-norm in double precision, since squares may overflow in single precision."""
        return float(torch.linalg.vector_norm(self.dense(), dtype=torch.float64))

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector, in place."""
        ...

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        """The same as several calls on disjoint entries, for threads to share. By default one call."""
        return [partial(self.add_to, accumulator, weight)]


class SentPayload(Payload, Protocol):
    """The payload of one body, which knows the entries that were sent."""

    @property
    def positions(self) -> Tensor | None:
        """The positions of the entries that were sent; None if all were."""
        ...

    def write_to(self, vector: Tensor) -> None:
        """Overwrite the entries of `vector` that were sent."""
        ...


@dataclass(frozen=True, slots=True)
class DensePayload(Payload):
    """All entries of a vector."""

    values: Tensor
    mask: Tensor | None = None
    """Which entries were sent; None if all were. The others are zero."""

    @property
    def positions(self) -> Tensor | None:
        """The positions of the entries that were sent; None if all were."""
        return None if self.mask is None else self.mask.nonzero().flatten()

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.mask is None else self.mask.nbytes)

    def dense(self) -> Tensor:
        return self.values

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        accumulator.add_(self.values.to(accumulator), alpha=weight)

    def write_to(self, vector: Tensor) -> None:
        """Overwrite the entries of `vector` that were sent."""
        values = self.values.to(vector)
        vector.copy_(values if self.mask is None else torch.where(self.mask.to(vector.device), values, vector))


class Reader(Protocol):
    """Reads values in order."""

    def read(self, out: NDArray[Any]) -> None:
        """Fill `out` with the next values."""
        ...


@dataclass(frozen=True, slots=True)
class BlockPayload(Payload):
    """All entries of a vector of `size`, decoded block by block whenever they are used: the vector is not stored."""

    reader: Callable[[], Reader]
    size: int
    floats: np.dtype[Any]
    positions: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return 0

    def dense(self) -> Tensor:
        vector = np.empty(self.size, dtype=self.floats)
        self.reader().read(vector)
        return torch.from_numpy(vector)

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        reader, buffer = self.reader(), np.empty(min(BLOCK, self.size), dtype=self.floats)
        for start, end in blocks(self.size):
            block = buffer[: end - start]
            reader.read(block)
            accumulator[start:end].add_(torch.from_numpy(block).to(accumulator), alpha=weight)

    def write_to(self, vector: Tensor) -> None:
        """Overwrite all entries of `vector`."""
        vector.copy_(self.dense())


@dataclass(frozen=True, slots=True)
class SparsePayload(Payload):
    """Some entries of a vector of `size`, at sorted distinct positions; the others are zero."""

    positions: Tensor
    values: Tensor
    size: int

    @property
    def nbytes(self) -> int:
        return self.positions.nbytes + self.values.nbytes

    def dense(self) -> Tensor:
        values = self.values.numpy()
        vector = np.zeros(self.size, dtype=values.dtype)
        vector[self.positions.numpy()] = values
        return torch.from_numpy(vector)

    def norm(self) -> float:
        return float(torch.linalg.vector_norm(self.values, dtype=torch.float64))

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        for piece in self.pieces(accumulator, weight):
            piece()

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        if accumulator.shape != (self.size,):
            raise ValueError(f"a vector of {self.size} added to one of shape {tuple(accumulator.shape)}")
        sent = self.values.to(accumulator)
        if accumulator.device.type != "cpu":
            return [partial(accumulator.scatter_add_, 0, self.positions.to(accumulator.device), sent * weight)]
        from laconic.compression import kernels  # late: Numba is slow to load

        vector, positions, values = accumulator.numpy(), self.positions.numpy(), sent.numpy()
        factor = vector.dtype.type(weight)
        return [
            partial(kernels.add_at, vector, positions, values, factor, *span) for span in blocks(len(values), _PIECE)
        ]

    def write_to(self, vector: Tensor) -> None:
        """Overwrite the entries of `vector` that were sent."""
        vector[self.positions.to(vector.device)] = self.values.to(vector)


def sum_norm(first: Payload, second: Payload, factor: float = 1.0) -> float:
    """||first + factor second|| in double precision. The sum of two sparse vectors is not made dense."""
    if isinstance(first, SparsePayload) and isinstance(second, SparsePayload):
        from laconic.compression import kernels  # late: Numba is slow to load

        one, other = (first.positions.numpy(), first.values.numpy()), (second.positions.numpy(), second.values.numpy())
        return math.sqrt(kernels.squared_distance(*one, *other, factor))
    squares, x, y = 0.0, first.dense(), second.dense()
    for start, end in blocks(len(x)):
        total = torch.add(x[start:end].double(), y[start:end].double(), alpha=factor)
        squares += float(total.dot(total))
    return math.sqrt(squares)


@dataclass(frozen=True, slots=True)
class SumPayload(Payload):
    """The sum of two payloads."""

    first: Payload
    second: Payload

    @property
    def nbytes(self) -> int:
        return self.first.nbytes + self.second.nbytes

    def dense(self) -> Tensor:
        return self.first.dense() + self.second.dense()

    def norm(self) -> float:
        return sum_norm(self.first, self.second)

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        self.first.add_to(accumulator, weight)
        self.second.add_to(accumulator, weight)
