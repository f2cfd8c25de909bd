"""The client's side of a round, from instruction to reply, for a chunk of clients. All engines run this code.

A client's round is a transaction. The instruction carries the sequence number of the client's last update
that the server has durably aggregated. The client commits the pending state with that number and drops the others. It stores
its new state as pending before the reply leaves. A later exchange of the same round continues from the pending state of the
previous exchange, which stays pending: the server acknowledges whole rounds, once they are durable.

A client that has lost the state of an acknowledged update starts over and sets a flag in its reply. If it cannot decode the
instruction without that state, it replies with the flag only, and the server sends the whole model next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LostState
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import BASE, BUFFERS, CONFIRM, MEAN, MODEL, Phase
from laconic.compression import DENSE, Codec, Payload, decode_body, decode_dense, encode_dense
from laconic.compression.packet import Body, Flag, Packet
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.state_dict import joined, section
from laconic.core.task import Task
from laconic.data.federated import ClientData
from laconic.federation.messages import FaultInjection, Instruction, Probe, Reply
from laconic.federation.store import ClientStore, Question, Settled
from laconic.gradients.base import Gradients


@dataclass(frozen=True)
class ClientRuntime:
    """Everything that clients need to run instructions."""

    algorithm: Algorithm
    task: Task
    layout: Layout
    """The layout of the first round; `Layout.for_round` is that of a later one."""
    initial_model: Tensor
    """Derived from the seed, so clients have it without receiving it."""
    initial_buffers: Tensor
    data: ClientData
    randomness: Randomness
    store: ClientStore
    device: torch.device
    probing: bool = False
    """Whether replies carry a `Probe` for diagnostics."""

    def answer(self, instructions: Sequence[Instruction], gradients: Gradients) -> list[Reply]:
        """Run one exchange for a chunk of clients. Replies are in the order of the instructions."""
        replies: dict[int, Reply] = {}
        by_phase: dict[str, list[_Opening]] = {}
        for instruction in instructions:
            if FaultInjection.CRASH in instruction.injected:
                self.settle(instruction)
                continue
            opening = self._open(instruction)
            if isinstance(opening, Reply):
                replies[instruction.client] = opening
            else:
                by_phase.setdefault(instruction.phase, []).append(opening)
        for openings in by_phase.values():
            replies |= {reply.client: reply for reply in self._run_phase(openings, gradients)}
        return [replies[instruction.client] for instruction in instructions if instruction.client in replies]

    def settle(self, instruction: Instruction) -> Settled:
        """Commit or drop the client's pending state, as the instruction says."""
        return self._settle(instruction, self._parse(instruction))

    def _settle(self, instruction: Instruction, packets: dict[str, Packet]) -> Settled:
        question = self._question(instruction, packets)
        settled = self.store.settle(instruction.client, question)
        if FaultInjection.LOSE_STATE in instruction.injected:
            return Settled(None, lost=question.acknowledged > 0 or question.continues is not None)
        return settled

    def _question(self, instruction: Instruction, packets: dict[str, Packet]) -> Question:
        label = next(iter(packets.values()))
        position = (label.incarnation, label.round, label.exchange)
        if any((packet.incarnation, packet.round, packet.exchange) != position for packet in packets.values()):
            raise PacketError("stream", "the packets of one instruction belong to different exchanges")
        again = FaultInjection.ASKED_AGAIN in instruction.injected
        return Question(*position, label.sequence, instruction.continues, again=again)

    def _parse(self, instruction: Instruction) -> dict[str, Packet]:
        layout = self.layout.for_round(instruction.round)
        parsed = [Packet.parse(packet, layout) for packet in instruction.packets]
        packets = {self.algorithm.phases.stream(packet.stream): packet for packet in parsed}
        if not packets:
            raise PacketError("stream", "the instruction has no packet")
        return packets

    def _run_phase(self, openings: Sequence[_Opening], gradients: Gradients) -> list[Reply]:
        method, phase = self.algorithm.method, openings[0].phase
        cohort = self._cohort(openings, gradients)
        answers = {stream: vectors.cpu() for stream, vectors in phase.answer(cohort).items()}
        losses, samples, counted = cohort.mean_losses(), cohort.samples(), cohort.counted_shares()
        replies = []
        for row, opening in enumerate(openings):
            client = opening.instruction.client
            answer = self._encode(opening, {stream: vectors[row] for stream, vectors in answers.items()})
            method_state = method.remember(cohort, row, answer.used)
            update = answers[MODEL][row] if MODEL in answers else None
            replies.append(
                Reply(
                    round=opening.instruction.round,
                    client=client,
                    packets=self._close(opening, answer, method_state, cohort.buffers[row]),
                    examples=self.data.size(client),
                    gradients=phase.gradients(self.data.size(client)),
                    samples=samples[row],
                    loss=losses[row],
                    counted=counted[row],
                    probe=self._probe(update, answer) if self.probing and update is not None else None,
                )
            )
        return replies

    def _cohort(self, openings: Sequence[_Opening], gradients: Gradients) -> Cohort:
        first = openings[0]
        return Cohort(
            round=first.instruction.round,
            phase=first.phase.name,
            clients=[opening.instruction.client for opening in openings],
            states=[opening.method_state for opening in openings],
            _received={
                stream: self._stack([opening.received[stream] for opening in openings])
                for stream in first.received
                # `Method.receive` has used the pending broadcasts, which only some clients receive.
                if all(stream in opening.received for opening in openings)
            },
            models=self._stack([opening.model for opening in openings]),
            # Training writes to the buffers, so each client needs a copy.
            buffers=torch.stack(
                [self.initial_buffers if opening.buffers is None else opening.buffers for opening in openings]
            ).to(self.device),
            task=self.task,
            layout=first.layout,
            data=self.data,
            randomness=self.randomness,
            _gradients=gradients if first.layout is self.layout else gradients.at(first.layout),
            regularization=self.algorithm.method.regularization,
            _shared=[shared.name for shared in self.algorithm.method.shared_states()],
        )

    def _open(self, instruction: Instruction) -> _Opening | Reply:
        """Commit or drop the pending state and decode the instruction; a reply if that needs state that is lost."""
        packets = self._parse(instruction)
        phase = self.algorithm.phases[instruction.phase]
        missing = [stream.name for stream in phase.down if stream.name not in packets]
        if missing:
            raise PacketError("stream", f"the instruction for phase '{phase.name}' lacks {', '.join(missing)}")
        label = next(iter(packets.values()))
        settled = self._settle(instruction, packets)
        # The next update needs a number that the server has not seen, even if the client has lost its own count.
        known = max(label.sequence, instruction.continues or 0)
        try:
            layout, state = self._located(instruction.round, settled.state or {}, packets.pop(BASE, None))
            initial = layout.start(self.initial_model)
            downlink_state, current = section(state, "downlink"), section(state, "current")
            model, buffers = current.get("model", initial), current.get("buffers")
            if MODEL in packets:
                arguments = (packets[MODEL].body, downlink_state, initial, layout, settled.lost)
                model, downlink_state = self.algorithm.downlink.receive(*arguments)
            elif settled.lost:
                # The instruction continues an exchange whose state is lost.
                raise LostState
        except LostState:
            return self._lost_reply(instruction, known, label.incarnation)
        if BUFFERS in packets:
            body = packets[BUFFERS].body
            buffers = decode_dense(body, layout.buffer_size, layout.dtype).dense()
        received = {
            stream: decode_body(packet.body, layout).dense()
            for stream, packet in packets.items()
            if stream not in (MODEL, BUFFERS)
        }
        if MEAN in received and MODEL not in packets:
            downlink_state = self.algorithm.downlink.repeat(downlink_state, received[MEAN])
        return _Opening(
            instruction,
            phase,
            label.incarnation,
            known,
            settled.lost,
            uplink_state=section(state, "uplink"),
            downlink_state=downlink_state,
            method_state={} if settled.lost else self.algorithm.method.receive(section(state, "method"), received),
            received=received,
            model=model,
            buffers=buffers,
            layout=layout,
        )

    def _located(self, round: int, state: State, packet: Packet | None) -> tuple[Layout, State]:
        """The layout of a round, around the model at which its subspace was drawn, and the state that belongs to it.

        Vectors of an earlier subspace mean nothing in this one, so their states are dropped.
        """
        layout, known, sent = self.layout.for_round(round), section(state, "subspace"), None
        if packet is not None:
            size = len(packet.body.data) // layout.dtype.itemsize
            if size % layout.size and size != layout.full.size:
                raise PacketError("size", f"{size} numbers, where multiples of {layout.size} are expected")
            sent = decode_dense(packet.body, size, layout.dtype).dense()
        located = layout.located(known, sent)
        if located is None:
            raise LostState
        return located, state if int(known.get("period", 0)) == layout.period else {}

    def _stack(self, vectors: list[Tensor]) -> Tensor:
        # The result is read-only, so clients with the same vector share it: copies of a large model take much memory.
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return first.to(self.device).expand(len(vectors), -1)
        return torch.stack(vectors).to(self.device)

    def _encode(self, opening: _Opening, vectors: dict[str, Tensor]) -> _Answer:
        """Encode the update by the uplink, and every other vector by the compressor of its stream."""
        instruction = opening.instruction
        counts = (instruction.invited, len(self.data))
        layout = opening.layout
        context = RoundContext(layout, self.randomness, instruction.round, instruction.client, *counts, opening.model)
        answer = _Answer(uplink_state=opening.uplink_state)
        for name, vector in vectors.items():
            if name == MODEL:
                encoded = self.algorithm.uplink.encode(vector, opening.uplink_state, context)
                answer.bodies[name], answer.used[name] = encoded.body, encoded.used
                answer.uplink_state, answer.flags = encoded.state, encoded.flags
                answer.remembered, answer.similar = encoded.remembered or encoded.used, encoded.similar
                continue
            stream = opening.phase.stream(name)
            generator = context.generator(Draw.UPLINK_STREAM.format(stream.draw))
            body = (stream.compressor or DENSE).encode(vector, layout, generator, context.invited)
            answer.bodies[name], answer.used[name] = body, decode_body(body, layout)
        if not vectors:
            answer.bodies[CONFIRM] = Body(Codec.SKIP)
        return answer

    def _probe(self, update: Tensor, answer: _Answer) -> Probe:
        assert answer.remembered is not None
        arrived = answer.remembered.dense()
        memory = answer.uplink_state.get("memory")
        target = update.clone() if memory is None else arrived + memory
        change = None if answer.similar is None else answer.similar[0].dense() - answer.similar[1].dense()
        return Probe(update.clone(), target, arrived, memory, change)

    def _close(self, opening: _Opening, answer: _Answer, method_state: State, buffers: Tensor) -> tuple[Packet, ...]:
        """Store the new state as pending, then return the packets of the reply."""
        instruction = opening.instruction
        parts = {"uplink": answer.uplink_state, "downlink": opening.downlink_state, "method": method_state}
        parts["subspace"] = opening.layout.location()
        if opening.phase.keeps_model:
            parts["current"] = {"model": opening.model}
            parts["current"] |= {} if opening.buffers is None else {"buffers": opening.buffers}
        sequence = self.store.propose(instruction.client, opening.known, joined(parts))
        bodies = dict(answer.bodies)
        if opening.buffers is not None and MODEL in bodies:
            bodies[BUFFERS] = encode_dense(buffers)
        flags = answer.flags | (Flag.RESET if opening.lost else Flag(0))
        label = _Label(instruction.round, sequence, flags, opening.incarnation, instruction.exchange)
        return tuple(self._packet(body, stream, label) for stream, body in bodies.items())

    def _lost_reply(self, instruction: Instruction, known: int, incarnation: int) -> Reply:
        label = _Label(instruction.round, known + 1, Flag.LOST, incarnation, instruction.exchange)
        packet = self._packet(Body(Codec.SKIP), MODEL, label)
        return Reply(instruction.round, instruction.client, (packet,), 0, 0, 0, float("nan"))

    def _packet(self, body: Body, stream: str, label: _Label) -> Packet:
        return Packet(
            body,
            self.algorithm.phases.number(stream),
            self.layout.for_round(label.round).fingerprint,
            label.sequence,
            label.round,
            label.flags,
            label.incarnation,
            label.exchange,
        )


@dataclass(frozen=True)
class _Label:
    """The header fields that all packets of one reply share."""

    round: int
    sequence: int
    flags: Flag
    incarnation: int
    exchange: int


@dataclass
class _Answer:
    """The encoded vectors of one client."""

    uplink_state: State
    """The uplink's new state."""
    bodies: dict[str, Body] = field(default_factory=dict)
    used: dict[str, Payload] = field(default_factory=dict)
    """The vectors that the server uses, by stream."""
    remembered: Payload | None = None
    """The vector that the uplink subtracts from its memory."""
    similar: tuple[Payload, Payload] | None = None
    """The update and the last one sent, if it was skipped or accelerated."""
    flags: Flag = Flag(0)


@dataclass(frozen=True)
class _Opening:
    """A decoded instruction, with the client's state."""

    instruction: Instruction
    phase: Phase
    incarnation: int
    known: int
    """The highest sequence number of this client's updates that the server has."""
    lost: bool
    """Whether the client has lost its state and starts over."""
    uplink_state: State
    downlink_state: State
    """The new state, after this instruction."""
    method_state: State
    received: dict[str, Tensor]
    model: Tensor
    buffers: Tensor | None
    """None if the server does not send buffers."""
    layout: Layout
