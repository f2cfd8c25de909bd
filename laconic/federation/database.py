"""The SQLite file of client states, with one schema for simulations, Ray workers and Flower nodes.

The changes of a transaction become durable together or not at all. In a simulation a transaction is a checkpoint with all
its states, on a node it is one reply. Tensors are rows of raw bytes. Only changed states are written, and nothing is
unpickled.
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
"""The owner of a state, the client, and the state's number."""

FORMAT = 2
"""The version of the schema, stored as SQLite's `user_version`. Other versions are refused."""
PAGE_BYTES = 65536
"""SQLite's largest page size, so that a vector spans few pages."""
CACHE_KIBIBYTES = 65536
"""The size of SQLite's page cache."""
OBJECT_BYTES = 500
"""The approximate memory overhead of a Python dict or a tensor."""
CHECKPOINT: Key = ("server", 0, 0)

_TABLES = (
    "CREATE TABLE tensors (run TEXT, owner TEXT, client INTEGER, number INTEGER, name TEXT, kind TEXT, shape TEXT, "
    "content BLOB, PRIMARY KEY (run, owner, client, number, name))",
    "CREATE TABLE records (run TEXT, client INTEGER, number INTEGER, committed INTEGER, pending TEXT, last TEXT, "
    "PRIMARY KEY (run, client))",
    "CREATE TABLE documents (run TEXT, name TEXT, content TEXT, used REAL, PRIMARY KEY (run, name))",
)
_FROM_KEY = "FROM tensors WHERE run = ? AND owner = ? AND client = ? AND number = ?"


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


# Without WAL: a write-ahead log would write every new vector twice.
RUN = Access("EXCLUSIVE", "DELETE", "FULL", 1.0)
"""A simulation's file: few large transactions."""
# A long wait: a killed worker may take a while to release the file.
SHARD = Access("EXCLUSIVE", "WAL", "NORMAL", 30.0)
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
        self.lock = RLock()
        """Hold this lock for several changes that belong together: clients run on several threads."""
        self._recent: LRUCache[Key, State] = LRUCache(cache, _size)
        self._connection: sqlite3.Connection | None = None
        self._depth = 0

    def open(self, path: Path | None = None) -> None:
        """Open the file at `path`, or create it. Uncommitted changes are rolled back."""
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
        """Run a statement in the current transaction, or begin one; returns the rows."""
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
        name = "store = 'disk'" if self.path is None else f"'{self.path}'"
        return DataError(f"{name}: {'another process is using it' if 'locked' in str(error) else error}")

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
                self.execute("COMMIT")

    def flush(self) -> None:
        """Commit, and make all commits survive a power failure."""
        with self.lock:
            self.commit()
            if self.access.journal == "WAL":
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        """Roll back to the last commit."""
        with self.lock:
            self._recent.clear()
            # SQLite may have rolled back already, for example when the disk is full.
            if self._connection is not None and self._connection.in_transaction:
                self.execute("ROLLBACK")

    def get(self, key: Key) -> State:
        """The state under a key; empty if there is none."""
        with self.lock:
            state = self._recent.get(key)
            if state is None:
                rows = self.execute(f"SELECT name, kind, shape, content {_FROM_KEY}", (self.run, *key))
                state = {name: _tensor(kind, shape, content) for name, kind, shape, content in rows}
                self._recent.put(key, state)
            return dict(state)

    def put(self, key: Key, state: State, *, recent: bool = True) -> None:
        """Store a state under a key, and drop the previous one. `recent` also puts it into the cache."""
        stored = {name: _cpu_copy(value) for name, value in state.items()}
        with self.lock:
            self.drop(key)
            for name, value in stored.items():
                kind, shape = str(value.dtype).removeprefix("torch."), json.dumps(list(value.shape))
                row = (self.run, *key, name, kind, shape, _bytes(value))
                self.execute("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if recent:
                self._recent.put(key, stored)

    def drop(self, key: Key) -> None:
        """Delete a state."""
        with self.lock:
            self._recent.pop(key)
            self.execute(f"DELETE {_FROM_KEY}", (self.run, *key))

    def clients(self, owner: Owner) -> Iterator[int]:
        """The clients that have a state of that owner."""
        statement = "SELECT DISTINCT client FROM tensors WHERE run = ? AND owner = ? ORDER BY client"
        return (client for (client,) in self.execute(statement, (self.run, owner)))

    def document(self, name: str) -> Any:
        """A JSON value of the run; None if there is none with that name."""
        rows = self.execute("SELECT content FROM documents WHERE run = ? AND name = ?", (self.run, name))
        return json.loads(rows[0][0]) if rows else None

    def put_document(self, name: str, value: Any) -> None:
        """Store a JSON value of the run, and update the time of its last use."""
        row = (self.run, name, json.dumps(value), time.time())
        self.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)", row)

    def touch(self) -> None:
        """Update the time of the run's last use."""
        self.execute("UPDATE documents SET used = ? WHERE run = ?", (time.time(), self.run))

    def prune(self, before: float) -> None:
        """Delete runs that were last used before that time, and the states of runs without documents."""
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
        """Write a checkpoint, and commit it together with all states."""
        with self.lock:
            self.put(CHECKPOINT, tensors, recent=False)
            self.put_document("checkpoint", plain)
            self.commit()

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """The checkpoint's tensors and plain values, if there is one."""
        plain = self.document("checkpoint")
        return None if plain is None else (self.get(CHECKPOINT), plain)

    def close(self) -> None:
        """Close the file. Uncommitted changes are rolled back."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._recent.clear()


def _size(state: State) -> int:
    # Including Python's overhead: a million empty states take memory too.
    return OBJECT_BYTES + sum(OBJECT_BYTES + value.nbytes for value in state.values())


def _cpu_copy(value: Tensor) -> Tensor:
    """The tensor on the CPU. A view is cloned, since it would keep its whole base tensor alive."""
    value = value.detach().cpu().contiguous()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def _bytes(value: Tensor) -> memoryview:
    return value.reshape(-1).view(torch.uint8).numpy().data


def _tensor(kind: str, shape: str, content: bytes) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    # torch.frombuffer does not accept an empty buffer.
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(json.loads(shape))
