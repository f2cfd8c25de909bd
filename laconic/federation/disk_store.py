"""Clients' states on disk: for populations that memory does not hold, and for real clients, which must not forget."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from laconic.core.part import State
from laconic.federation.database import Database
from laconic.federation.store import Question, Record, RecordStore, Settled


class DiskStore(RecordStore):
    """States in a database.

    A simulation's are durable together with its checkpoint, which the database holds too. A real client has no checkpoint:
    with `at_once` each call is a transaction of its own, durable when it returns.
    """

    def __init__(self, database: Database, unseen: Callable[[], int] = lambda: 0, *, at_once: bool = False) -> None:
        super().__init__(unseen)
        self.database, self.at_once = database, at_once

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # ClientModelVersion to the end: another thread's commit must not find half of it.
        with self.database.lock:
            try:
                yield
            except BaseException:
                if self.at_once:
                    self.database.rollback()
                raise
            if self.at_once:
                self.database.commit()

    def settle(self, client: int, question: Question) -> Settled:
        """See `ClientStore`."""
        with self._transaction():
            return super().settle(client, question)

    def propose(self, client: int, known: int, state: State) -> int:
        """See `ClientStore`."""
        with self._transaction():
            return super().propose(client, known, state)

    def clients(self) -> Iterable[int]:
        """See `RecordStore`."""
        return [client for (client,) in self.database.execute("SELECT client FROM records ORDER BY client")]

    def record(self, client: int) -> Record | None:
        """See `RecordStore`."""
        question = "SELECT number, committed, pending, last FROM records WHERE client = ?"
        for number, committed, pending, last in self.database.execute(question, (client,)):
            return Record(number, committed, json.loads(pending), None if last is None else tuple(json.loads(last)))
        return None

    def state(self, client: int, number: int) -> State:
        """See `RecordStore`."""
        return self.database.get(("client", client, number))

    def forget(self, client: int) -> None:
        """See `ClientStore`."""
        with self._transaction():
            record = self.record(client) or Record()
            for number in record.held():
                self.database.drop(("client", client, number))
            self.database.execute("DELETE FROM records WHERE client = ?", (client,))

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        for number in dropped:
            self.database.drop(("client", client, number))
        for number, state in added.items():
            self.database.put(("client", client, number), state)
        last = None if record.last is None else json.dumps(record.last)
        row = (client, record.number, record.committed, json.dumps(record.pending), last)
        self.database.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, ?)", row)
