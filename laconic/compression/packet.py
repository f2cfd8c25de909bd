"""Packets: a header of 15 bytes and a body (docs/reference/wire-format.md).

The header names the body's codec and the position in the exchange between the server and one client:

    version and flags 1 | codec 1 | stream 1 | incarnation 2 | sequence 3 | round 3 | checksum 4

The checksum also covers the model's layout, which both sides know. The lower half of the first byte is the version, the
upper half are the flags. The lower half of the byte `stream` is the stream, the upper half is the exchange of the round.
`sequence` in a reply is the number of the client's update. In an instruction it is the number of the client's last update
that the server has used, which acknowledges that update. `incarnation` counts the server's starts, so that a reply to a
round that a crash rolled back is not used in the repeated round. Bytes from outside may be malicious: `parse` checks every
field, allocates nothing, and raises `PacketError` with a reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from functools import cached_property
from typing import Any

import torch
import xxhash
from torch import Tensor

from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout

_LABEL = struct.Struct("<BBBH3s3s")
HEADER_BYTES = _LABEL.size + 4
VERSION = 2
MOST_ROUNDS = 2**24 - 1
"""The header has three bytes for the round, and for the number of a client's update."""
_MAXIMUM_BODY = 2**32 - 1

Buffer = bytes | bytearray | memoryview


class CoreStream(IntEnum):
    """The streams that every method has, by the number in the header.

    The streams that a method declares have the following numbers, in the order of declaration
    (`laconic.algorithms.methods.exchange.PhaseTable`).
    """

    MODEL = 0
    """Down: the model. Up: the client's update."""
    BUFFERS = 1
    """Floating-point buffers, such as batch-norm statistics."""
    MEAN = 2
    """Down: the mean of the updates, for the clients that sent them."""
    CONFIRM = 3
    """Up: an empty packet that confirms an instruction."""
    BASE = 4
    """Down: what a client needs to know of the model at which the current subspace was drawn."""


STREAMS = 16
"""The header has four bits for the stream."""


class Flag(IntFlag):
    """Flags of a client's reply."""

    RESET = 1
    """The client had lost its state and restarted from an empty one."""
    LOST = 2
    """The client has lost its state and cannot decode the instruction; the reply has no update."""
    ACCELERATED = 4
    """The server adds the client's last update to this one."""


@dataclass(frozen=True)
class Body:
    """An encoded vector: its codec number and bytes."""

    codec: int
    data: Buffer = b""
    kept: Any = field(default=None, init=False, compare=False, repr=False)
    """A decoded value for the next receiver that shares this object. Most bodies have none, so it is no entry of `memo`."""

    @cached_property
    def checksum(self) -> int:
        """XXH3 of the bytes, computed once for all packets with this body."""
        return xxhash.xxh3_64_intdigest(self.data)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """A cache of decoded values for receivers that share this object."""
        return {}

    def keep(self, decoded: Any) -> None:
        """Set `kept`; None removes it."""
        object.__setattr__(self, "kept", decoded)

    def __reduce__(self) -> tuple[type[Body], tuple[int, bytes]]:
        # Another process must check and decode the bytes itself.
        return Body, (self.codec, bytes(self.data))

    def to_tensor(self) -> Tensor:
        """The body as a byte tensor, for states."""
        return torch.frombuffer(bytearray([self.codec]) + bytearray(self.data), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Body:
        """The inverse of `to_tensor`."""
        data = tensor.cpu().numpy().tobytes()
        return cls(data[0], memoryview(data)[1:])


@dataclass(frozen=True)
class Packet:
    """A body with the fields of its header."""

    body: Body
    stream: int
    fingerprint: int
    sequence: int
    round: int
    flags: Flag = Flag(0)
    incarnation: int = 0
    exchange: int = 0
    """The number of the exchange in the round, 0 to 15."""

    def __post_init__(self) -> None:
        if len(self.body.data) > _MAXIMUM_BODY:
            raise ConfigError(f"a packet body of {len(self.body.data)} bytes is above the limit of {_MAXIMUM_BODY}")
        if max(self.sequence, self.round) > MOST_ROUNDS:
            raise ConfigError(f"round {self.round}: packets can count {MOST_ROUNDS} rounds")

    def __len__(self) -> int:
        return HEADER_BYTES + len(self.body.data)

    def __bytes__(self) -> bytes:
        return self.to_bytes()

    def to_bytes(self) -> bytes:
        """The packet as it is sent: header and body."""
        numbers = (number.to_bytes(3, "little") for number in (self.sequence, self.round))
        first, stream = VERSION | self.flags << 4, self.stream | self.exchange << 4
        label = _LABEL.pack(first, self.body.codec, stream, self.incarnation, *numbers)
        return b"".join((label, _checksum(label, self.body, self.fingerprint), self.body.data))

    @classmethod
    def parse(cls, data: Buffer | Packet, layout: Layout) -> Packet:
        """Parse exactly one packet for a model with this layout; `PacketError` if it is invalid.

        A `Packet` comes from a simulation's own process or worker. Its fields need no checks, except for the layout.
        """
        if isinstance(data, Packet):
            if data.fingerprint != layout.fingerprint:
                raise PacketError("checksum", "it was made for another model")
            return data
        data = memoryview(data)
        if len(data) < HEADER_BYTES:
            raise PacketError("truncated", f"{len(data)} bytes, a header has {HEADER_BYTES}")
        label, expected = data[: _LABEL.size], data[_LABEL.size : HEADER_BYTES]
        first, codec, stream, incarnation, *numbers = _LABEL.unpack(label)
        version, flags = first & 15, first >> 4
        if version != VERSION:
            raise PacketError("version", f"{version}, this side speaks {VERSION}")
        body = Body(codec, data[HEADER_BYTES:])
        if _checksum(label, body, layout.fingerprint) != expected:
            raise PacketError("checksum", "damaged on the way, or made for another model")
        if flags > sum(Flag):
            raise PacketError("flags", f"{flags} is not known")
        sequence, round_ = (int.from_bytes(number, "little") for number in numbers)
        return cls(body, stream & 15, layout.fingerprint, sequence, round_, Flag(flags), incarnation, stream >> 4)


Wire = bytes | Packet
"""A packet as bytes, or, between a simulation and its workers, as an object whose body is shared and not copied."""


def sequence_of(data: Wire) -> int:
    """The sequence number of a packet that this process made, without checks."""
    if isinstance(data, Packet):
        return data.sequence
    *_, sequence, _ = _LABEL.unpack_from(data)
    return int.from_bytes(sequence, "little")


def _checksum(label: Buffer, body: Body, fingerprint: int) -> bytes:
    """A 32-bit hash of the header and the model's layout, seeded with the body's hash."""
    data = bytes(label) + fingerprint.to_bytes(6, "little")
    return (xxhash.xxh3_64_intdigest(data, seed=body.checksum) & 0xFFFFFFFF).to_bytes(4, "little")
