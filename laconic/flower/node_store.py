"""A node's file: its name, the runs it was told about, and its clients' states, found again after the node restarts.

A round is one transaction. What the last round's acknowledgement settles and the new pending state are written together,
before the reply leaves; a node that dies earlier has written nothing, as if it had never been asked.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from safetensors.torch import load, save

from laconic.core.errors import DataError, PacketError
from laconic.core.part import State
from laconic.federation.store import MemoryStore, Question, Settled, unseen
from laconic.flower.plan import Plan

_TABLES = """
CREATE TABLE IF NOT EXISTS node (name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS runs (run TEXT PRIMARY KEY, plan TEXT NOT NULL, heard REAL NOT NULL);
CREATE TABLE IF NOT EXISTS clients (
    run TEXT, client INTEGER, version INTEGER NOT NULL, record TEXT NOT NULL, PRIMARY KEY (run, client));
CREATE TABLE IF NOT EXISTS states (
    run TEXT, client INTEGER, number INTEGER, content BLOB NOT NULL, PRIMARY KEY (run, client, number));
"""
_WAIT_SECONDS = 60.0
KEEP_DAYS = 30.0
"""How long a node keeps its states of a run that it does not hear of any more."""


class NodeFile:
    """The SQLite file of one node; connections are short, so that nothing is locked while a client trains."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self.connect()) as connection, connection:
            connection.executescript(_TABLES)
            if connection.execute("SELECT count(*) FROM node").fetchone()[0] == 0:
                connection.execute("INSERT INTO node VALUES (?)", (uuid4().hex,))

    def connect(self) -> sqlite3.Connection:
        """A connection whose transactions survive a power cut."""
        try:
            connection = sqlite3.connect(self.path, timeout=_WAIT_SECONDS)
            connection.execute("PRAGMA synchronous = EXTRA")
        except sqlite3.Error as error:
            raise DataError(f"'{self.path}': {error}") from error
        return connection

    def name(self) -> str:
        """By this the server knows the node again, where it has no number of its own."""
        with closing(self.connect()) as connection:
            return str(connection.execute("SELECT name FROM node").fetchone()[0])

    def plan(self, run: str) -> Plan | None:
        """What the node was told about a run."""
        with closing(self.connect()) as connection:
            row = connection.execute("SELECT plan FROM runs WHERE run = ?", (run,)).fetchone()
        return None if row is None else Plan.model_validate_json(row[0])

    def enter(self, plan: Plan, keep_days: float = KEEP_DAYS) -> None:
        """Keep a plan, durably; runs that were not heard of for long are forgotten.

        If such a run goes on after all, the node is told about it again, and says that it has lost its state.
        """
        now = time.time()
        with closing(self.connect()) as connection, connection:
            connection.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (plan.run, plan.model_dump_json(), now))
            connection.execute("DELETE FROM runs WHERE heard < ?", (now - keep_days * 86400,))
            for table in ("clients", "states"):
                connection.execute(f"DELETE FROM {table} WHERE run NOT IN (SELECT run FROM runs)")


@dataclass
class _Open:
    """A client between question and answer."""

    version: int
    """Of the record that was read: another process may have answered in the meantime."""
    store: MemoryStore
    """Holds this client alone, and does with it what it does in a simulation."""


class NodeStore:
    """The states of one run's clients on this node: a `ClientStore`."""

    def __init__(self, file: NodeFile, run: str, unseen: Callable[[], int] = unseen) -> None:
        self._file, self._run, self._unseen = file, run, unseen
        self._open: dict[int, _Open] = {}

    def settle(self, client: int, question: Question) -> Settled:
        """See `ClientStore`; it becomes durable together with the answer."""
        opened = self._read(client)
        settled = opened.store.settle(client, question)
        self._open[client] = opened
        return settled

    def propose(self, client: int, known: int, state: State) -> int:
        """See `ClientStore`."""
        opened = self._open.pop(client)
        number = opened.store.propose(client, known, state)
        _, table = opened.store.snapshot()
        entry = table[str(client)]
        kept = {*entry["pending"], *([] if entry["committed"] is None else [entry["committed"]])}
        key = (self._run, client)
        with closing(self._file.connect()) as connection, connection:
            connection.execute("BEGIN IMMEDIATE")
            if _version(connection, *key) != opened.version:
                raise PacketError("stale", f"client {client} has answered another question in the meantime")
            connection.execute("UPDATE runs SET heard = ? WHERE run = ?", (time.time(), self._run))
            values = (*key, opened.version + 1, json.dumps(entry))
            connection.execute("INSERT OR REPLACE INTO clients VALUES (?, ?, ?, ?)", values)
            found = connection.execute("SELECT number FROM states WHERE run = ? AND client = ?", key).fetchall()
            gone = [(*key, old) for (old,) in found if old not in kept]
            connection.executemany("DELETE FROM states WHERE run = ? AND client = ? AND number = ?", gone)
            # A state never changes under its number, so only the new one has to be written.
            plain = {name: value.detach().cpu().contiguous().clone() for name, value in state.items()}
            connection.execute("INSERT INTO states VALUES (?, ?, ?, ?)", (*key, number, save(plain)))
        return number

    def forget(self, client: int) -> None:
        """See `ClientStore`."""
        self._open.pop(client, None)
        with closing(self._file.connect()) as connection, connection:
            for table in ("clients", "states"):
                connection.execute(f"DELETE FROM {table} WHERE run = ? AND client = ?", (self._run, client))

    def _read(self, client: int) -> _Open:
        key = (self._run, client)
        store = MemoryStore(self._unseen)
        with closing(self._file.connect()) as connection:
            # One transaction: the record and its states must be of the same moment.
            connection.execute("BEGIN")
            version = _version(connection, *key)
            if version == 0:
                return _Open(0, store)
            row = connection.execute("SELECT record FROM clients WHERE run = ? AND client = ?", key).fetchone()
            states = connection.execute("SELECT number, content FROM states WHERE run = ? AND client = ?", key)
            tensors = {
                f"{client}/{number}/{name}": value
                for number, content in states
                for name, value in load(content).items()
            }
        store.restore(tensors, {str(client): json.loads(row[0])})
        return _Open(version, store)


def _version(connection: sqlite3.Connection, run: str, client: int) -> int:
    row = connection.execute("SELECT version FROM clients WHERE run = ? AND client = ?", (run, client)).fetchone()
    return 0 if row is None else int(row[0])
