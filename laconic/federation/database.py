"""The SQLite file of client states, with one schema for simulations, Ray workers and Flower nodes.

The changes of a transaction become durable together or not at all. In a simulation a transaction is a checkpoint with all
its states, on a node it is one reply. Only changed states are written, and nothing is unpickled.

Damage is noticed. Each entry has the checksum of its content, which is verified when the content is read. The sum over all
entries is verified when the file is opened, so that no entry can disappear or change its key.

A file can return to an earlier checkpoint. A replaced entry stays in the file, marked with the checkpoint after which it was
replaced, as long as an earlier checkpoint that is kept needs it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal, TypeVar

from laconic.core.errors import DataError
from laconic.core.lru import LRUCache
from laconic.core.part import State
from laconic.core.state_dict import bytes_of, checksum, own_copy, tensor_of
from laconic.federation.blobs import insert_content, select_contents

Key = tuple[str, int, int]
"""The owner or kind of an entry, the client, and the state's number."""
Row = tuple[Any, ...]
Result = TypeVar("Result")

FORMAT = 3
"""The version of the schema, stored as SQLite's `user_version`. Other versions are refused."""
PAGE_BYTES = 65536
"""SQLite's largest page size, so that a vector spans few pages."""
CACHE_KIBIBYTES = 65536
"""The size of SQLite's page cache."""
OBJECT_BYTES = 500
"""The approximate memory overhead of a Python dict or a tensor."""
CHECKPOINT: Key = ("server", 0, 0)
ALIVE = -1

# Contents are apart, so that an entry is short and is found in a tree that has each entry once.
_TABLES = (
    "CREATE TABLE contents (id INTEGER PRIMARY KEY, content BLOB)",
    "CREATE TABLE entries (run TEXT, owner TEXT, client INTEGER, number INTEGER, name TEXT, born INTEGER, died INTEGER, "
    "kind TEXT, shape TEXT, place INTEGER, checksum INTEGER, PRIMARY KEY (run, owner, client, number, name, born)) "
    "WITHOUT ROWID",
    "CREATE TABLE summary (total INTEGER, marks TEXT)",
)
_BORN, _DIED, _PLACE = 5, 6, 9
# The second one is raised if SQLite's message quotes a damaged schema.
_ERRORS = (sqlite3.Error, UnicodeDecodeError)
_MASK = 2**63 - 1
_AT_KEY = f"run = ? AND owner = ? AND client = ? AND number = ? AND died = {ALIVE}"


@dataclass(frozen=True)
class Access:
    """How SQLite locks a file, and when a commit is durable."""

    locking: Literal["EXCLUSIVE", "NORMAL"]
    """EXCLUSIVE: one process locks the file until it closes it. NORMAL: each transaction locks the file."""
    journal: Literal["DELETE", "WAL"]
    """WAL: commits are cheap. They survive a crash of the process, and a power failure only after `flush`."""
    synchronous: Literal["NORMAL", "FULL", "EXTRA"]
    wait_seconds: float
    """How long to wait for another process to release its lock."""
    kept: int = 0
    """The number of checkpoints, including the last one, that the file can return to."""


# Without WAL: a write-ahead log would write every new vector twice.
RUN = Access("EXCLUSIVE", "DELETE", "FULL", 1.0, kept=2)
"""A simulation's file: few large transactions."""
# A long wait: a killed worker may take a while to release the file.
# One more than the checkpoints of a run: the worker writes its part first.
SHARD = Access("EXCLUSIVE", "WAL", "NORMAL", 30.0, kept=4)
"""The file of a Ray worker: one transaction per call."""
NODE = Access("NORMAL", "DELETE", "EXTRA", 60.0)
"""A node's file: Flower may start several processes at once."""


class Database:
    """One run's states by key, on disk, with an in-memory cache of `cache` bytes.

    A file may hold several runs. Without `open` it is a temporary file, which is deleted when it is closed.
    """

    def __init__(self, cache: int, access: Access = RUN, run: str = "") -> None:
        self.run, self.access = run, access
        self.path: Path | None = None
        self.marks: list[int] = []
        """The rounds of the checkpoints that the file can return to. The last one labels all changes after it."""
        self.lock = RLock()
        """Hold this lock for several changes that belong together: clients run on several threads."""
        self._recent: LRUCache[Key, State] = LRUCache(cache, _size)
        self._connection: sqlite3.Connection | None = None
        self._depth = 0
        self._total: int | None = None
        """The sum over all entries; None if it must be computed again."""
        self._summary: Row = ()
        """The row of the table `summary`: `_total`, with a checksum of the marks, and the marks."""
        self._dead: list[Row] = []
        """Replaced entries that an earlier checkpoint needs."""

    def open(self, path: Path | None = None) -> None:
        """Open the file at `path`, or create it, and verify its entries. Uncommitted changes are rolled back."""
        self.path, self._total = path, None
        if path is not None:
            with suppress(OSError):  # SQLite reports what is wrong
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            self._connection = connection = sqlite3.connect(
                path or "", self.access.wait_seconds, isolation_level=None, check_same_thread=False
            )
            connection.execute(f"PRAGMA locking_mode = {self.access.locking}")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIBIBYTES}")
            connection.execute(f"PRAGMA journal_mode = {self.access.journal}")
            connection.execute(f"PRAGMA synchronous = {self.access.synchronous}")
            connection.execute("BEGIN IMMEDIATE")
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for table in _TABLES:
                    connection.execute(table)
                connection.execute("INSERT INTO summary VALUES (?, '[]')", (checksum(b"'[]'"),))
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
            if version not in (0, FORMAT):
                wrong = f"its format is {version}, and this one reads {FORMAT}"
                raise DataError(f"'{path}' was written by another version of Laconic: {wrong}")
            self._begin()
        except (*_ERRORS, DataError) as error:
            self.close()
            raise (error if isinstance(error, DataError) else self._explained(error)) from None

    def execute(self, statement: str, values: Row = ()) -> list[Row]:
        """Run a statement in the current transaction, or begin one; returns the rows."""
        begin = not statement.startswith("PRAGMA")
        return self._run(lambda connection: connection.execute(statement, values).fetchall(), begin=begin)

    def _run(self, action: Callable[[sqlite3.Connection], Result], *, begin: bool = True) -> Result:
        with self.lock:
            if self._connection is None:
                self.open(self.path)
            assert self._connection is not None
            try:
                if begin and not self._connection.in_transaction:
                    self._begin()
                return action(self._connection)
            except _ERRORS as error:
                raise self._explained(error) from error

    def _begin(self) -> None:
        assert self._connection is not None
        self._connection.execute("BEGIN IMMEDIATE")
        if self._total is None:
            self._verify()

    def _verify(self) -> None:
        """Compare the size of the file and the sum over all entries with what was written."""
        if self.path is not None and self.access.journal != "WAL":
            (pages,), (page,) = self.execute("PRAGMA page_count")[0], self.execute("PRAGMA page_size")[0]
            if self.path.stat().st_size < pages * page:
                raise self._damaged("it is shorter than it was")
        self._total = self._sum()
        self._summary = (self.execute("SELECT total, marks FROM summary") or [(0, "")])[0]
        if self._summary != self._summarized(self._summary[1]):
            raise self._damaged("entries are missing or changed")
        self.marks = json.loads(self._summary[1])

    def _summarized(self, marks: str) -> Row:
        assert self._total is not None
        return (self._total + checksum(repr(marks).encode())) & _MASK, marks

    def _sum(self) -> int:
        """The sum over all entries; also finds the replaced ones."""
        assert self._connection is not None
        total, self._dead = 0, []
        for row in self._connection.execute("SELECT * FROM entries"):
            total += checksum(repr(row).encode())
            if row[_DIED] != ALIVE:
                self._dead.append(row)
        return total & _MASK

    def _add(self, row: Row, sign: int = 1) -> None:
        assert self._total is not None
        self._total = (self._total + sign * checksum(repr(row).encode())) & _MASK

    def _explained(self, error: Exception) -> DataError:
        name, text = "store = 'disk'" if self.path is None else f"'{self.path}'", " ".join(str(error).split())
        return DataError(f"{name}: {'another process is using it' if 'locked' in text else text}")

    def _damaged(self, what: str) -> DataError:
        return DataError(f"'{self.path}' is damaged: {what}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes made inside, or roll them back on an exception. Nested transactions join the outer one.

        A file that several processes share is closed at the end, since SQLite connections must not survive a fork.
        """
        with self.lock:
            self._depth += 1
            try:
                yield
                if self._depth == 1:
                    self.commit()
            except BaseException:
                if self._depth == 1:
                    self.rollback()
                raise
            finally:
                self._depth -= 1
                if self._depth == 0 and self.access.locking == "NORMAL":
                    self.close()

    def commit(self) -> None:
        """Make all changes durable."""
        with self.lock:
            if self._connection is not None and self._connection.in_transaction:
                summary = self._summarized(json.dumps(self.marks))
                if summary != self._summary:
                    self.execute("UPDATE summary SET total = ?, marks = ?", summary)
                    self._summary = summary
                self.execute("COMMIT")

    def flush(self, round: int) -> None:
        """Commit, and make all commits survive a power failure. The file can then return to this round."""
        with self.lock:
            self._mark(round)
            self.commit()
            if self.access.journal == "WAL":
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        """Roll back to the last commit."""
        with self.lock:
            self._recent.clear()
            self._total = None
            # SQLite may have rolled back already, for example when the disk is full.
            if self._connection is not None and self._connection.in_transaction:
                self.execute("ROLLBACK")

    def get(self, key: Key) -> State:
        """The state under a key; empty if there is none."""
        with self.lock:
            state = self._recent.get(key)
            if state is None:
                state = {name: tensor_of(kind, shape, content) for name, kind, shape, content in self._read(key)}
                self._recent.put(key, state)
            return dict(state)

    def put(self, key: Key, state: State, *, recent: bool = True) -> None:
        """Store a state under a key, and drop the previous one. `recent` also puts it into the cache."""
        stored = {name: own_copy(value) for name, value in state.items()}
        with self.lock:
            self.drop(key)
            for name, value in stored.items():
                kind, shape = str(value.dtype).removeprefix("torch."), json.dumps(list(value.shape))
                self._insert(key, name, kind, shape, bytes_of(value))
            if recent:
                self._recent.put(key, stored)

    def value(self, key: Key) -> Any:
        """The JSON value under a key; None if there is none."""
        for _, _, _, content in self._read(key):
            return json.loads(content)
        return None

    def put_value(self, key: Key, value: Any) -> None:
        """Store a JSON value under a key, and drop the previous one."""
        with self.lock:
            self.drop(key)
            self._insert(key, "", "json", "", json.dumps(value).encode())

    def _insert(self, key: Key, name: str, kind: str, shape: str, content: memoryview | bytes) -> None:
        content_id = self._run(lambda connection: insert_content(connection, content))
        born = self.marks[-1] if self.marks else 0
        self._write((self.run, *key, name, born, ALIVE, kind, shape, content_id, checksum(content)))

    def _write(self, row: Row) -> None:
        self.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        self._add(row)

    def _read(self, key: Key) -> Iterator[Row]:
        """Name, kind, shape and content of each entry under a key."""
        rows = self._run(lambda connection: select_contents(connection, _AT_KEY, (self.run, *key)))
        for name, kind, shape, expected, content in rows:
            if not isinstance(content, bytes | bytearray) or checksum(content) != expected:
                raise self._damaged(f"the content of {'/'.join(map(str, key))} {name} has changed".rstrip())
            yield name, kind, shape, content

    def drop(self, key: Key) -> None:
        """Delete a state. An earlier checkpoint that the file can return to still has it."""
        with self.lock:
            self._recent.pop(key)
            now = self.marks[-1] if self.marks else 0
            for row in self._delete(_AT_KEY, (self.run, *key), before=now):
                self._dead.append((*row[:_DIED], now, *row[_DIED + 1 :]))
                self._write(self._dead[-1])

    def _delete(self, condition: str, values: Row = (), before: int = 0) -> list[Row]:
        """Delete entries and their contents, except the contents of the returned entries: those born earlier."""
        kept = []
        for row in self.execute(f"DELETE FROM entries WHERE {condition} RETURNING *", values):
            self._add(row, -1)
            if row[_BORN] < before:
                kept.append(row)
            else:
                self.execute("DELETE FROM contents WHERE id = ?", (row[_PLACE],))
        return kept

    def clients(self, owner: str) -> Iterator[int]:
        """The clients that have a state of that owner."""
        statement = (
            f"SELECT DISTINCT client FROM entries WHERE run = ? AND owner = ? AND died = {ALIVE} ORDER BY client"
        )
        return (client for (client,) in self.execute(statement, (self.run, owner)))

    def touch(self) -> None:
        """Update the time of the run's last use."""
        self.put_value(("used", 0, 0), time.time())

    def prune(self, before: float) -> None:
        """Delete runs that were last used before that time."""
        own = self.run
        for (run,) in self.execute("SELECT DISTINCT run FROM entries WHERE run != ''"):
            self.run = run
            if (self.value(("used", 0, 0)) or 0.0) < before:
                self._delete("run = ?", (run,))
        self.run = own
        self._recent.clear()

    def clear(self) -> None:
        """Delete everything, durably."""
        with self.lock:
            self._recent.clear()
            self.execute("DELETE FROM entries")
            self.execute("DELETE FROM contents")
            self.marks, self._total, self._dead = [], 0, []
            self.commit()

    def _mark(self, round: int) -> None:
        """Note that all entries belong to the checkpoint of this round, and delete what no kept checkpoint needs."""
        if self.marks and round <= self.marks[-1]:
            return
        self.marks = [*self.marks, round][-self.access.kept :]
        for row in self._dead:
            if row[_DIED] < self.marks[0]:
                self._delete(
                    "run = ? AND owner = ? AND client = ? AND number = ? AND name = ? AND born = ?", row[:_DIED]
                )
        self._dead = [row for row in self._dead if row[_DIED] >= self.marks[0]]

    def save(self, tensors: State, plain: dict[str, Any], round: int) -> None:
        """Write the checkpoint of a round, and commit it together with all states."""
        with self.lock:
            self.put(CHECKPOINT, tensors, recent=False)
            self.put_value(("checkpoint", 0, 0), plain)
            self.flush(round)

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """The checkpoint's tensors and plain values, if there is one."""
        plain = self.value(("checkpoint", 0, 0))
        return None if plain is None else (self.get(CHECKPOINT), plain)

    def restore(self, round: int) -> None:
        """Return all states to the checkpoint of that round, one of `marks`. The change is not committed."""
        with self.lock:
            self._recent.clear()
            self.execute("DELETE FROM contents WHERE id IN (SELECT place FROM entries WHERE born >= ?)", (round,))
            self.execute("DELETE FROM entries WHERE born >= ?", (round,))
            self.execute(f"UPDATE entries SET died = {ALIVE} WHERE died >= ?", (round,))
            self.marks = self.marks[: self.marks.index(round) + 1]
            self._total = self._sum()

    def close(self) -> None:
        """Close the file. Uncommitted changes are rolled back."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._total = None
            self._recent.clear()


def _size(state: State) -> int:
    # Including Python's overhead: a million empty states take memory too.
    return OBJECT_BYTES + sum(OBJECT_BYTES + value.nbytes for value in state.values())
