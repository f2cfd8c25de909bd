"""What a packet decodes to, in a form that a server can add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Payload(Protocol):
    """A decoded vector. A server adds it without making it dense (design rule 7)."""

    def dense(self) -> Tensor:
        """The whole vector."""
        ...

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector, in place."""
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
        # NumPy's product is made by one thread: so few numbers are not worth waking others up.
        weighted = torch.from_numpy(self.values.numpy() * weight)
        accumulator.scatter_add_(0, self.positions.to(accumulator.device), weighted.to(accumulator))

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
