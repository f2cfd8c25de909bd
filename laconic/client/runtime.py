"""A client's round from instruction to reply, for a chunk of clients; the same code in every engine.

A client's round is a transaction (design rule 5). The instruction carries the number of the client's last update that the
server has folded in: the pending state with that number is committed, any other is dropped, as if the client had not taken
part. The new state is stored as pending before the reply leaves. A client that has lost the state of an acknowledged update
starts anew and says so; if it cannot read the model without that state it says only this, and is sent the whole model next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.algorithm import Algorithm
from laconic.client.cohort import Cohort
from laconic.client.messages import Instruction, Probe, Reply
from laconic.data.federated import ClientData
from laconic.engine.gradients import Gradients
from laconic.errors import PacketError
from laconic.layout import Layout
from laconic.link.compressors import Codec, decode, decode_dense, encode_dense
from laconic.link.downlink import LostState
from laconic.link.occasion import Occasion
from laconic.link.packet import Body, Flag, Packet, Stream
from laconic.link.uplink import Encoded
from laconic.parts import State, section
from laconic.randomness import Randomness
from laconic.run.store import ClientStore, Settled
from laconic.task import Task


@dataclass(frozen=True)
class ClientRuntime:
    """Everything that clients need to take part, but for their messages."""

    algorithm: Algorithm
    task: Task
    layout: Layout
    initial_model: Tensor
    """It follows from the seed, so a client has it before it hears anything."""
    initial_buffers: Tensor
    data: ClientData
    randomness: Randomness
    store: ClientStore
    device: torch.device
    probing: bool = False
    """Whether replies carry what diagnostics need."""

    def run(self, instructions: Sequence[Instruction], gradients: Gradients) -> list[Reply]:
        """One chunk of clients through their round; replies in the order of the instructions."""
        openings = [self._open(instruction) for instruction in instructions]
        working = [opening for opening in openings if isinstance(opening, _Opening)]
        finished = iter(self._work(working, gradients) if working else [])
        return [next(finished) if isinstance(opening, _Opening) else opening for opening in openings]

    def settle(self, instruction: Instruction) -> Settled:
        """Commit or drop the pending state, as the instruction says."""
        return self.store.settle(instruction.client, self._parse(instruction)[Stream.MODEL].sequence)

    def _parse(self, instruction: Instruction) -> dict[int, Packet]:
        packets = {packet.stream: packet for packet in (Packet.parse(p, self.layout) for p in instruction.packets)}
        if Stream.MODEL not in packets:
            raise PacketError("stream", "an instruction without a model")
        return packets

    def _work(self, openings: Sequence[_Opening], gradients: Gradients) -> list[Reply]:
        clients = [opening.instruction.client for opening in openings]
        cohort = Cohort(
            round=openings[0].instruction.round,
            clients=clients,
            models=torch.stack([opening.model for opening in openings]).to(self.device),
            buffers=torch.stack([opening.buffers for opening in openings]).to(self.device),
            task=self.task,
            layout=self.layout,
            data=self.data,
            randomness=self.randomness,
            _gradients=gradients,
        )
        updates = self.algorithm.method.local(cohort).cpu()
        losses, samples = cohort.mean_losses(), cohort.samples()
        replies = []
        for row, (client, opening) in enumerate(zip(clients, openings, strict=True)):
            encoded = self.algorithm.uplink.encode(updates[row], opening.memory, self._occasion(opening.instruction))
            replies.append(
                Reply(
                    round=opening.instruction.round,
                    client=client,
                    packets=self._close(opening, encoded, cohort.buffers[row]),
                    examples=self.data.size(client),
                    gradients=self.algorithm.method.nominal_gradients(self.data.size(client)),
                    samples=samples[row],
                    loss=losses[row],
                    probe=self._probe(updates[row], encoded) if self.probing else None,
                )
            )
        return replies

    def _open(self, instruction: Instruction) -> _Opening | Reply:
        """Settle the last round, and read what has come; a reply if it cannot be read."""
        packets = self._parse(instruction)
        acknowledged = packets[Stream.MODEL].sequence
        settled = self.store.settle(instruction.client, acknowledged)
        state = settled.state or {}
        try:
            model, held = self.algorithm.downlink.receive(
                packets[Stream.MODEL].body, section(state, "downlink"), self.initial_model, self.layout, settled.lost
            )
        except LostState:
            return self._lost(instruction, acknowledged, packets[Stream.MODEL].incarnation)
        buffers = self.initial_buffers
        if Stream.BUFFERS in packets:
            body = packets[Stream.BUFFERS].body
            buffers = decode_dense(body, self.layout.buffer_size, self.layout.dtype).dense()
        with_buffers = Stream.BUFFERS in packets
        memory = section(state, "uplink") or self.algorithm.uplink.init(self.layout)
        incarnation = packets[Stream.MODEL].incarnation
        return _Opening(
            instruction, incarnation, acknowledged, settled.lost, memory, held, model, buffers, with_buffers
        )

    def _occasion(self, instruction: Instruction) -> Occasion:
        counts = {"invited": instruction.invited, "population": len(self.data)}
        return Occasion(self.layout, self.randomness, instruction.round, instruction.client, **counts)

    def _probe(self, update: Tensor, encoded: Encoded) -> Probe | None:
        if encoded.body.codec == Codec.SKIP:
            return None
        arrived = decode(encoded.body, self.layout).dense()
        memory = encoded.state.get("memory")
        return Probe(update.clone(), update.clone() if memory is None else arrived + memory, arrived, memory)

    def _close(self, opening: _Opening, encoded: Encoded, buffers: Tensor) -> tuple[bytes, ...]:
        """Keep the state as pending, and only then let the packets go."""
        instruction = opening.instruction
        state = {f"uplink/{name}": value for name, value in encoded.state.items()}
        state |= {f"downlink/{name}": value for name, value in opening.held.items()}
        sequence = self.store.propose(instruction.client, opening.acknowledged, state)
        bodies: dict[Stream, Body] = {Stream.MODEL: encoded.body}
        if opening.with_buffers:
            bodies[Stream.BUFFERS] = encode_dense(buffers)
        flags = encoded.flags | (Flag.RESET if opening.lost else Flag(0))
        label = _Label(instruction.round, sequence, flags, opening.incarnation)
        return tuple(self._packet(body, stream, label) for stream, body in bodies.items())

    def _lost(self, instruction: Instruction, acknowledged: int, incarnation: int) -> Reply:
        label = _Label(instruction.round, acknowledged + 1, Flag.LOST, incarnation)
        packet = self._packet(Body(Codec.SKIP), Stream.MODEL, label)
        return Reply(instruction.round, instruction.client, (packet,), 0, 0, 0, float("nan"))

    def _packet(self, body: Body, stream: Stream, label: _Label) -> bytes:
        fingerprint = self.layout.fingerprint
        return Packet(body, stream, fingerprint, label.sequence, label.round, label.flags, label.incarnation).to_bytes()


@dataclass(frozen=True)
class _Label:
    """What all packets of one reply say alike."""

    round: int
    sequence: int
    flags: Flag
    incarnation: int


@dataclass(frozen=True)
class _Opening:
    instruction: Instruction
    incarnation: int
    acknowledged: int
    lost: bool
    memory: State
    """The uplink's state."""
    held: State
    """The downlink's new state."""
    model: Tensor
    buffers: Tensor
    with_buffers: bool
