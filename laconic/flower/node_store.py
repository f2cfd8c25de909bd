"""A node's file: its name, the plans of its runs, and its clients' states. It survives restarts of the node."""

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
"""Days after which a node deletes the states of a run without activity."""


class NodeFile:
    """The SQLite file of one node. It is not locked while a client trains."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def _database(self, run: str = "") -> Database:
        # No cache: other processes change the file.
        database = Database(0, NODE, run)
        database.path = self.path
        return database

    def name(self) -> str:
        """The node's unique name, by which the server recognizes a node without a number of its own."""
        database = self._database()
        with database.transaction():
            name = database.value(("node", 0, 0))
            if name is None:
                name = uuid4().hex
                database.put_value(("node", 0, 0), name)
            return str(name)

    def plan(self, run: str) -> Plan | None:
        """The stored plan of a run; None if the node has not joined it."""
        database = self._database(run)
        with database.transaction():
            plan = database.value(("plan", 0, 0))
        return None if plan is None else Plan.model_validate(plan)

    def enter(self, plan: Plan, keep_days: float = KEEP_DAYS) -> None:
        """Store a plan durably, and delete runs without activity for `keep_days` days.

        If a deleted run continues, the server sends the plan again, and the node reports that its state is lost.
        """
        database = self._database(plan.run)
        with database.transaction():
            database.put_value(("plan", 0, 0), plan.model_dump(mode="json"))
            database.touch()
            database.prune(before=time.time() - keep_days * 86400)

    def store(self, run: str, unseen: Callable[[], int] = unseen) -> SharedStore:
        """The store of one run's client states on this node."""
        return SharedStore(self._database(run), unseen)
