"""Clients' states in a database: for populations that memory does not hold, and for real clients, which must not forget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from laconic.core.errors import PacketError
from laconic.core.part import State
from laconic.federation.database import Database
from laconic.federation.store import Question, Record, RecordStore, Settled, unseen


class DiskStore(RecordStore):
    """States in a database.

    A simulation's states are durable together with its checkpoint, which the database holds too. With `at_once` each call
    is a transaction of its own, durable when it returns.
    """

    def __init__(self, database: Database, unseen: Callable[[], int] = lambda: 0, *, at_once: bool = False) -> None:
        super().__init__(unseen)
        self.database, self.at_once = database, at_once

    def _transaction(self) -> AbstractContextManager[Any]:
        # The lock at least: a commit by another thread must not find half of a change.
        return self.database.transaction() if self.at_once else self.database.lock

    def settle(self, client: int, question: Question) -> Settled:
        with self._transaction():
            return super().settle(client, question)

    def propose(self, client: int, known: int, state: State) -> int:
        with self._transaction():
            return super().propose(client, known, state)

    def clients(self) -> Iterable[int]:
        statement = "SELECT client FROM records WHERE run = ? ORDER BY client"
        return [client for (client,) in self.database.execute(statement, (self.database.run,))]

    def record(self, client: int) -> Record | None:
        statement = "SELECT number, committed, pending, last FROM records WHERE run = ? AND client = ?"
        for number, committed, pending, last in self.database.execute(statement, (self.database.run, client)):
            return Record(number, committed, json.loads(pending), None if last is None else tuple(json.loads(last)))
        return None

    def state(self, client: int, number: int) -> State:
        return self.database.get(("client", client, number))

    def forget(self, client: int) -> None:
        with self._transaction():
            record = self.record(client) or Record()
            for number in record.held():
                self.database.drop(("client", client, number))
            self.database.execute("DELETE FROM records WHERE run = ? AND client = ?", (self.database.run, client))

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        for number in dropped:
            self.database.drop(("client", client, number))
        for number, state in added.items():
            self.database.put(("client", client, number), state)
        last = None if record.last is None else json.dumps(record.last)
        row = (self.database.run, client, record.number, record.committed, json.dumps(record.pending), last)
        self.database.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?, ?)", row)


class SharedStore(DiskStore):
    """States in a database that several processes use: an answer is one transaction.

    What the last acknowledgement settles and the new pending state are written together, before the reply leaves. A process
    that dies earlier has written nothing, as if it had never been asked. Of two processes that answer the same client at
    once only one succeeds.
    """

    def __init__(self, database: Database, unseen: Callable[[], int] = unseen) -> None:
        super().__init__(database, unseen, at_once=True)
        self._asked: dict[int, tuple[Record | None, Record]] = {}
        """Clients between question and answer: the record as it was read, and as the question leaves it."""

    def settle(self, client: int, question: Question) -> Settled:
        with self._transaction():
            before = self.record(client)
            after = self._after(client, before, question)
            settled = self._settled(client, after, question)
        self._asked[client] = before, after
        return settled

    def propose(self, client: int, known: int, state: State) -> int:
        before, after = self._asked.pop(client)
        with self._transaction():
            # Every answer raises the number, so an equal record means that nobody else has answered.
            if self.record(client) != before:
                raise PacketError("stale", f"client {client} has answered another question in the meantime")
            self._write(client, after, {}, (before or Record()).held() - after.held())
            self.database.touch()
            return super().propose(client, known, state)

    def forget(self, client: int) -> None:
        self._asked.pop(client, None)
        super().forget(client)
