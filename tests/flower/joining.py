"""Nodes that only join: Flower's Grid with answers to invitations, for roster tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from laconic.flower import wire
from laconic.flower.roster import Roster
from tests.flower.loopback import LoopbackGrid


class Nodes(LoopbackGrid):
    """`number` nodes that join without a number of their own."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._names = count()
        for node in range(10**6, 10**6 + number):
            self.add(node, lambda: self._join)

    def _join(self, message: Message, context: object) -> Message:
        name = f"{next(self._names):032x}"
        return Message(wire.content(name=name, client=-1, examples=100), reply_to=message)


class SmallPlan:
    """The part of a plan that a roster reads."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def model_dump_json(self) -> str:
        return "{}"


def roster(grid: Nodes, fits: Callable[[Iterable[int]], None] = lambda sizes: None) -> Roster:
    plan: Any = SmallPlan(len(grid.nodes))
    assert TaskIdentity.run_id
    return Roster(grid, plan, max_violations=3, patience=60.0, fits=fits)
