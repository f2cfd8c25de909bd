"""How updates become a mean: added one after the other as they arrive, in client order."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from laconic.layout import Layout
from laconic.link.compressors import Payload
from laconic.link.packet import Stream

Weighting = Literal["uniform", "size"]


class RunningMean:
    """A weighted mean of payloads that holds one accumulator, however many clients there are."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.total = torch.zeros(size, dtype=dtype, device=device)
        self._weight = 0.0

    def add(self, payload: Payload, weight: float) -> None:
        """Fold one payload in."""
        payload.add_to(self.total, weight)
        self._weight += weight

    def mean(self) -> Tensor | None:
        """The mean, or None when nothing was folded."""
        return self.total / self._weight if self._weight else None


class Received:
    """What has come up in a round, stream by stream."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self._layout, self._device = layout, device
        self._streams: dict[Stream, RunningMean] = {}
        self.heard: set[Stream] = set()
        """The streams in which anything has come."""

    def add(self, stream: Stream, payload: Payload, weight: float) -> None:
        """Fold one payload in."""
        if stream not in self._streams:
            size = self._layout.buffer_size if stream == Stream.BUFFERS else self._layout.size
            self._streams[stream] = RunningMean(size, self._layout.dtype, self._device)
        self._streams[stream].add(payload, weight)
        self.heard.add(stream)

    def mean(self, stream: Stream) -> Tensor | None:
        """The mean of a stream, or None when nothing came."""
        return self._streams[stream].mean() if stream in self._streams else None

    def take(self, stream: Stream) -> Tensor:
        """The weighted sum of a stream since it was last taken; 0 when nothing came."""
        if stream not in self._streams:
            return torch.zeros(self._layout.size, dtype=self._layout.dtype, device=self._device)
        return self._streams.pop(stream).total
