"""What has come up in a round, as a method sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from laconic.compression import Payload
from laconic.compression.packet import Stream
from laconic.core.layout import Layout


class Aggregate(Protocol):
    """What becomes of the payloads of one stream in a round."""

    def add(self, payload: Payload, weight: float) -> None:
        """Fold one payload in."""
        ...

    def total(self) -> Tensor:
        """The weighted sum."""
        ...

    def mean(self) -> Tensor | None:
        """The mean, or what stands in its place; None when nothing was folded."""
        ...


class Received:
    """What has come up in a round, stream by stream."""

    def __init__(self, layout: Layout, device: torch.device, make: Callable[[Stream], Aggregate]) -> None:
        self._layout, self._device, self._make = layout, device, make
        self._streams: dict[Stream, Aggregate] = {}
        self.heard: set[Stream] = set()
        """The streams in which anything has come."""

    def add(self, stream: Stream, payload: Payload, weight: float) -> None:
        """Fold one payload in."""
        self.open(stream)
        self._streams[stream].add(payload, weight)
        self.heard.add(stream)

    def open(self, stream: Stream) -> None:
        """From now on the stream has a mean, also if nothing comes."""
        if stream not in self._streams:
            self._streams[stream] = self._make(stream)

    def mean(self, stream: Stream) -> Tensor | None:
        """The mean of a stream, or None when nothing came."""
        return self._streams[stream].mean() if stream in self._streams else None

    def sum(self, stream: Stream) -> Tensor:
        """The weighted sum of a stream so far; 0 when nothing came."""
        return self._streams[stream].total() if stream in self._streams else self._zeros()

    def take(self, stream: Stream) -> Tensor:
        """The weighted sum of a stream since it was last taken; 0 when nothing came."""
        return self._streams.pop(stream).total() if stream in self._streams else self._zeros()

    def _zeros(self) -> Tensor:
        return torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._device)
