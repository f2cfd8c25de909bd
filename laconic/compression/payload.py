"""What a packet decodes to, in a form that a server can add."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.compression.entropy import blocks

_PIECE = 1 << 15


class Payload(Protocol):
    """A decoded vector. A server adds it without making it dense (design rule 7)."""

    def dense(self) -> Tensor:
        """The whole vector."""
        ...

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector, in place."""
        ...

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        """The same as calls that touch different entries, so that threads can share them."""
        ...


class SentPayload(Payload, Protocol):
    """A payload that came in one body, so that it is known which entries were sent."""

    @property
    def positions(self) -> Tensor | None:
        """Where entries were sent; None means everywhere."""
        ...

    def write_to(self, vector: Tensor) -> None:
        """The entries that were sent replace those of `vector`."""
        ...


@dataclass(frozen=True, slots=True)
class DensePayload:
    """Every entry of the vector."""

    values: Tensor
    mask: Tensor | None = None
    """Which entries were sent, where not all of them were but too many to list; the others are zero."""

    @property
    def positions(self) -> Tensor | None:
        """Where entries were sent; None means everywhere."""
        return None if self.mask is None else self.mask.nonzero().flatten()

    def dense(self) -> Tensor:
        """The vector itself."""
        return self.values

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector."""
        accumulator.add_(self.values.to(accumulator), alpha=weight)

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        """One: torch shares it between threads by itself."""
        return [partial(self.add_to, accumulator, weight)]

    def write_to(self, vector: Tensor) -> None:
        """The entries that were sent replace those of `vector`."""
        values = self.values.to(vector)
        vector.copy_(values if self.mask is None else torch.where(self.mask.to(vector.device), values, vector))


@dataclass(frozen=True, slots=True)
class SparsePayload:
    """Some entries of a vector of `size`, at sorted positions that are all different; the others are zero."""

    positions: Tensor
    values: Tensor
    size: int

    def dense(self) -> Tensor:
        """The vector with its zeros."""
        values = self.values.numpy()
        whole = np.zeros(self.size, dtype=values.dtype)
        whole[self.positions.numpy()] = values
        return torch.from_numpy(whole)

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator[positions] += weight * values; nothing else is touched."""
        for piece in self.pieces(accumulator, weight):
            piece()

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        """As many as it takes for none to be large."""
        if accumulator.shape != (self.size,):
            raise ValueError(f"a vector of {self.size} added to one of shape {tuple(accumulator.shape)}")
        sent = self.values.to(accumulator)
        if accumulator.device.type != "cpu":
            return [partial(accumulator.scatter_add_, 0, self.positions.to(accumulator.device), sent * weight)]
        from laconic.compression import kernels

        vector, positions, values = accumulator.numpy(), self.positions.numpy(), sent.numpy()
        factor = vector.dtype.type(weight)
        return [
            partial(kernels.add_at, vector, positions, values, factor, *span) for span in blocks(len(values), _PIECE)
        ]

    def write_to(self, vector: Tensor) -> None:
        """The entries that were sent replace those of `vector`."""
        vector[self.positions.to(vector.device)] = self.values.to(vector)


@dataclass(frozen=True, slots=True)
class SumPayload:
    """Two payloads used together."""

    one: Payload
    other: Payload

    def dense(self) -> Tensor:
        """Their sum."""
        return self.one.dense() + self.other.dense()

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """Both, one after the other."""
        self.one.add_to(accumulator, weight)
        self.other.add_to(accumulator, weight)

    def pieces(self, accumulator: Tensor, weight: float) -> list[Callable[[], object]]:
        """One, since the two may touch the same entries."""
        return [partial(self.add_to, accumulator, weight)]
