"""Framing: how a vector's bytes are labeled on the wire (design.md, "The wire"; rule 8).

A packet is a header of 30 bytes and a body. The header says what the body is, for which model it was made, and where it
stands in the conversation between the server and one client:

    magic 2 | version 1 | codec 1 | stream 1 | flags 1 | layout 6 | incarnation 2
    sequence 4 | round 4 | length 4 | checksum 4

The byte `stream` holds the stream in its lower half and the exchange of the round in its upper one. `sequence` on the way up
is the number of the client's update; on the way down it is the number of the last update of that client that the server has
folded in, so that an acknowledgement costs nothing. `incarnation` counts the server's starts: a reply to a round that a
crash undid must not be taken for one to the same round run again. Bytes from outside are hostile: `parse` checks all of it
against what the receiver already knows, allocates nothing, and raises `PacketError` with a reason.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cached_property

import torch
import xxhash
from torch import Tensor

from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout

HEADER = struct.Struct("<2sBBBB6sHIIII")
HEADER_BYTES = HEADER.size
MAGIC = b"La"
VERSION = 1
_BEFORE_CHECKSUM = HEADER_BYTES - 4
_MAXIMUM_BODY = 2**32 - 1

Buffer = bytes | bytearray | memoryview


class CoreStream(IntEnum):
    """The streams that every method has, by the number in the header.

    A stream is one vector of the conversation. A method's own streams have the numbers that follow, in the order in which
    the method declares them (`laconic.algorithms.methods.exchange.PhaseTable`).
    """

    MODEL = 0
    """Down: the model. Up: the client's update of it."""
    BUFFERS = 1
    """Floating buffers, such as batch-norm statistics."""
    MEAN = 2
    """Down: the mean of the updates, back to those who sent them."""
    CONFIRM = 3
    """Up: an empty packet, which confirms that the instruction was carried out."""


STREAMS = 16
"""The header has four bits for the stream."""


class Flag(IntFlag):
    """What a client says beside its update."""

    RESET = 1
    """The client had lost its state and has started anew."""
    LOST = 2
    """The client has lost its state and cannot read what it was sent; there is no update."""
    ACCELERATED = 4
    """To be used together with the client's last update."""


@dataclass(frozen=True)
class Body:
    """A vector in encoded form: the number of its codec, and the bytes."""

    codec: int
    data: Buffer = b""

    @cached_property
    def checksum(self) -> int:
        """XXH3 of the bytes, computed once however many headers the body goes out under."""
        return xxhash.xxh3_64_intdigest(self.data)

    @cached_property
    def memo(self) -> dict[str, Tensor]:
        """What readers made of the body, for the next one who is handed the very same object."""
        return {}

    def __reduce__(self) -> tuple[type[Body], tuple[int, bytes]]:
        """Nothing but the bytes goes to another process: whoever gets them checks and decodes them anew."""
        return Body, (self.codec, bytes(self.data))

    def to_tensor(self) -> Tensor:
        """The body as a tensor of bytes, to be kept in a state."""
        return torch.frombuffer(bytearray([self.codec]) + bytearray(self.data), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Body:
        """The inverse of `to_tensor`."""
        data = tensor.cpu().numpy().tobytes()
        return cls(data[0], memoryview(data)[1:])


@dataclass(frozen=True)
class Packet:
    """One vector on its way, with the header that labels it."""

    body: Body
    stream: int
    fingerprint: int
    sequence: int
    round: int
    flags: Flag = Flag(0)
    incarnation: int = 0
    exchange: int = 0
    """Which exchange of the round it belongs to: 0 to 15."""

    def to_bytes(self) -> bytes:
        """The packet as it crosses the network."""
        return bytes(self.to_frame())

    def to_frame(self) -> Frame:
        """The same bytes, not put together: a body that goes to many is not copied for each of them."""
        data = self.body.data
        if len(data) > _MAXIMUM_BODY:
            raise ConfigError(f"a packet body of {len(data)} bytes is above the limit of {_MAXIMUM_BODY}")
        model = self.fingerprint.to_bytes(6, "little")
        place = self.stream | self.exchange << 4
        fields = (MAGIC, VERSION, self.body.codec, place, self.flags, model, self.incarnation)
        head = HEADER.pack(*fields, self.sequence, self.round, len(data), 0)[:_BEFORE_CHECKSUM]
        return Frame(head + _checksum(head, self.body).to_bytes(4, "little"), self.body)

    @classmethod
    def parse(cls, data: Buffer | Frame, layout: Layout) -> Packet:
        """Read one packet that fills `data` exactly and was made for `layout`."""
        head = data.head if isinstance(data, Frame) else memoryview(data)[:HEADER_BYTES]
        if len(head) < HEADER_BYTES:
            raise PacketError("truncated", f"{len(head)} bytes, a header has {HEADER_BYTES}")
        magic, version, codec, place, flags, model, incarnation, *rest = HEADER.unpack(head)
        sequence, round_, length, expected = rest
        fingerprint = int.from_bytes(model, "little")
        if magic != MAGIC:
            raise PacketError("magic", "not a Laconic packet")
        if version != VERSION:
            raise PacketError("version", f"{version}, this side speaks {VERSION}")
        if length != len(data) - HEADER_BYTES:
            raise PacketError("length", f"body of {len(data) - HEADER_BYTES} bytes, header says {length}")
        if fingerprint != layout.fingerprint:
            raise PacketError("layout", "made for another model")
        body = data.body if isinstance(data, Frame) else Body(codec, memoryview(data)[HEADER_BYTES:])
        if _checksum(head[:_BEFORE_CHECKSUM], body) != expected:
            raise PacketError("checksum", "damaged on the way")
        if flags > sum(Flag):
            raise PacketError("flags", f"{flags} is not known")
        return cls(body, place & 15, fingerprint, sequence, round_, Flag(flags), incarnation, place >> 4)


class Frame:
    """A packet within one process: its header, and the body where it lies. `bytes` of it is what crosses a network."""

    __slots__ = ("body", "head")

    def __init__(self, head: bytes, body: Body) -> None:
        self.head, self.body = head, body

    def __len__(self) -> int:
        return len(self.head) + len(self.body.data)

    def __bytes__(self) -> bytes:
        return b"".join((self.head, self.body.data))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and bytes(self) == bytes(other)

    def __hash__(self) -> int:
        return hash(self.head)

    def __reduce__(self) -> tuple[type[Frame], tuple[bytes, Body]]:
        """In one message to another process, a body that many frames share is there once."""
        return Frame, (self.head, self.body)


Wire = bytes | Frame
"""A packet on its way."""


def sequence_of(data: Wire) -> int:
    """The number in the header of a packet that was made on this side, and needs no checks."""
    return int(HEADER.unpack_from(data.head if isinstance(data, Frame) else data)[7])


def _checksum(head: Buffer, body: Body) -> int:
    """32 bits over the header, seeded with the body's sum."""
    return xxhash.xxh3_64_intdigest(head, seed=body.checksum) & 0xFFFFFFFF
