"""Broadcast vectors that clients have not confirmed yet.

Some methods send a result, such as the mean of the round, back to every client whose update was used. The server keeps the
vector until the client confirms it, and sends it with every instruction until then. All clients of one round receive the
same vectors, so each is stored once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from laconic.compression.packet import Body
from laconic.core.part import State


class PendingBroadcasts:
    """Encoded vectors by round, and the round whose vectors each client still needs."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}
        self._waiting: Counter[int] = Counter()
        """The number of clients that have not confirmed a round's bodies, by round."""
        self._bodies: dict[int, dict[str, Body]] = {}

    def must_deliver(self, round: int, bodies: dict[str, Body], clients: Iterable[int]) -> None:
        """Keep `bodies` until all of `clients` have confirmed them."""
        for client in clients:
            self._add(client, round)
        if self._waiting[round]:
            self._bodies[round] = bodies

    def _add(self, client: int, round: int) -> None:
        self.confirm(client)
        self._rounds[client] = round
        self._waiting[round] += 1

    def bodies(self, client: int) -> dict[str, Body]:
        """The bodies that a client has not confirmed."""
        return self._bodies[self._rounds[client]] if client in self._rounds else {}

    def confirm(self, client: int) -> None:
        """Record that the client has received its bodies or no longer needs them."""
        round = self._rounds.pop(client, None)
        if round is None:
            return
        self._waiting[round] -= 1
        if not self._waiting[round]:
            del self._waiting[round]
            self._bodies.pop(round, None)

    def clients(self) -> dict[int, int]:
        """The round whose bodies each waiting client needs, by client."""
        return dict(self._rounds)

    def state_dict(self) -> State:
        """All bodies and waiting clients as tensors."""
        state: State = {}
        if self._rounds:
            state["clients"] = torch.tensor(list(self._rounds.items()))
        for round, bodies in self._bodies.items():
            state |= {f"bodies/{round}/{stream}": body.to_tensor() for stream, body in bodies.items()}
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        self._rounds, self._waiting, self._bodies = {}, Counter(), {}
        for key, value in state.items():
            if key == "clients":
                for client, round in value.tolist():
                    self._add(client, round)
            else:
                _, round, stream = key.split("/")
                self._bodies.setdefault(int(round), {})[stream] = Body.from_tensor(value)
