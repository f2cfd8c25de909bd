"""Where clients' states live: a committed one, and a pending one until the server has acknowledged it (design rule 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from laconic.parts import State


@dataclass(frozen=True)
class Settled:
    """A client's state at the start of a round."""

    state: State | None
    """None: the client starts anew."""
    lost: bool
    """The server has folded in an update whose state is not here any more."""


class ClientStore(Protocol):
    """Transactional state of many clients; a client that was never heard of has none."""

    def settle(self, client: int, acknowledged: int) -> Settled:
        """Commit the pending state if its number is `acknowledged`, else drop it."""
        ...

    def propose(self, client: int, acknowledged: int, state: State) -> int:
        """Keep `state` as pending, durably, and return the number of the update that goes with it."""
        ...

    def forget(self, client: int) -> None:
        """Lose everything about a client, as a machine does that is replaced."""
        ...


@dataclass
class _Record:
    committed: State | None = None
    committed_number: int = 0
    pending: State | None = None
    number: int = 0
    """The highest number given out, so that an update that was lost never shares its number with the next."""


class MemoryStore:
    """States in a dict: what the inline engine uses."""

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def settle(self, client: int, acknowledged: int) -> Settled:
        """See `ClientStore`."""
        record = self._records.get(client, _Record())
        if record.pending is not None and record.number == acknowledged:
            record.committed, record.committed_number = record.pending, acknowledged
        record.pending = None
        # A committed state of another number is an old copy: using it would count some updates twice or not at all.
        lost = record.committed_number != acknowledged
        return Settled(None if lost else record.committed, lost)

    def propose(self, client: int, acknowledged: int, state: State) -> int:
        """See `ClientStore`."""
        record = self._records.setdefault(client, _Record())
        record.number = max(record.number, acknowledged) + 1
        record.pending = state
        return record.number

    def forget(self, client: int) -> None:
        """See `ClientStore`."""
        self._records.pop(client, None)

    def states(self) -> Iterator[tuple[int, State]]:
        """Every client's newest state, pending or committed."""
        for client, record in self._records.items():
            state = record.committed if record.pending is None else record.pending
            if state is not None:
                yield client, state

    def snapshot(self) -> tuple[State, dict[str, dict[str, int]]]:
        """Everything as a flat dict of tensors and a table of numbers, for a checkpoint."""
        tensors: State = {}
        numbers: dict[str, dict[str, int]] = {}
        for client, record in self._records.items():
            entry = {"number": record.number, "committed_number": record.committed_number}
            for kind, state in (("committed", record.committed), ("pending", record.pending)):
                if state is not None:
                    entry[kind] = 1
                    tensors |= {f"{client}/{kind}/{name}": value for name, value in state.items()}
            numbers[str(client)] = entry
        return tensors, numbers

    def restore(self, tensors: State, numbers: dict[str, dict[str, int]]) -> None:
        """Take everything back from a checkpoint."""
        self._records = {
            int(client): _Record(
                committed={} if "committed" in entry else None,
                committed_number=entry["committed_number"],
                pending={} if "pending" in entry else None,
                number=entry["number"],
            )
            for client, entry in numbers.items()
        }
        for key, value in tensors.items():
            client, kind, name = key.split("/", 2)
            state: State = getattr(self._records[int(client)], kind)
            state[name] = value
