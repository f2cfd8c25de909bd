"""Clients' states: a committed one each, and pending ones until the server acknowledges one of them (design rule 5)."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.core.state_dict import StateDict


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
    """The number of an answer that the server has used, but not durably yet: in an earlier exchange of the round, or in an
    earlier round since the last checkpoint."""
    again: bool = False
    """Whether the answer to the same question is known to have been lost before it left."""

    def follows(self, last: tuple[int, int, int] | None) -> bool:
        """Whether this comes after the last one that was taken; incarnations are counted modulo 2^16."""
        if last is None:
            return True
        if self.incarnation == last[0]:
            here = (self.round, self.exchange)
            return here > last[1:] or (self.again and here == last[1:])
        return (self.incarnation - last[0]) % 2**16 < 2**15


class ClientStore(Protocol):
    """Transactional state of many clients; a client that was never heard of has none."""

    def settle(self, client: int, question: Question) -> Settled:
        """Commit the pending state whose number is acknowledged, and drop the others.

        A question may continue from the pending state of an earlier one, which is kept, and not committed either: the server
        has used it, but not durably yet. A question that does not follow the last one is a
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
class Record:
    """The numbers of what is kept of a client; its states are kept by them."""

    number: int = 0
    """The highest number given out, so that an update that was lost never shares its number with the next."""
    committed: int = 0
    """The number of the committed state; 0 if there is none."""
    pending: list[int] = field(default_factory=list)
    """One number for every answer since the last acknowledgement that may still count."""
    last: tuple[int, int, int] | None = None
    """Incarnation, round and exchange of the last question."""

    def held(self) -> set[int]:
        """The numbers of all the states that are kept."""
        return {*self.pending, *([self.committed] if self.committed else [])}

    def copy(self) -> Record:
        """An equal record that may be changed."""
        return replace(self, pending=list(self.pending))

    def settled(self, question: Question) -> Record:
        """The record after a question: the acknowledged state is committed, the one that it continues from stays pending."""
        return Record(
            self.number,
            question.acknowledged if question.acknowledged in self.pending else self.committed,
            [number for number in self.pending if number == question.continues],
            (question.incarnation, question.round, question.exchange),
        )


def unseen() -> int:
    """How many numbers a client skips that starts with an empty store.

    A copy of an old instruction may ask it what it has answered before its store was lost. The second answer must not take
    the first one's number: the server may have folded that, and acknowledge it. Nothing that the client still has tells it
    so; hence a random number, which fails once in a million such events.
    """
    return secrets.randbelow(2**20)


class RecordStore(ABC):
    """What all stores do in the same way; where records and states are kept is up to each."""

    def __init__(self, unseen: Callable[[], int] = lambda: 0) -> None:
        self._unseen = unseen
        """Zero where no instruction is delivered twice, so that every run has the same numbers."""

    @abstractmethod
    def clients(self) -> Iterable[int]:
        """All clients that have a record."""

    @abstractmethod
    def record(self, client: int) -> Record | None:
        """A copy of a client's record, if it has one."""

    @abstractmethod
    def state(self, client: int, number: int) -> State:
        """The state with that number, which the client's record names."""

    @abstractmethod
    def forget(self, client: int) -> None:
        """See `ClientStore`."""

    @abstractmethod
    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        """Replace a record, and add and drop states."""

    def settle(self, client: int, question: Question) -> Settled:
        """See `ClientStore`."""
        before = self.record(client)
        after = self._after(client, before, question)
        self._write(client, after, {}, (before or Record()).held() - after.held())
        return self._settled(client, after, question)

    def _after(self, client: int, record: Record | None, question: Question) -> Record:
        record = record or Record()
        if not question.follows(record.last):
            raise PacketError("stale", f"client {client} was asked this before")
        return record.settled(question)

    def _settled(self, client: int, record: Record, question: Question) -> Settled:
        if question.continues is not None:
            lost = question.continues not in record.pending
            return Settled(None if lost else self.state(client, question.continues), lost)
        # A committed state of another number is an old copy: using it would count some updates twice or not at all.
        lost = record.committed != question.acknowledged
        return Settled(None if lost or not record.committed else self.state(client, record.committed), lost)

    def propose(self, client: int, known: int, state: State) -> int:
        """See `ClientStore`."""
        record = self.record(client) or Record()
        record.number = max(record.number, known) + 1 if record.number else known + 1 + self._unseen()
        record.pending.append(record.number)
        self._write(client, record, {record.number: state}, ())
        return record.number

    def states(self) -> Iterator[tuple[int, State]]:
        """Every client's newest state, pending or committed."""
        for client in self.clients():
            record = self.record(client)
            if record is not None and record.held():
                yield client, self.state(client, max(record.pending, default=record.committed))

    def state_dict(self) -> StateDict:
        """All records, as "records", and all states, as "client/number/name"."""
        records = {client: self.record(client) or Record() for client in self.clients()}
        found: StateDict = {"records": {str(client): asdict(record) for client, record in records.items()}}
        for client, record in records.items():
            for number in sorted(record.held()):
                state = self.state(client, number)
                found |= {f"{client}/{number}/{name}": value for name, value in state.items()}
        return found


class MemoryStore(RecordStore):
    """States in a dict: the default of a simulation."""

    def __init__(self, unseen: Callable[[], int] = lambda: 0) -> None:
        super().__init__(unseen)
        self._records: dict[int, Record] = {}
        self._states: dict[int, dict[int, State]] = {}

    def clients(self) -> Iterable[int]:
        return list(self._records)

    def record(self, client: int) -> Record | None:
        record = self._records.get(client)
        return None if record is None else record.copy()

    def state(self, client: int, number: int) -> State:
        return self._states[client][number]

    def forget(self, client: int) -> None:
        self._records.pop(client, None)
        self._states.pop(client, None)

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        self._records[client] = record
        states = self._states.setdefault(client, {})
        states.update(added)
        for number in dropped:
            del states[number]

    def load_state_dict(self, state: StateDict) -> None:
        """Replace everything by what `state_dict` returned."""
        records = {int(client): Record(**fields) for client, fields in state["records"].items()}
        for record in records.values():
            record.last = record.last and (record.last[0], record.last[1], record.last[2])
        self._records = records
        self._states = {client: {number: {} for number in record.held()} for client, record in records.items()}
        for key, value in state.items():
            if key != "records":
                client, number, name = key.split("/", 2)
                self._states[int(client)][int(number)][name] = value
