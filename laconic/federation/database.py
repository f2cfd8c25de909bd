"""One SQLite file for clients' states, with one schema for simulations, Ray workers and Flower nodes.

The changes of a transaction become durable together or not at all: SQLite undoes the rest when the file is opened again. A
simulation's checkpoint and all states that belong to it are one transaction; on a node it is one answer. Tensors are rows of
raw bytes, and only what has changed is written; nothing is unpickled.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.core.errors import DataError
from laconic.core.lru import LRUCache
from laconic.core.part import State

Owner = Literal["client", "peer", "server"]
Key = tuple[Owner, int, int]
"""Whose state, of which client, and its number."""

FORMAT = 2
"""The version of the schema, which the file holds as `user_version`. A file of another version is refused."""
PAGE_BYTES = 65536
"""SQLite's largest page: a vector is a chain of few pages."""
CACHE_KIBIBYTES = 65536
"""What SQLite keeps in memory of what it has not written yet."""
OBJECT_BYTES = 500
"""About what Python needs for a dictionary, or for a tensor beside its numbers."""
CHECKPOINT: Key = ("server", 0, 0)

_TABLES = (
    "CREATE TABLE tensors (run TEXT, owner TEXT, client INTEGER, number INTEGER, name TEXT, kind TEXT, shape TEXT, "
    "content BLOB, PRIMARY KEY (run, owner, client, number, name))",
    "CREATE TABLE records (run TEXT, client INTEGER, number INTEGER, committed INTEGER, pending TEXT, last TEXT, "
    "PRIMARY KEY (run, client))",
    "CREATE TABLE documents (run TEXT, name TEXT, content TEXT, used REAL, PRIMARY KEY (run, name))",
)
_THESE = "FROM tensors WHERE run = ? AND owner = ? AND client = ? AND number = ?"


@dataclass(frozen=True)
class Access:
    """Who uses a file, and when a commit is durable."""

    locking: Literal["EXCLUSIVE", "NORMAL"]
    """EXCLUSIVE: one process has the file until it closes it. NORMAL: processes take turns, a transaction each."""
    journal: Literal["DELETE", "WAL"]
    """WAL: a commit is cheap. It survives the process at once, and a power cut from `flush` on."""
    synchronous: Literal["NORMAL", "FULL", "EXTRA"]
    wait_seconds: float
    """How long another process is waited for."""


# A new vector goes straight to its place; a write-ahead log would write everything twice.
RUN = Access("EXCLUSIVE", "DELETE", "FULL", 1.0)
"""A simulation's file: few large transactions."""
# A worker that was killed by its supervisor may take a while to go.
SHARD = Access("EXCLUSIVE", "WAL", "NORMAL", 30.0)
"""The file of a Ray worker: a transaction for every call."""
NODE = Access("NORMAL", "DELETE", "EXTRA", 60.0)
"""A node's file: Flower may start several processes at once."""


class Database:
    """One run's states by key, on disk. Those that were used last are in memory too, up to `cache` bytes.

    A file may hold several runs. Without `open` it is a temporary file, which is gone when it is closed.
    """

    def __init__(self, cache: int, access: Access = RUN, run: str = "") -> None:
        self.run, self.access = run, access
        self.path: Path | None = None
        self.lock = RLock()
        """Clients run on several threads: whoever makes several changes that belong together holds this."""
        self._recent: LRUCache[Key, State] = LRUCache(cache, _size)
        self._connection: sqlite3.Connection | None = None
        self._depth = 0

    def open(self, path: Path | None = None) -> None:
        """Use the file at `path`. It is created if it is not there; what was not committed is undone."""
        self.path = path
        connection = None
        try:
            connection = sqlite3.connect(
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
                connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._explained(error) from error
        if version not in (0, FORMAT):
            connection.close()
            raise DataError(
                f"'{path}' was written by another version of Laconic: its format is {version}, and this one reads {FORMAT}"
            )
        self._connection = connection

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in the present transaction, which begins with its first statement; returns the rows."""
        with self.lock:
            if self._connection is None:
                self.open(self.path)
            assert self._connection is not None
            try:
                if not self._connection.in_transaction and not statement.startswith("PRAGMA"):
                    self._connection.execute("BEGIN IMMEDIATE")
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> DataError:
        where = "store = 'disk'" if self.path is None else f"'{self.path}'"
        return DataError(f"{where}: {'another process is using it' if 'locked' in str(error) else error}")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is done inside, or undo it if that fails; of transactions in each other, the outer one counts.

        A file that several processes share is closed at the end, so that nothing of it is left in a process that is forked.
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
        """Make every change up to now durable."""
        with self.lock:
            if self._connection is not None and self._connection.in_transaction:
                self.execute("COMMIT")

    def flush(self) -> None:
        """Commit, and make all commits up to now survive a power cut, too."""
        with self.lock:
            self.commit()
            if self.access.journal == "WAL":
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        """Undo every change since the last commit."""
        with self.lock:
            self._recent.clear()
            # An error, such as a full disk, may have undone them already.
            if self._connection is not None and self._connection.in_transaction:
                self.execute("ROLLBACK")

    def get(self, key: Key) -> State:
        """The state under a key; empty if there is none."""
        with self.lock:
            state = self._recent.get(key)
            if state is None:
                rows = self.execute(f"SELECT name, kind, shape, content {_THESE}", (self.run, *key))
                state = {name: _tensor(kind, shape, content) for name, kind, shape, content in rows}
                self._recent.put(key, state)
            return dict(state)

    def put(self, key: Key, state: State, *, recent: bool = True) -> None:
        """Store a state. It replaces what is under the key."""
        own = {name: _own(value) for name, value in state.items()}
        with self.lock:
            self.drop(key)
            for name, value in own.items():
                kind, shape = str(value.dtype).removeprefix("torch."), json.dumps(list(value.shape))
                row = (self.run, *key, name, kind, shape, _bytes(value))
                self.execute("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if recent:
                self._recent.put(key, own)

    def drop(self, key: Key) -> None:
        """Delete a state."""
        with self.lock:
            self._recent.pop(key)
            self.execute(f"DELETE {_THESE}", (self.run, *key))

    def clients(self, owner: Owner) -> Iterator[int]:
        """Every client of which that owner has a state."""
        statement = "SELECT DISTINCT client FROM tensors WHERE run = ? AND owner = ? ORDER BY client"
        return (client for (client,) in self.execute(statement, (self.run, owner)))

    def document(self, name: str) -> Any:
        """A JSON value of the run; None if there is none of that name."""
        rows = self.execute("SELECT content FROM documents WHERE run = ? AND name = ?", (self.run, name))
        return json.loads(rows[0][0]) if rows else None

    def put_document(self, name: str, value: Any) -> None:
        """Store a JSON value of the run, and that the run was used now."""
        row = (self.run, name, json.dumps(value), time.time())
        self.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", row)

    def touch(self) -> None:
        """Note that the run was used now."""
        self.execute("UPDATE documents SET used = ? WHERE run = ?", (time.time(), self.run))

    def prune(self, before: float) -> None:
        """Delete all runs that were last used before that time, and states of runs that have no document."""
        self.execute("DELETE FROM documents WHERE used < ? AND run != ''", (before,))
        for table in ("records", "tensors"):
            self.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT run FROM documents)")
        self._recent.clear()

    def clear(self) -> None:
        """Delete everything, durably."""
        with self.lock:
            self._recent.clear()
            for table in ("tensors", "records", "documents"):
                self.execute(f"DELETE FROM {table}")
            self.commit()

    def save(self, tensors: State, plain: dict[str, Any]) -> None:
        """Write a checkpoint, and commit it with every state as it is now."""
        with self.lock:
            self.put(CHECKPOINT, tensors, recent=False)
            self.put_document("checkpoint", plain)
            self.commit()

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """The checkpoint's tensors and plain values, if there is one."""
        plain = self.document("checkpoint")
        return None if plain is None else (self.get(CHECKPOINT), plain)

    def close(self) -> None:
        """Close the file. What was not committed is undone."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._recent.clear()


def _size(state: State) -> int:
    # With what Python itself needs: the states of a million clients that have nothing to remember take memory too.
    return OBJECT_BYTES + sum(OBJECT_BYTES + value.nbytes for value in state.values())


def _own(value: Tensor) -> Tensor:
    """The tensor on the CPU, in memory of its own: a row of a matrix would keep the whole matrix alive."""
    value = value.detach().cpu().contiguous()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def _bytes(value: Tensor) -> memoryview:
    return value.reshape(-1).view(torch.uint8).numpy().data


def _tensor(kind: str, shape: str, content: bytes) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    # torch.frombuffer does not take an empty buffer.
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(json.loads(shape))
