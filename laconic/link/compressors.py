"""How a vector becomes a packet's body and back (algorithms.md, "Compressors").

A body names its codec, so `decode` needs nothing else but the length that the receiver already knows. Error feedback and
aggregation use what `decode` returns, never the encoder's own idea (design rule 4).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from laconic.errors import PacketError
from laconic.link.packet import Body


class Codec(IntEnum):
    """What a body is."""

    SKIP = 0
    """No body: the receiver uses what it has."""
    FLOAT32 = 1
    FLOAT64 = 2


_DENSE = {torch.float32: Codec.FLOAT32, torch.float64: Codec.FLOAT64}
_DENSE_TYPES = {codec: dtype for dtype, codec in _DENSE.items()}


class Payload(Protocol):
    """What a packet decodes to. A server adds it without making it dense (design rule 7)."""

    def dense(self) -> Tensor:
        """The whole vector."""
        ...

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector, in place."""
        ...


@dataclass(frozen=True, slots=True)
class DensePayload:
    """Every entry of the vector."""

    values: Tensor

    def dense(self) -> Tensor:
        """The vector itself."""
        return self.values

    def add_to(self, accumulator: Tensor, weight: float) -> None:
        """accumulator += weight * vector."""
        accumulator.add_(self.values.to(accumulator), alpha=weight)


@dataclass(frozen=True)
class Dense:
    """No compression: the vector's own floating type, 32 bits an entry in the papers' count."""

    def encode(self, vector: Tensor) -> Body:
        """The entries, little-endian."""
        entries = vector.detach().cpu().contiguous().numpy()
        return Body(_DENSE[vector.dtype], entries.astype(entries.dtype.newbyteorder("<"), copy=False).tobytes())

    def paper_bits(self, size: int) -> int:
        """32 d."""
        return 32 * size


def decode(body: Body, size: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Payload:
    """What a body says, checked: the length must be `size`, every number finite."""
    if body.codec not in _DENSE_TYPES:
        raise PacketError("codec", f"number {body.codec} is not known")
    sent = _DENSE_TYPES[Codec(body.codec)]
    if sent != dtype:
        raise PacketError("dtype", f"{sent} where {dtype} is expected")
    if len(body.data) != size * dtype.itemsize:
        raise PacketError("size", f"{len(body.data)} bytes for {size} numbers of {dtype}")
    kind = np.dtype("<f4") if dtype == torch.float32 else np.dtype("<f8")
    # A copy, since the body may lie unaligned in a larger message and torch needs memory that it may write to.
    values = torch.from_numpy(np.frombuffer(body.data, dtype=kind).astype(kind.newbyteorder("="), copy=True))
    # A sum is finite exactly when no entry is NaN or infinite, but for overflow, which the slow test then settles.
    if size and not torch.isfinite(values.sum()) and not bool(torch.isfinite(values).all()):
        raise PacketError("not finite", "NaN or infinity")
    return DensePayload(values.to(device))
