"""Faults on purpose, from named randomness: what happens to messages and clients on real networks.

A fault is decided per client and round, so the same seed gives the same faults on any engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from laconic.compression.packet import sequence_of
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.state_dict import StateDict
from laconic.engine.attacks import Attacks
from laconic.engine.settings import Faults
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import FaultInjection, Instruction, Reply

_NUMBERS = ("round", "client", "examples", "gradients", "samples", "loss")


class FaultyEngine(SimulatedEngine):
    """An engine, whichever it is, whose clients and messages fail."""

    def __init__(
        self, engine: SimulatedEngine, faults: Faults, randomness: Randomness, *, clients: int, layout: Layout
    ) -> None:
        self.engine, self.faults, self.randomness = engine, faults, randomness
        counts = (faults.not_finite, faults.boosted, faults.boost, clients)
        self.attacks = Attacks(*counts, layout, randomness)
        self.held: list[Reply] = []
        """Replies of the last round that are still on their way."""
        self.forgetful: dict[int, int] = {}
        """Clients that have lost their state: the number of the update that the server still takes for their last.

        Kept here and not in their store: what is in a checkpoint is undone with it.
        """

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies that come through, in order, and those that should not be there."""
        late, self.held = self.held, []
        yield from late
        silent: set[int] = set()
        for reply in self.engine.run(self._befallen(instructions, silent)):
            if reply.client in silent or self._happens(Draw.DROP, self.faults.drop, reply):
                continue
            sent = self.attacks.spoil(reply)
            if self._happens(Draw.LATE, self.faults.late, reply):
                self.held.append(sent)
                continue
            yield sent
            if self._happens(Draw.DUPLICATE, self.faults.duplicate, reply):
                yield sent

    def _befallen(self, instructions: Iterable[Instruction], silent: set[int]) -> Iterator[Instruction]:
        """What clients hear, and what happens to them before they answer; those whose answer is lost become `silent`."""
        for instruction in instructions:
            injected = instruction.injected
            if self._forgets(instruction):
                injected |= FaultInjection.LOSE_STATE
            if self._happens(Draw.CRASH, self.faults.crash, instruction):
                # A third each: before anything is done, after the last round is settled, after the new state is stored.
                moment = self._draw(Draw.CRASH_MOMENT, instruction)
                if moment < 1 / 3:
                    continue
                if moment < 2 / 3:
                    injected |= FaultInjection.CRASH
                silent.add(instruction.client)
            yield replace(instruction, injected=injected)

    def _forgets(self, instruction: Instruction) -> bool:
        """A client that comes back with nothing has nothing until the server has folded an update of its new life."""
        client, last = instruction.client, instruction.continues
        if last is None:
            last = sequence_of(instruction.packets[0])
        if self._happens(Draw.LOSE_STATE, self.faults.lose_state, instruction):
            self.forgetful[client] = last
        elif self.forgetful.get(client, last) != last:
            del self.forgetful[client]
        return client in self.forgetful

    def state_dict(self) -> StateDict:
        """The replies that are still on their way, and which clients have lost their states."""
        packets: State = {}
        replies = []
        for number, reply in enumerate(self.held):
            bodies = {f"{number}/{index}": bytearray(bytes(raw)) for index, raw in enumerate(reply.packets)}
            packets |= {name: torch.frombuffer(raw, dtype=torch.uint8) for name, raw in bodies.items()}
            replies.append({name: getattr(reply, name) for name in _NUMBERS} | {"packets": list(bodies)})
        return {**packets, "replies": replies, "forgetful": [*self.forgetful.items()]}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace both by what `state_dict` returned."""
        self.held = [
            Reply(**{**reply, "packets": tuple(state[name].numpy().tobytes() for name in reply["packets"])})
            for reply in state["replies"]
        ]
        self.forgetful = dict(state["forgetful"])

    def _happens(self, fault: Draw, chance: float, message: Instruction | Reply) -> bool:
        return chance > 0 and self._draw(fault, message) < chance

    def _draw(self, purpose: Draw, message: Instruction | Reply) -> float:
        return float(self.randomness.numpy(purpose, message.round, message.client).random())
