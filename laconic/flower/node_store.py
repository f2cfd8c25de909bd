"""A node's file: its name, the runs it was told about, and its clients' states, found again after the node restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from laconic.federation.database import NODE, Database
from laconic.federation.disk_store import SharedStore
from laconic.federation.store import unseen
from laconic.flower.plan import Plan

KEEP_DAYS = 30.0
"""How long a node keeps its states of a run that it hears nothing of."""


class NodeFile:
    """The SQLite file of one node. Nothing is locked while a client trains."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def _database(self, run: str = "") -> Database:
        # Nothing is cached: another process may have changed the file.
        database = Database(0, NODE, run)
        database.path = self.path
        return database

    def name(self) -> str:
        """By this name the server recognizes the node, where it has no number of its own."""
        database = self._database()
        with database.transaction():
            name = database.document("node")
            if name is None:
                name = uuid4().hex
                database.put_document("node", name)
            return str(name)

    def plan(self, run: str) -> Plan | None:
        """What the node was told about a run."""
        database = self._database(run)
        with database.transaction():
            plan = database.document("plan")
        return None if plan is None else Plan.model_validate(plan)

    def enter(self, plan: Plan, keep_days: float = KEEP_DAYS) -> None:
        """Keep a plan, durably, and delete runs that were not heard of for `keep_days`.

        If such a run goes on after all, the node is told about it again, and says that it has lost its state.
        """
        database = self._database(plan.run)
        with database.transaction():
            database.put_document("plan", plan.model_dump(mode="json"))
            database.prune(before=time.time() - keep_days * 86400)

    def store(self, run: str, unseen: Callable[[], int] = unseen) -> SharedStore:
        """The states of one run's clients on this node."""
        return SharedStore(self._database(run), unseen)
