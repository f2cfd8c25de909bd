"""One SQLite file for what does not fit in memory: clients' states, and the checkpoint that they go with.

A checkpoint and all the states that belong to it are one transaction, so a process that is killed at any moment leaves
both as they were at the last checkpoint: SQLite undoes the rest when the file is opened again. Only what has changed is
written. States are rows of raw bytes, a row for each tensor; nothing is unpickled.
"""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import Any, Literal

import torch
from torch import Tensor

from laconic.core.errors import DataError
from laconic.core.part import State

Owner = Literal["client", "peer", "server"]
Key = tuple[Owner, int, int]
"""Whose state, of which client, and its number."""

FORM = 1
"""Of the tables; a file of another form is refused."""
PAGE_BYTES = 65536
"""SQLite's largest: a vector is a chain of few pages."""
PAGES_KIBIBYTES = 65536
"""What SQLite keeps for itself of what it has not written yet."""
WAIT_SECONDS = 1.0
LOG_WAIT_SECONDS = 30.0
"""For another process to let go of a file; one that was killed by its supervisor may take a while to go."""
OBJECT_BYTES = 500
"""About what Python needs for a dictionary, or for a tensor beside its numbers."""
CHECKPOINT: Key = ("server", 0, 0)

_TABLES = (
    "CREATE TABLE tensors (owner TEXT, client INTEGER, number INTEGER, name TEXT, kind TEXT, shape TEXT, content BLOB, "
    "PRIMARY KEY (owner, client, number, name))",
    "CREATE TABLE records (client INTEGER PRIMARY KEY, number INTEGER, committed INTEGER, pending TEXT, last TEXT)",
    "CREATE TABLE checkpoint (numbers TEXT)",
)
_THESE = "FROM tensors WHERE owner = ? AND client = ? AND number = ?"


class Database:
    """States by key, on disk; those that were used last are in memory, too, up to `cache` bytes.

    Until it is opened at a place, and then used, it is a file without a name that is gone when it is closed.
    """

    def __init__(self, cache: int, *, log: bool = False) -> None:
        self._recent = Recent(cache)
        self._log = log
        """With a write-ahead log a commit is cheap: it survives the process, and a power cut from `flush` on."""
        self._connection: sqlite3.Connection | None = None
        self.path: Path | None = None
        self.lock = RLock()
        """ClientModelVersion by whoever makes several changes that belong together: clients run on several threads."""

    def open(self, path: Path | None = None) -> None:
        """Use the file at `path`, a new one if there is none; what was not committed there is undone."""
        self.path = path
        connection = None
        try:
            wait = LOG_WAIT_SECONDS if self._log else WAIT_SECONDS
            connection = sqlite3.connect(path or "", wait, isolation_level=None, check_same_thread=False)
            # One process at a time: another one waits for a moment, and is told so.
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute(f"PRAGMA cache_size = -{PAGES_KIBIBYTES}")
            # A new vector goes straight to its place, where a write-ahead log would write everything twice.
            connection.execute(f"PRAGMA journal_mode = {'WAL' if self._log else 'DELETE'}")
            connection.execute(f"PRAGMA synchronous = {'NORMAL' if self._log else 'FULL'}")
            connection.execute("BEGIN IMMEDIATE")
            (form,) = connection.execute("PRAGMA user_version").fetchone()
            if form == 0:
                for table in _TABLES:
                    connection.execute(table)
                connection.execute(f"PRAGMA user_version = {FORM}")
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise self._explained(error) from error
        if form not in (0, FORM):
            connection.close()
            raise DataError(f"'{path}' was written by another version of Laconic")
        self._connection = connection
        if form == 0:
            self.commit()

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in the present transaction; its rows."""
        with self.lock:
            if self._connection is None:
                self.open()
            assert self._connection is not None
            try:
                return self._connection.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> DataError:
        where = "store = 'disk'" if self.path is None else f"'{self.path}'"
        busy = "locked" in str(error)
        return DataError(f"{where}: {'another process is using it' if busy else error}")

    def commit(self) -> None:
        """Make every change up to now durable, or none of them."""
        with self.lock:
            self.execute("COMMIT")
            self.execute("BEGIN IMMEDIATE")

    def flush(self) -> None:
        """Commit, and make all commits up to now survive a power cut, too."""
        with self.lock:
            self.execute("COMMIT")
            if self._log:
                self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.execute("BEGIN IMMEDIATE")

    def rollback(self) -> None:
        """Undo every change since the last commit."""
        with self.lock:
            self._recent.clear()
            assert self._connection is not None
            # An error, such as a full disk, may have undone them already.
            if self._connection.in_transaction:
                self.execute("ROLLBACK")
            self.execute("BEGIN IMMEDIATE")

    def get(self, key: Key) -> State:
        """The state under a key; empty if there is none."""
        with self.lock:
            state = self._recent.get(key)
            if state is None:
                rows = self.execute(f"SELECT name, kind, shape, content {_THESE}", key)
                state = {name: _tensor(kind, shape, content) for name, kind, shape, content in rows}
                self._recent.put(key, state)
            return dict(state)

    def put(self, key: Key, state: State, *, recent: bool = True) -> None:
        """Keep a state in the place of what was there."""
        own = {name: _own(value) for name, value in state.items()}
        with self.lock:
            self.drop(key)
            for name, value in own.items():
                row = (
                    *key,
                    name,
                    str(value.dtype).removeprefix("torch."),
                    json.dumps(list(value.shape)),
                    _bytes(value),
                )
                self.execute("INSERT INTO tensors VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if recent:
                self._recent.put(key, own)

    def drop(self, key: Key) -> None:
        """Keep a state no longer."""
        with self.lock:
            self._recent.pop(key)
            self.execute(f"DELETE {_THESE}", key)

    def clients(self, owner: Owner) -> Iterator[int]:
        """Every client of whom that owner keeps something."""
        rows = self.execute("SELECT DISTINCT client FROM tensors WHERE owner = ? ORDER BY client", (owner,))
        return (client for (client,) in rows)

    def clear(self) -> None:
        """Keep nothing of what was there, durably."""
        with self.lock:
            self._recent.clear()
            for table in ("tensors", "records", "checkpoint"):
                self.execute(f"DELETE FROM {table}")
            self.commit()

    def save(self, tensors: State, numbers: dict[str, Any]) -> None:
        """A checkpoint, and with it every state as it is now."""
        with self.lock:
            self.put(CHECKPOINT, tensors, recent=False)
            self.execute("DELETE FROM checkpoint")
            self.execute("INSERT INTO checkpoint VALUES (?)", (json.dumps(numbers),))
            self.commit()

    def load(self) -> tuple[State, dict[str, Any]] | None:
        """The checkpoint, if there is one."""
        rows = self.execute("SELECT numbers FROM checkpoint")
        return (self.get(CHECKPOINT), json.loads(rows[0][0])) if rows else None

    def close(self) -> None:
        """Let go of the file; what was not committed is undone."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._recent.clear()


class Recent:
    """The most recently used states, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._states: OrderedDict[Key, State] = OrderedDict()

    def get(self, key: Key) -> State | None:
        """A state, if it is still here; it becomes the most recent."""
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
        return state

    def put(self, key: Key, state: State) -> None:
        """Keep a state, at the cost of the least recent ones."""
        self.pop(key)
        self._states[key] = state
        self.bytes += _size(state)
        while self.bytes > self.limit:
            _, oldest = self._states.popitem(last=False)
            self.bytes -= _size(oldest)

    def pop(self, key: Key) -> None:
        """Let go of a state, if it is here."""
        if key in self._states:
            self.bytes -= _size(self._states.pop(key))

    def clear(self) -> None:
        """Let go of all of them."""
        self._states.clear()
        self.bytes = 0


def _size(state: State) -> int:
    # Python's own part, too: the states of a million clients that have nothing to remember are not nothing.
    return OBJECT_BYTES + sum(OBJECT_BYTES + value.nbytes for value in state.values())


def _own(value: Tensor) -> Tensor:
    """The tensor on the host, in memory of its own: a row of a matrix would keep the whole matrix alive."""
    value = value.detach().cpu().contiguous()
    return value.clone() if value.untyped_storage().nbytes() > value.nbytes else value


def _bytes(value: Tensor) -> memoryview:
    return value.reshape(-1).view(torch.uint8).numpy().data


def _tensor(kind: str, shape: str, content: bytes) -> Tensor:
    dtype: torch.dtype = getattr(torch, kind)
    # An empty buffer is one that torch does not take.
    flat = torch.frombuffer(bytearray(content), dtype=dtype) if content else torch.empty(0, dtype=dtype)
    return flat.reshape(json.loads(shape))
