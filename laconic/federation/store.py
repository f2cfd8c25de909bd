"""Client states as transactions.

Each client has at most one committed state, and pending states until the server acknowledges one of them.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.core.state_dict import StateDict


@dataclass(frozen=True)
class Settled:
    """A client's state at the start of a round."""

    state: State | None
    """None if the client starts over."""
    lost: bool
    """Whether the server has used an update whose state the client no longer has."""


@dataclass(frozen=True)
class Question:
    """The position of an instruction in a run, and the client's updates that it refers to."""

    incarnation: int
    round: int
    exchange: int
    acknowledged: int
    """The number of the client's last update that the server has durably aggregated."""
    continues: int | None = None
    """The number of an update that the server has used, but not durably yet: in an earlier exchange of the round, or in an
    earlier round since the last checkpoint."""
    again: bool = False
    """Whether this repeats an instruction whose reply was lost before it left the client."""

    def follows(self, last: tuple[int, int, int] | None) -> bool:
        """Whether this comes after the question at position `last`. Incarnations are compared modulo 2^16."""
        if last is None:
            return True
        if self.incarnation == last[0]:
            position = (self.round, self.exchange)
            return position > last[1:] or (self.again and position == last[1:])
        return (self.incarnation - last[0]) % 2**16 < 2**15


@dataclass
class Record:
    """The sequence numbers of one client's states."""

    number: int = 0
    """The highest number used so far. A number is never reused, even if its update was lost."""
    committed: int = 0
    """The number of the committed state; 0 if there is none."""
    pending: list[int] = field(default_factory=list)
    """The numbers of the pending states: updates that the server may still acknowledge."""
    last: tuple[int, int, int] | None = None
    """Incarnation, round and exchange of the last question."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Record:
        """A record of JSON values, which have no tuples."""
        last = fields["last"]
        return cls(**fields | {"last": last and tuple(last)})

    def state_numbers(self) -> set[int]:
        """The numbers of all stored states."""
        return {*self.pending, *([self.committed] if self.committed else [])}

    def copy(self) -> Record:
        """A copy that shares no list with this record."""
        return Record(self.number, self.committed, list(self.pending), self.last)

    def settled(self, question: Question) -> Record:
        """The record after a question: the acknowledged state is committed, the continued one stays pending."""
        return Record(
            self.number,
            question.acknowledged if question.acknowledged in self.pending else self.committed,
            [number for number in self.pending if number == question.continues],
            (question.incarnation, question.round, question.exchange),
        )


@dataclass(frozen=True)
class Lent:
    """A client's record, and the state that its next instruction refers to, if there is one."""

    record: Record | None
    states: dict[int, State]


@dataclass(frozen=True)
class Change:
    """A client's new record, and the states that were added and dropped."""

    record: Record
    added: dict[int, State] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()


def unseen() -> int:
    """How many sequence numbers a client with an empty store skips.

    A client that has lost its store may receive a copy of an instruction that it has answered before. Its second reply must
    not reuse the number of the first, which the server may have aggregated and may acknowledge. The client cannot know that
    number, so it skips a random count. The numbers collide once in a million such events.
    """
    return secrets.randbelow(2**20)


class ClientStore(ABC):
    """Transactional state of many clients. Subclasses decide where records and states are stored."""

    def __init__(self, unseen: Callable[[], int] = lambda: 0) -> None:
        self._unseen = unseen
        """Returns 0 where no instruction is delivered twice, so that runs are reproducible."""

    @abstractmethod
    def clients(self) -> Iterable[int]:
        """The clients that have a record."""

    @abstractmethod
    def record(self, client: int) -> Record | None:
        """A copy of a client's record; None if it has none."""

    @abstractmethod
    def state(self, client: int, number: int) -> State:
        """The client's state with that number."""

    @abstractmethod
    def forget(self, client: int) -> None:
        """Delete everything about a client."""

    @abstractmethod
    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        """Replace a record, add states and drop states."""

    def settle(self, client: int, question: Question) -> Settled:
        """Commit the pending state with the acknowledged number, and drop the others.

        A question may continue from a pending state that the server has used, but not durably yet. That state stays pending.
        A question that does not follow the last one is a duplicate or late. It is refused, since it would drop the state
        that the next question acknowledges.
        """
        before = self.record(client)
        after = self._after(client, before, question)
        self._write(client, after, {}, (before or Record()).state_numbers() - after.state_numbers())
        return self._settled(client, after, question)

    def _after(self, client: int, record: Record | None, question: Question) -> Record:
        record = record or Record()
        if not question.follows(record.last):
            raise PacketError("stale", f"client {client} has already received this instruction or a later one")
        return record.settled(question)

    def _settled(self, client: int, record: Record, question: Question) -> Settled:
        if question.continues is not None:
            lost = question.continues not in record.pending
            return Settled(None if lost else self.state(client, question.continues), lost)
        # A committed state with another number is an old copy. Using it would count updates twice or not at all.
        lost = record.committed != question.acknowledged
        return Settled(None if lost or not record.committed else self.state(client, record.committed), lost)

    def propose(self, client: int, known: int, state: State) -> int:
        """Store `state` durably as pending, and return the number of its update, which is above `known`."""
        record = self.record(client) or Record()
        record.number = max(record.number, known) + 1 if record.number else known + 1 + self._unseen()
        record.pending.append(record.number)
        self._write(client, record, {record.number: state}, ())
        return record.number

    def lend(self, client: int, number: int) -> Lent:
        """What another process needs to run a client whose instruction refers to the state with that number."""
        record = self.record(client)
        stored = record is not None and number in record.state_numbers()
        return Lent(record, {number: self.state(client, number)} if stored else {})

    def apply(self, changes: Mapping[int, Change]) -> None:
        """Make the changes that a copy of some clients' states went through in another process."""
        for client, change in changes.items():
            self._write(client, change.record, change.added, change.dropped)

    def states(self) -> Iterator[tuple[int, State]]:
        """Every client's newest state, pending or committed."""
        for client in self.clients():
            record = self.record(client)
            if record is not None and record.state_numbers():
                yield client, self.state(client, max(record.pending, default=record.committed))

    def state_dict(self) -> StateDict:
        """All records, as "records", and all states, as "client/number/name"."""
        records = {client: self.record(client) or Record() for client in self.clients()}
        result: StateDict = {"records": {str(client): asdict(record) for client, record in records.items()}}
        for client, record in records.items():
            for number in sorted(record.state_numbers()):
                state = self.state(client, number)
                result |= {f"{client}/{number}/{name}": value for name, value in state.items()}
        return result


class MemoryStore(ClientStore):
    """States in memory: the default of a simulation."""

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

    def commit(self, client: int, number: int) -> None:
        """Commit a pending state now, so that the states before it need no memory until the client's next instruction."""
        record = self.record(client)
        if record is not None and number in record.pending:
            dropped = record.state_numbers() - {number}
            self._write(client, Record(record.number, number, [], record.last), {}, dropped)

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        self._records[client] = record
        states = self._states.setdefault(client, {})
        states.update(added)
        for number in dropped:
            del states[number]

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a `state_dict`."""
        records = {int(client): Record.of(fields) for client, fields in state["records"].items()}
        self._records = records
        self._states = {client: {number: {} for number in record.state_numbers()} for client, record in records.items()}
        for key, value in state.items():
            if key != "records":
                client, number, name = key.split("/", 2)
                self._states[int(client)][int(number)][name] = value
