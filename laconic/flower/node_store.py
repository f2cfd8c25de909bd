"""A node's file: its name, the plans of its runs, and its clients' states. It survives restarts of the node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context
from platformdirs import user_state_path

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
        plan = self.value(run, "plan")
        return None if plan is None else Plan.model_validate(plan)

    def enter(self, plan: Plan, keep_days: float = KEEP_DAYS) -> None:
        """Store a plan durably, and delete runs without activity for `keep_days` days.

        If a deleted run continues, the server sends the plan again, and the node reports that its state is lost.
        """
        self.put_value(plan.run, "plan", plan.model_dump(mode="json"), keep_days)

    def value(self, run: str, name: str) -> Any:
        """The stored JSON value of a run under a name; None if there is none."""
        database = self._database(run)
        with database.transaction():
            return database.value((name, 0, 0))

    def put_value(self, run: str, name: str, value: Any, keep_days: float) -> None:
        """Store a JSON value of a run durably, and delete runs without activity for `keep_days` days."""
        database = self._database(run)
        with database.transaction():
            database.put_value((name, 0, 0), value)
            database.touch()
            database.prune(before=time.time() - keep_days * 86400)

    def store(self, run: str, unseen: Callable[[], int] = unseen) -> SharedStore:
        """The store of one run's client states on this node."""
        return SharedStore(self._database(run), unseen)


def node_file(context: Context, folder: str | Path | None) -> NodeFile:
    """The file of the node that Flower's context belongs to. `state = "…"` in the node's config names its folder."""
    number = context.node_config.get("partition-id")
    chosen = context.node_config.get("state", folder)
    path = user_state_path("laconic") / "nodes" if chosen is None else Path(str(chosen))
    return NodeFile(path / ("node.sqlite" if number is None else f"node-{number}.sqlite"))
