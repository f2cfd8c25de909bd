"""Where clients' states live: a committed one, and a pending one until the server has acknowledged it (design rule 5)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from laconic.errors import PacketError
from laconic.parts import State


@dataclass(frozen=True)
class Settled:
    """A client's state at the start of a round."""

    state: State | None
    """None: the client starts anew."""
    lost: bool
    """The server has folded in an update whose state is not here any more."""


@dataclass(frozen=True)
class Question:
    """Where in the conversation with one client an instruction stands."""

    incarnation: int
    round: int
    exchange: int
    acknowledged: int
    """The number of the client's last update that the server has durably folded in."""
    continues: int | None = None
    """In a later exchange of a round: the number of the client's answer to the one before."""

    def follows(self, last: tuple[int, int, int] | None) -> bool:
        """Whether this comes after the last one that was taken; incarnations are counted modulo 2^16."""
        if last is None:
            return True
        if self.incarnation == last[0]:
            return (self.round, self.exchange) > last[1:]
        return (self.incarnation - last[0]) % 2**16 < 2**15


class ClientStore(Protocol):
    """Transactional state of many clients; a client that was never heard of has none."""

    def settle(self, client: int, question: Question) -> Settled:
        """Commit the pending state whose number is acknowledged, and drop the others.

        A later exchange of the same round continues from the pending state of an earlier one, which is kept, and not
        committed either: the server has used it, but not durably yet. A question that does not follow the last one is a
        copy, or late: it is refused, for it would drop what the next one acknowledges.
        """
        ...

    def propose(self, client: int, known: int, state: State) -> int:
        """Keep `state` as pending, durably, and return the number of the update that goes with it: above `known`."""
        ...

    def forget(self, client: int) -> None:
        """Lose everything about a client, as a machine does that is replaced."""
        ...


@dataclass
class _Record:
    committed: State | None = None
    committed_number: int = 0
    pending: dict[int, State] = field(default_factory=dict)
    """By number: one for every exchange of the present round."""
    number: int = 0
    """The highest number given out, so that an update that was lost never shares its number with the next."""
    last: tuple[int, int, int] | None = None
    """Incarnation, round and exchange of the last question."""


def unseen() -> int:
    """How many numbers a client leaves out that starts with an empty store.

    It may be asked, by a copy of an old instruction, what it has answered before its store was lost. The second answer must
    not take the first one's number: the server may have folded that, and acknowledge it. Nothing that the client still has
    tells it so; hence a random number, at the odds of one to a million for every such event.
    """
    return secrets.randbelow(2**20)


class MemoryStore:
    """States in a dict: what the inline engine uses."""

    def __init__(self, unseen: Callable[[], int] = lambda: 0) -> None:
        self._records: dict[int, _Record] = {}
        self._unseen = unseen
        """None left out where an instruction is never delivered twice, so that every run has the same numbers."""

    def settle(self, client: int, question: Question) -> Settled:
        """See `ClientStore`."""
        record = self._records.setdefault(client, _Record())
        if not question.follows(record.last):
            raise PacketError("stale", f"client {client} was asked this before")
        record.last = (question.incarnation, question.round, question.exchange)
        acknowledged, continues = question.acknowledged, question.continues
        if acknowledged in record.pending:
            record.committed, record.committed_number = record.pending[acknowledged], acknowledged
        if continues is not None:
            record.pending = {number: state for number, state in record.pending.items() if number == continues}
            return Settled(record.pending.get(continues), continues not in record.pending)
        record.pending = {}
        # A committed state of another number is an old copy: using it would count some updates twice or not at all.
        lost = record.committed_number != acknowledged
        return Settled(None if lost else record.committed, lost)

    def propose(self, client: int, known: int, state: State) -> int:
        """See `ClientStore`."""
        record = self._records.setdefault(client, _Record())
        record.number = max(record.number, known) + 1 if record.number else known + 1 + self._unseen()
        record.pending[record.number] = state
        return record.number

    def forget(self, client: int) -> None:
        """See `ClientStore`."""
        self._records.pop(client, None)

    def states(self) -> Iterator[tuple[int, State]]:
        """Every client's newest state, pending or committed."""
        for client, record in self._records.items():
            state = record.pending[max(record.pending)] if record.pending else record.committed
            if state is not None:
                yield client, state

    def snapshot(self) -> tuple[State, dict[str, dict[str, Any]]]:
        """Everything as a flat dict of tensors and a table of numbers, for a checkpoint."""
        tensors: State = {}
        table: dict[str, dict[str, Any]] = {}
        for client, record in self._records.items():
            table[str(client)] = {
                "number": record.number,
                "committed": None if record.committed is None else record.committed_number,
                "pending": list(record.pending),
                "last": record.last,
            }
            kept = record.pending | ({} if record.committed is None else {record.committed_number: record.committed})
            for number, state in kept.items():
                tensors |= {f"{client}/{number}/{name}": value for name, value in state.items()}
        return tensors, table

    def restore(self, tensors: State, table: dict[str, dict[str, Any]]) -> None:
        """Take everything back from a checkpoint."""
        states: dict[tuple[str, str], State] = {}
        for key, value in tensors.items():
            client, number, name = key.split("/", 2)
            states.setdefault((client, number), {})[name] = value
        self._records = {
            int(client): _Record(
                committed=None if entry["committed"] is None else states.get((client, str(entry["committed"])), {}),
                committed_number=entry["committed"] or 0,
                pending={number: states.get((client, str(number)), {}) for number in entry["pending"]},
                number=entry["number"],
                last=entry["last"] and tuple(entry["last"]),
            )
            for client, entry in table.items()
        }
