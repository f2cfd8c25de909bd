"""Validation of replies: header fields, streams and vectors are checked before the server uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.exchange import BUFFERS, CONFIRM, MODEL, Exchange, Phase, PhaseTable
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import Payload, SumPayload, body_norm, decode_body, decode_dense
from laconic.compression.packet import Body, Flag, Packet
from laconic.core.counts import counted
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.federation.messages import Reply

MOST_SKIPPED = 2**21
"""The largest step between the sequence numbers of two updates. A client without a store skips up to 2^20 numbers, and every
reply that was lost on the way takes one."""
MOST_KEPT = 4
"""A decoded vector waits in place of its bytes if it is at most this multiple of them."""
VARIANCE = "running_var"
"""The name that PyTorch gives to the variances of a batch-norm layer."""
MOST_GROWTH = 2
"""A reply may report up to this multiple of the examples that the client had when it joined."""
MOST_PASSES = 1000
"""The most gradients that a client may compute in an exchange, as a multiple of its examples or of the papers' count."""


@dataclass(frozen=True)
class SentInstruction:
    """What the server sent to one client in the current exchange."""

    phase: Phase
    exchange: Exchange
    model: Body | None
    """The encoded model, if the instruction carried one."""


@dataclass(frozen=True)
class CodedVector:
    """A vector as it was sent: the sum of some bodies. Until it is decoded, it takes as much memory as on the network."""

    bodies: tuple[Body, ...]
    stream: str
    layout: Layout

    @cached_property
    def payload(self) -> Payload:
        """The decoded vector; `PacketError` if a body is invalid."""
        return self._decode()

    def _decode(self) -> Payload:
        if self.stream == BUFFERS:
            return decode_dense(self.bodies[0], self.layout.buffer_size, self.layout.dtype)
        payload: Payload = decode_body(self.bodies[0], self.layout)
        for body in self.bodies[1:]:
            payload = SumPayload(payload, decode_body(body, self.layout))
        # Each body is finite, but their sum may not be. No entry is larger than the norm.
        if len(self.bodies) > 1 and payload.norm() > torch.finfo(self.layout.dtype).max:
            raise PacketError("not finite", "a sum beyond the range of numbers")
        return payload

    def norm(self) -> float:
        """The 2-norm, from the coded form where possible; `PacketError` if a body is invalid.

        Where the vector must be decoded, it is kept for `payload` unless it is large: the replies of a whole round may wait.
        """
        if "payload" in vars(self):
            return self.payload.norm()
        if self.stream != BUFFERS and len(self.bodies) == 1:
            return body_norm(self.bodies[0], self.layout)
        payload = self._decode()
        if payload.nbytes <= MOST_KEPT * sum(len(body.data) for body in self.bodies):
            vars(self)["payload"] = payload
        return payload.norm()


@dataclass(frozen=True)
class ValidReply:
    """A reply that passed every check and may be used."""

    packets: dict[str, Packet]
    vectors: Mapping[str, CodedVector]
    """Its vectors by stream."""
    uplink_state: State
    """The server's new uplink state for the client."""
    norms: Mapping[str, float]
    """The norms of its vectors by "phase/stream", if a defense needs them."""

    @property
    def sequence(self) -> int:
        """The sequence number of the client's update."""
        return next(iter(self.packets.values())).sequence

    @property
    def started_over(self) -> bool:
        """Whether the client had lost its state."""
        return any(Flag.RESET in packet.flags for packet in self.packets.values())


def parse_packets(reply: Reply, layout: Layout, phases: PhaseTable) -> dict[str, Packet]:
    """The packets of a reply by stream. There must be at least one, and each stream at most once."""
    parsed = [Packet.parse(raw, layout) for raw in reply.packets]
    packets = {phases.stream(packet.stream): packet for packet in parsed}
    if not packets or len(packets) != len(reply.packets):
        raise PacketError("stream", f"client {reply.client} sent streams {sorted(packets)}")
    return packets


def check_labels(reply: Reply, packets: dict[str, Packet], now: tuple[int, int, int], last: int) -> None:
    """Refuse packets that do not belong to the current exchange or are not the client's next update.

    Args:
        now: the current round, incarnation and exchange.
        last: the sequence number of the client's last update that was used.
    """
    if {(packet.round, packet.incarnation, packet.exchange) for packet in packets.values()} != {now}:
        raise PacketError("stale", f"the reply of client {reply.client} does not belong to round {now[0]}")
    numbers = {packet.sequence for packet in packets.values()}
    if len(numbers) > 1 or min(numbers) <= last:
        number = next(iter(packets.values())).sequence
        raise PacketError("stale", f"update {number} of client {reply.client} does not follow update {last}")
    if max(numbers) > last + MOST_SKIPPED:
        raise PacketError("sequence", f"update {max(numbers)} of client {reply.client} is too far after update {last}")


def check_counts(reply: Reply, phase: Phase, size: int) -> None:
    """Refuse counts of gradients that are too large for the client's number of examples. They go into the metrics."""
    most = phase.gradients(reply.examples)
    if (
        reply.examples > MOST_GROWTH * size
        or reply.gradients > most
        or reply.samples > MOST_PASSES * max(reply.examples, most)
    ):
        counts = (
            f"{counted(reply.gradients, 'gradient')} ({reply.samples} computed) on {counted(reply.examples, 'example')}"
        )
        raise PacketError("count", f"client {reply.client} reports {counts}")


def believed_counts(reply: Reply, phase: Phase, size: float | None) -> tuple[int, int]:
    """The gradients and the computed samples that go into the metrics: at most those of a client of limited `size`."""
    if size is None:
        return reply.gradients, reply.samples
    examples = min(reply.examples, int(MOST_GROWTH * size))
    most = phase.gradients(examples)
    return min(reply.gradients, most), min(reply.samples, MOST_PASSES * max(examples, most))


def coded_vectors(
    packets: dict[str, Packet], expected: set[str], uplink: Uplink, uplink_state: State, context: RoundContext
) -> tuple[dict[str, CodedVector], State]:
    """The vectors of a reply, and the server's new uplink state for the client. `uplink_state` is the one before."""
    if set(packets) != expected:
        raise PacketError("stream", f"got streams {sorted(packets)}, expected {sorted(expected)}")
    vectors: dict[str, CodedVector] = {}
    for stream, packet in packets.items():
        bodies: tuple[Body, ...] = (packet.body,)
        if stream == MODEL:
            bodies, uplink_state = uplink.receive(packet.body, packet.flags, uplink_state, context)
        if stream != CONFIRM:
            vectors[stream] = CodedVector(bodies, stream, context.layout)
        if stream == BUFFERS:
            _check_variances(vectors[BUFFERS].payload, context)
    return vectors, uplink_state


def _check_variances(buffers: Payload, context: RoundContext) -> None:
    """Refuse batch-norm statistics with a negative variance: a negative mean of them makes the model's outputs NaN."""
    dense = buffers.dense()
    for slot in context.layout.buffers:
        if slot.name.rpartition(".")[2] == VARIANCE and slot.size and float(lowest := slot.view(dense).min()) < 0:
            raise PacketError("variance", f"client {context.client} sent {slot.name} with an entry of {lowest:.3g}")
