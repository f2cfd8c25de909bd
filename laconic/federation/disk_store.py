"""Client states in a database: for populations that do not fit in memory, and for real clients, whose state must last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.federation.database import Database
from laconic.federation.store import Change, ClientStore, Question, Record, Settled, unseen


class DiskStore(ClientStore):
    """States in a database.

    A simulation commits its states together with its checkpoint, which is in the same database. With `at_once` every call is
    a transaction, durable when it returns.
    """

    def __init__(self, database: Database, unseen: Callable[[], int] = lambda: 0, *, at_once: bool = False) -> None:
        super().__init__(unseen)
        self.database, self.at_once = database, at_once

    def _transaction(self) -> AbstractContextManager[Any]:
        # Without a transaction the lock keeps another thread from committing half of a change.
        return self.database.transaction() if self.at_once else self.database.lock

    def settle(self, client: int, question: Question) -> Settled:
        with self._transaction():
            return super().settle(client, question)

    def propose(self, client: int, known: int, state: State) -> int:
        with self._transaction():
            return super().propose(client, known, state)

    def apply(self, changes: Mapping[int, Change]) -> None:
        with self._transaction():
            super().apply(changes)

    def clients(self) -> Iterable[int]:
        return list(self.database.clients("record"))

    def record(self, client: int) -> Record | None:
        fields = self.database.value(("record", client, 0))
        return None if fields is None else Record.of(fields)

    def state(self, client: int, number: int) -> State:
        return self.database.get(("client", client, number))

    def forget(self, client: int) -> None:
        with self._transaction():
            record = self.record(client) or Record()
            for number in record.state_numbers():
                self.database.drop(("client", client, number))
            self.database.drop(("record", client, 0))

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        for number in dropped:
            self.database.drop(("client", client, number))
        for number, state in added.items():
            self.database.put(("client", client, number), state)
        self.database.put_value(("record", client, 0), asdict(record))


class SharedStore(DiskStore):
    """States in a database that several processes use. A reply is one transaction.

    `propose` writes the result of `settle` and the new pending state together, before the reply leaves. A process that dies
    earlier has written nothing. If two processes run the same client at once, only one succeeds.
    """

    def __init__(self, database: Database, unseen: Callable[[], int] = unseen) -> None:
        super().__init__(database, unseen, at_once=True)
        self._settling: dict[int, tuple[Record | None, Record]] = {}
        """The records before and after `settle`, for clients whose `propose` has not been called yet."""

    def settle(self, client: int, question: Question) -> Settled:
        with self._transaction():
            before = self.record(client)
            after = self._after(client, before, question)
            settled = self._settled(client, after, question)
        self._settling[client] = before, after
        return settled

    def propose(self, client: int, known: int, state: State) -> int:
        before, after = self._settling.pop(client)
        with self._transaction():
            # `propose` raises the record's number, so an equal record means that no other process has replied.
            if self.record(client) != before:
                raise PacketError("stale", f"another process has replied for client {client} in the meantime")
            self._write(client, after, {}, (before or Record()).state_numbers() - after.state_numbers())
            self.database.touch()
            return super().propose(client, known, state)

    def forget(self, client: int) -> None:
        self._settling.pop(client, None)
        super().forget(client)
