"""What the server still has to tell clients whose update it has used (design rule 5).

Where a round has a second exchange that clients must not miss, what it brings is kept here until each of them has
confirmed it, and goes out again with its next instruction. All clients of one round are owed the same, so it is kept once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from laconic.compression.packet import Body, Stream
from laconic.core.part import State


class PendingBroadcasts:
    """Bodies by round, and the round that each debtor waits for."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}
        self._debtors: Counter[int] = Counter()
        """How many wait for each round."""
        self._bodies: dict[int, dict[Stream, Body]] = {}

    def owe(self, round: int, bodies: dict[Stream, Body], clients: Iterable[int]) -> None:
        """From now on every one of these clients must hear this."""
        for client in clients:
            self._enter(client, round)
        if self._debtors[round]:
            self._bodies[round] = bodies

    def _enter(self, client: int, round: int) -> None:
        self.settle(client)
        self._rounds[client] = round
        self._debtors[round] += 1

    def of(self, client: int) -> dict[Stream, Body]:
        """What that client is owed."""
        return self._bodies[self._rounds[client]] if client in self._rounds else {}

    def settle(self, client: int) -> None:
        """The client has confirmed, or is not there any more."""
        round = self._rounds.pop(client, None)
        if round is None:
            return
        self._debtors[round] -= 1
        if not self._debtors[round]:
            del self._debtors[round]
            self._bodies.pop(round, None)

    def clients(self) -> dict[int, int]:
        """The debtors, and the round of each."""
        return dict(self._rounds)

    def state(self) -> State:
        """As tensors, for a checkpoint."""
        state: State = {}
        if self._rounds:
            state["clients"] = torch.tensor(list(self._rounds.items()))
        for round, bodies in self._bodies.items():
            state |= {f"bodies/{round}/{int(stream)}": body.to_tensor() for stream, body in bodies.items()}
        return state

    @classmethod
    def restored(cls, state: State) -> PendingBroadcasts:
        """The inverse of `state`."""
        debts = cls()
        for key, value in state.items():
            if key == "clients":
                for client, round in value.tolist():
                    debts._enter(client, round)
            else:
                _, round, stream = key.split("/")
                debts._bodies.setdefault(int(round), {})[Stream(int(stream))] = Body.from_tensor(value)
        return debts
