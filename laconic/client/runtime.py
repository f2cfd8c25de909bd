"""A client's round from instruction to reply, for a chunk of clients; the same code in every engine.

A client's round is a transaction (design rule 5). The instruction carries the number of the client's last update that the
server has folded in: the pending state with that number is committed, any other is dropped, as if the client had not taken
part. The new state is stored as pending before the reply leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laconic.algorithm import Algorithm
from laconic.client.cohort import Cohort
from laconic.client.messages import Instruction, Reply
from laconic.data.federated import ClientData
from laconic.engine.gradients import Gradients
from laconic.errors import PacketError
from laconic.layout import Layout
from laconic.link.compressors import decode_dense, encode_dense
from laconic.link.packet import Body, Packet, Stream
from laconic.parts import State
from laconic.randomness import Randomness
from laconic.run.store import ClientStore
from laconic.task import Task


@dataclass(frozen=True)
class ClientRuntime:
    """Everything that clients need to take part, but for their messages."""

    algorithm: Algorithm
    task: Task
    layout: Layout
    initial_buffers: Tensor
    data: ClientData
    randomness: Randomness
    store: ClientStore
    device: torch.device

    def run(self, instructions: Sequence[Instruction], gradients: Gradients) -> list[Reply]:
        """One chunk of clients through their round."""
        openings = [self._open(instruction) for instruction in instructions]
        cohort = Cohort(
            round=instructions[0].round,
            clients=[instruction.client for instruction in instructions],
            models=torch.stack([opening.model for opening in openings]).to(self.device),
            buffers=torch.stack([opening.buffers for opening in openings]).to(self.device),
            task=self.task,
            layout=self.layout,
            data=self.data,
            randomness=self.randomness,
            _gradients=gradients,
        )
        updates = self.algorithm.method.local(cohort)
        losses = cohort.mean_losses()
        return [
            Reply(
                round=instruction.round,
                client=instruction.client,
                packets=self._close(instruction, opening, updates[row], cohort.buffers[row]),
                examples=self.data.size(instruction.client),
                gradients=self.algorithm.method.nominal_gradients(self.data.size(instruction.client)),
                samples=int(cohort.samples[row]),
                loss=losses[row],
            )
            for row, (instruction, opening) in enumerate(zip(instructions, openings, strict=True))
        ]

    def _open(self, instruction: Instruction) -> _Opening:
        """Settle the last round, and read what has come."""
        packets = {packet.stream: packet for packet in (Packet.parse(p, self.layout) for p in instruction.packets)}
        if Stream.MODEL not in packets:
            raise PacketError("stream", "an instruction without a model")
        acknowledged = packets[Stream.MODEL].sequence
        state = self.store.settle(instruction.client, acknowledged)
        if state is None:
            state = self.algorithm.uplink.init(self.layout)
        model, state = self.algorithm.downlink.receive(packets[Stream.MODEL].body, state, self.layout)
        buffers = self.initial_buffers
        if Stream.BUFFERS in packets:
            body = packets[Stream.BUFFERS].body
            buffers = decode_dense(body, self.layout.buffer_size, self.layout.dtype).dense()
        return _Opening(acknowledged, state, model, buffers, Stream.BUFFERS in packets)

    def _close(self, instruction: Instruction, opening: _Opening, update: Tensor, buffers: Tensor) -> tuple[bytes, ...]:
        """Encode the update, keep the state as pending, and only then let the packets go."""
        body, state = self.algorithm.uplink.encode(update, opening.state)
        sequence = self.store.propose(instruction.client, opening.acknowledged, state)
        bodies: dict[Stream, Body] = {Stream.MODEL: body}
        if opening.with_buffers:
            bodies[Stream.BUFFERS] = encode_dense(buffers)
        return tuple(
            Packet(each, stream, self.layout.fingerprint, sequence, instruction.round).to_bytes()
            for stream, each in bodies.items()
        )


@dataclass(frozen=True)
class _Opening:
    acknowledged: int
    state: State
    model: Tensor
    buffers: Tensor
    with_buffers: bool
