"""A client's round from instruction to reply, for a chunk of clients; the same code in every engine.

A client's round is a transaction (design rule 5). The instruction carries the number of the client's last update that the
server has folded in: the pending state with that number is committed, any other is dropped, as if the client had not taken
part. The new state is stored as pending before the reply leaves. A later exchange of the same round goes on from the pending
state of the one before, which stays pending: the server acknowledges whole rounds, once they are durable. A client that has
lost the state of an acknowledged update starts anew and says so; if it cannot read what it was sent without that state it
says only this, and is sent the whole model next.
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
from laconic.algorithms.methods.exchange import BUFFERS, CONFIRM, MEAN, MODEL, Phase
from laconic.compression import DENSE, Codec, Payload, decode_body, decode_dense, encode_dense
from laconic.compression.packet import Body, Flag, Frame, Packet
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, section
from laconic.core.randomness import Draw, Randomness
from laconic.core.task import Task
from laconic.data.federated import ClientData
from laconic.federation.messages import FaultInjection, Instruction, Probe, Reply
from laconic.federation.store import ClientStore, Question, Settled
from laconic.gradients.strategies import Gradients


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
        """One chunk of clients through an exchange; replies in the order of the instructions."""
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
            replies |= {reply.client: reply for reply in self._work(openings, gradients)}
        return [replies[instruction.client] for instruction in instructions if instruction.client in replies]

    def settle(self, instruction: Instruction) -> Settled:
        """Commit or drop the pending state, as the instruction says."""
        return self._settled(instruction, self._parse(instruction))

    def _settled(self, instruction: Instruction, packets: dict[str, Packet]) -> Settled:
        question = self._question(instruction, packets)
        settled = self.store.settle(instruction.client, question)
        if FaultInjection.LOSE_STATE in instruction.injected:
            return Settled(None, lost=question.acknowledged > 0 or question.continues is not None)
        return settled

    def _question(self, instruction: Instruction, packets: dict[str, Packet]) -> Question:
        label = next(iter(packets.values()))
        place = (label.incarnation, label.round, label.exchange)
        if any((packet.incarnation, packet.round, packet.exchange) != place for packet in packets.values()):
            raise PacketError("stream", "an instruction with packets of several occasions")
        return Question(
            *place, label.sequence, instruction.continues, again=FaultInjection.ASKED_AGAIN in instruction.injected
        )

    def _parse(self, instruction: Instruction) -> dict[str, Packet]:
        parsed = [Packet.parse(packet, self.layout) for packet in instruction.packets]
        packets = {self.algorithm.phases.stream(packet.stream): packet for packet in parsed}
        if not packets:
            raise PacketError("stream", "an instruction without a packet")
        return packets

    def _work(self, openings: Sequence[_Opening], gradients: Gradients) -> list[Reply]:
        method, phase = self.algorithm.method, openings[0].phase
        cohort = self._cohort(openings, gradients)
        answers = {stream: vectors.cpu() for stream, vectors in phase.answer(cohort).items()}
        losses, samples = cohort.mean_losses(), cohort.samples()
        replies = []
        for row, opening in enumerate(openings):
            client = opening.instruction.client
            answer = self._encode(opening, {stream: vectors[row] for stream, vectors in answers.items()})
            own = method.remember(cohort, row, answer.used)
            update = answers[MODEL][row] if MODEL in answers else None
            replies.append(
                Reply(
                    round=opening.instruction.round,
                    client=client,
                    packets=self._close(opening, answer, own, cohort.buffers[row]),
                    examples=self.data.size(client),
                    gradients=phase.gradients(self.data.size(client)),
                    samples=samples[row],
                    loss=losses[row],
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
            states=[opening.own for opening in openings],
            _received={
                stream: self._together([opening.received[stream] for opening in openings])
                for stream in first.received
                # What only some clients wait for was used at the opening (`Method.receive`).
                if all(stream in opening.received for opening in openings)
            },
            models=self._together([opening.model for opening in openings]),
            # Written to on the way, so these are always copies.
            buffers=torch.stack([self._buffers(opening) for opening in openings]).to(self.device),
            task=self.task,
            layout=self.layout,
            data=self.data,
            randomness=self.randomness,
            _gradients=gradients,
            _shared=[shared.name for shared in self.algorithm.method.shared_states()],
        )

    def _open(self, instruction: Instruction) -> _Opening | Reply:
        """Settle the last exchange, and read what has come; a reply if it cannot be read."""
        packets = self._parse(instruction)
        phase = self.algorithm.phases[instruction.phase]
        missing = [stream.name for stream in phase.down if stream.name not in packets]
        if missing:
            raise PacketError("stream", f"phase '{phase.name}' without {', '.join(missing)}")
        label = next(iter(packets.values()))
        settled = self._settled(instruction, packets)
        # The next answer must have a number that the server has not seen, also from a client that has lost count.
        known = max(label.sequence, instruction.continues or 0)
        state = settled.state or {}
        held, current = section(state, "downlink"), section(state, "current")
        model, buffers = current.get("model", self.initial_model), current.get("buffers")
        try:
            if MODEL in packets:
                arguments = (packets[MODEL].body, held, self.initial_model, self.layout, settled.lost)
                model, held = self.algorithm.downlink.receive(*arguments)
            elif settled.lost:
                # The question goes on from an exchange that this client knows nothing of any more.
                raise LostState
        except LostState:
            return self._lost(instruction, known, label.incarnation)
        if BUFFERS in packets:
            body = packets[BUFFERS].body
            buffers = decode_dense(body, self.layout.buffer_size, self.layout.dtype).dense()
        received = {
            stream: decode_body(packet.body, self.layout).dense()
            for stream, packet in packets.items()
            if stream not in (MODEL, BUFFERS)
        }
        if MEAN in received and MODEL not in packets:
            held = self.algorithm.downlink.repeat(held, received[MEAN])
        return _Opening(
            instruction,
            phase,
            label.incarnation,
            known,
            settled.lost,
            memory=section(state, "uplink"),
            held=held,
            own={} if settled.lost else self.algorithm.method.receive(section(state, "method"), received),
            received=received,
            model=model,
            buffers=buffers,
        )

    def _together(self, vectors: list[Tensor]) -> Tensor:
        # Nobody writes to these, so clients that were sent the same need no copies; with a large model each vector counts.
        first = vectors[0]
        if all(vector is first for vector in vectors):
            return first.to(self.device).expand(len(vectors), -1)
        return torch.stack(vectors).to(self.device)

    def _buffers(self, opening: _Opening) -> Tensor:
        return self.initial_buffers if opening.buffers is None else opening.buffers

    def _encode(self, opening: _Opening, vectors: dict[str, Tensor]) -> _Answer:
        """Every vector as a body: the update by the uplink and its memory, the others by their stream's compressor."""
        context = self._context(opening.instruction)
        answer = _Answer(memory=opening.memory)
        for name, vector in vectors.items():
            if name == MODEL:
                encoded = self.algorithm.uplink.encode(vector, opening.memory, context)
                answer.bodies[name], answer.used[name] = encoded.body, encoded.used
                answer.memory, answer.flags = encoded.state, encoded.flags
                answer.remembered = encoded.remembered or encoded.used
                continue
            declared = opening.phase.stream(name)
            generator = context.generator(Draw.UPLINK_STREAM.format(declared.draw))
            body = (declared.compressor or DENSE).encode(vector, self.layout, generator)
            answer.bodies[name], answer.used[name] = body, decode_body(body, self.layout)
        if not vectors:
            answer.bodies[CONFIRM] = Body(Codec.SKIP)
        return answer

    def _context(self, instruction: Instruction) -> RoundContext:
        counts = {"invited": instruction.invited, "population": len(self.data)}
        return RoundContext(self.layout, self.randomness, instruction.round, instruction.client, **counts)

    def _probe(self, update: Tensor, answer: _Answer) -> Probe:
        assert answer.remembered is not None
        arrived = answer.remembered.dense()
        memory = answer.memory.get("memory")
        return Probe(update.clone(), update.clone() if memory is None else arrived + memory, arrived, memory)

    def _close(self, opening: _Opening, answer: _Answer, own: State, buffers: Tensor) -> tuple[Frame, ...]:
        """Keep the state as pending, and only then let the packets go."""
        instruction = opening.instruction
        parts = {"uplink": answer.memory, "downlink": opening.held, "method": own}
        if opening.phase.keeps_model:
            parts["current"] = {"model": opening.model}
            parts["current"] |= {} if opening.buffers is None else {"buffers": opening.buffers}
        state = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        sequence = self.store.propose(instruction.client, opening.known, state)
        bodies = dict(answer.bodies)
        if opening.buffers is not None and MODEL in bodies:
            bodies[BUFFERS] = encode_dense(buffers)
        flags = answer.flags | (Flag.RESET if opening.lost else Flag(0))
        label = _Label(instruction.round, sequence, flags, opening.incarnation, instruction.exchange)
        return tuple(self._packet(body, stream, label) for stream, body in bodies.items())

    def _lost(self, instruction: Instruction, known: int, incarnation: int) -> Reply:
        label = _Label(instruction.round, known + 1, Flag.LOST, incarnation, instruction.exchange)
        packet = self._packet(Body(Codec.SKIP), MODEL, label)
        return Reply(instruction.round, instruction.client, (packet,), 0, 0, 0, float("nan"))

    def _packet(self, body: Body, stream: str, label: _Label) -> Frame:
        return Packet(
            body,
            self.algorithm.phases.number(stream),
            self.layout.fingerprint,
            label.sequence,
            label.round,
            label.flags,
            label.incarnation,
            label.exchange,
        ).to_frame()


@dataclass(frozen=True)
class _Label:
    """What all packets of one reply say alike."""

    round: int
    sequence: int
    flags: Flag
    incarnation: int
    exchange: int


@dataclass
class _Answer:
    """What goes up, and what the server will make of it."""

    memory: State
    """The uplink's new state."""
    bodies: dict[str, Body] = field(default_factory=dict)
    used: dict[str, Payload] = field(default_factory=dict)
    remembered: Payload | None = None
    """What the uplink's memory takes for sent."""
    flags: Flag = Flag(0)


@dataclass(frozen=True)
class _Opening:
    instruction: Instruction
    phase: Phase
    incarnation: int
    known: int
    """The highest number of this client's answers that the server has."""
    lost: bool
    memory: State
    """The uplink's state."""
    held: State
    """The downlink's new state."""
    own: State
    """The method's state."""
    received: dict[str, Tensor]
    model: Tensor
    buffers: Tensor | None
    """None if they do not travel."""
