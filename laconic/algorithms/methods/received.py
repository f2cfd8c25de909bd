"""The sums of the clients' answers in a round, by stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from laconic.compression import Payload
from laconic.core.layout import Layout


class Aggregate(Protocol):
    """Accumulates the payloads of one stream in a round."""

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Add one payload, scaled by `factor`."""
        ...

    def total(self) -> Tensor:
        """The weighted sum."""
        ...

    def mean(self) -> Tensor | None:
        """The mean, or a defense's robust estimate; None if nothing was added."""
        ...


class Received:
    """One accumulator per stream."""

    def __init__(self, layout: Layout, device: torch.device, make: Callable[[str], Aggregate]) -> None:
        self._layout, self._device, self._make = layout, device, make
        self._streams: dict[str, Aggregate] = {}
        self.arrived: set[str] = set()
        """The streams with at least one payload."""

    def add(self, stream: str, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Add one payload, scaled by `factor`."""
        self.open(stream)
        self._streams[stream].add(payload, weight, factor)
        self.arrived.add(stream)

    def open(self, stream: str) -> None:
        """Create the accumulator of a stream, even if nothing arrives."""
        if stream not in self._streams:
            self._streams[stream] = self._make(stream)

    def mean(self, stream: str) -> Tensor | None:
        """The mean of a stream; None if nothing has arrived."""
        return self._streams[stream].mean() if stream in self._streams else None

    def replace(self, stream: str, mean: Tensor) -> None:
        """Set the mean of a stream that has arrived, such as to the value that clients decode."""
        self._streams[stream] = _Fixed(mean)

    def sum(self, stream: str) -> Tensor:
        """The weighted sum of a stream so far; 0 if nothing has arrived."""
        return self._streams[stream].total() if stream in self._streams else self._zeros()

    def take(self, stream: str) -> Tensor:
        """Return the weighted sum of a stream and reset it; 0 if nothing has arrived."""
        return self._streams.pop(stream).total() if stream in self._streams else self._zeros()

    def clear(self) -> None:
        """Free the accumulators, at the end of the round."""
        self._streams.clear()

    def _zeros(self) -> Tensor:
        return torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._device)


class _Fixed:
    """A mean that is already known."""

    def __init__(self, mean: Tensor) -> None:
        self._mean = mean

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Not possible: nothing arrives after the mean was sent."""
        raise AssertionError

    def total(self) -> Tensor:
        """The mean, of one vector."""
        return self._mean

    def mean(self) -> Tensor:
        """The mean."""
        return self._mean
