"""Simulated faults of clients and messages, and attackers, for tests of defenses.

Faults are drawn per client and round from named randomness, so the same seed gives the same faults on every engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from laconic.compression import Codec, decode_body, decode_dense, encode_dense
from laconic.compression.packet import Body, CoreStream, Packet
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.state_dict import StateDict
from laconic.engine.settings import Faults
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import FaultInjection, Instruction, Reply

_NUMBERS = ("round", "client", "examples", "gradients", "samples", "loss", "counted")


class FaultyEngine(SimulatedEngine):
    """Wraps another engine and injects faults into its clients and messages."""

    def __init__(
        self, engine: SimulatedEngine, faults: Faults, randomness: Randomness, *, clients: int, layout: Layout
    ) -> None:
        self.engine, self.faults, self.randomness = engine, faults, randomness
        self.attacks = Attacks(faults, clients, layout, randomness)
        self.late: list[Reply] = []
        """Replies that arrive in the next exchange."""
        self.without_state: dict[int, int] = {}
        """Clients that have lost their state, and the last update that the server had acknowledged before.

        This is not in the clients' store, since a rollback to a checkpoint would restore the lost state.
        """

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies that arrive: late ones of the previous exchange first, then the others in order."""
        late, self.late = self.late, []
        yield from late
        crashed: set[int] = set()
        for reply in self.engine.run(self._inject(instructions, crashed)):
            if reply.client in crashed or self._happens(Draw.DROP, self.faults.drop, reply):
                continue
            sent = self.attacks.apply(reply)
            if self._happens(Draw.LATE, self.faults.late, reply):
                self.late.append(sent)
                continue
            yield sent
            if self._happens(Draw.DUPLICATE, self.faults.duplicate, reply):
                yield sent

    def _inject(self, instructions: Iterable[Instruction], crashed: set[int]) -> Iterator[Instruction]:
        """The instructions that clients receive, with injected faults. Clients whose reply is lost join `crashed`."""
        for instruction in instructions:
            injected = instruction.injected
            if self._loses_state(instruction):
                injected |= FaultInjection.LOSE_STATE
            if self._happens(Draw.CRASH, self.faults.crash, instruction):
                # A third each: on arrival, after the pending state is committed or dropped, after the new state is stored.
                moment = self._draw(Draw.CRASH_MOMENT, instruction)
                if moment < 1 / 3:
                    continue
                if moment < 2 / 3:
                    injected |= FaultInjection.CRASH
                crashed.add(instruction.client)
            yield replace(instruction, injected=injected)

    def _loses_state(self, instruction: Instruction) -> bool:
        """Whether the client has no state. After a loss that lasts until the server has used a new update of the client."""
        client, last = instruction.client, instruction.last_update
        if self._happens(Draw.LOSE_STATE, self.faults.lose_state, instruction):
            self.without_state[client] = last
        elif self.without_state.get(client, last) != last:
            del self.without_state[client]
        return client in self.without_state

    def state_dict(self) -> StateDict:
        """The late replies and the clients without state."""
        packets: State = {}
        replies = []
        for number, reply in enumerate(self.late):
            bodies = {f"{number}/{index}": bytearray(bytes(raw)) for index, raw in enumerate(reply.packets)}
            packets |= {name: torch.frombuffer(raw, dtype=torch.uint8) for name, raw in bodies.items()}
            replies.append({name: getattr(reply, name) for name in _NUMBERS} | {"packets": list(bodies)})
        return {**packets, "replies": replies, "forgetful": [*self.without_state.items()]}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a `state_dict`."""
        self.late = [
            Reply(**{**reply, "packets": tuple(state[name].numpy().tobytes() for name in reply["packets"])})
            for reply in state["replies"]
        ]
        self.without_state = dict(state["forgetful"])

    def _happens(self, fault: Draw, chance: float, message: Instruction | Reply) -> bool:
        return chance > 0 and self._draw(fault, message) < chance

    def _draw(self, purpose: Draw, message: Instruction | Reply) -> float:
        return float(self.randomness.numpy(purpose, message.round, message.client).random())


def attack_factors(faults: Faults, clients: int, randomness: Randomness) -> dict[int, float]:
    """Draw the attackers: the factor of each, by client."""
    not_finite, boosted = faults.not_finite, faults.boosted
    if not_finite + boosted > clients:
        raise ConfigError(
            f"faults.boosted = {boosted}: with {not_finite} not_finite, attackers outnumber the {clients} clients"
        )
    chosen = randomness.numpy(Draw.ATTACKERS).choice(clients, not_finite + boosted, replace=False).tolist()
    return dict.fromkeys(chosen[:not_finite], math.nan) | dict.fromkeys(chosen[not_finite:], faults.boost)


class Attacks:
    """A fixed set of attackers, whose vectors are multiplied by NaN or by a factor."""

    def __init__(self, faults: Faults, clients: int, layout: Layout, randomness: Randomness) -> None:
        self.factors = attack_factors(faults, clients, randomness)
        self._layout = layout

    def apply(self, reply: Reply) -> Reply:
        """Replace the vectors of an attacker's reply. Other replies are returned unchanged."""
        factor = self.factors.get(reply.client)
        if factor is None:
            return reply
        layout = self._layout.for_round(reply.round)
        parsed = [Packet.parse(packet, layout) for packet in reply.packets]
        packets = [replace(p, body=self._scaled(p, factor)).to_bytes() for p in parsed if p.body.codec != Codec.SKIP]
        return replace(reply, packets=tuple(packets) or reply.packets)

    def _scaled(self, packet: Packet, factor: float) -> Body:
        if packet.stream == CoreStream.BUFFERS:
            vector = decode_dense(packet.body, self._layout.buffer_size, self._layout.dtype).dense() * factor
        else:
            vector = decode_body(packet.body, self._layout).dense() * factor
        most = torch.finfo(vector.dtype).max
        return encode_dense(vector.clamp(-most, most))
