"""Clients that did not answer several times in a row. They count as absent for a while, and are then asked again."""

from __future__ import annotations

from collections.abc import Iterable

from laconic.core.state_dict import StateDict

PATIENCE = 3
"""The number of exchanges in a row without a valid reply after which a client counts as absent."""
LONGEST_ABSENCE = 64
"""The largest number of exchanges for which a client counts as absent. The first absence has 2; each further one doubles."""


class Absences:
    """By client: how often it did not answer since its last valid reply, and until when it counts as absent.

    On failure: part of the server's checkpoint, so that a restarted server asks the same clients.
    """

    def __init__(self) -> None:
        self._missed: dict[int, int] = {}
        self._until: dict[int, int] = {}
        self._exchange = 0
        """The number of exchanges so far. Absences last exchanges, not seconds, so that they are reproducible."""

    def record(self, answered: Iterable[int], unanswered: Iterable[int]) -> list[int]:
        """Record who answered in one exchange and who did not. Returns the clients that count as absent from now on."""
        self._exchange += 1
        for client in answered:
            self._missed.pop(client, None)
            self._until.pop(client, None)
        absent = []
        for client in sorted(unanswered):
            count = self._missed[client] = self._missed.get(client, 0) + 1
            if count >= PATIENCE:
                self._until[client] = self._exchange + min(LONGEST_ABSENCE, 2 ** (count - PATIENCE + 1))
                absent.append(client)
        return absent

    def is_absent(self, client: int) -> bool:
        """Whether a client counts as absent now."""
        return self._until.get(client, 0) > self._exchange

    def end(self) -> None:
        """End all absences: too few other clients are connected. A client that is silent again is absent for longer."""
        self._until.clear()

    def state_dict(self) -> StateDict:
        """All counts, with keys that JSON can hold."""
        clients = {str(client): [count, self._until.get(client, 0)] for client, count in self._missed.items()}
        return {"exchange": self._exchange, "clients": clients}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a `state_dict`."""
        self._exchange = state["exchange"]
        self._missed = {int(client): count for client, (count, _) in state["clients"].items()}
        self._until = {int(client): until for client, (_, until) in state["clients"].items() if until}
