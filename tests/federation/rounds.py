"""Rounds that a test drives by hand: it makes the replies itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Randomness
from laconic.core.task import Task
from laconic.data import FederatedData
from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, Reply
from laconic.federation.round import Round
from laconic.federation.server import Server
from laconic.federation.store import ClientStore


class NoEngine(Engine):
    """Delivers nothing."""

    def run(self, instructions: Iterable[Instruction]) -> Iterable[Reply]:
        return ()


def started(
    algorithm: Algorithm, task: Task, data: FederatedData, randomness: Randomness, participants: int, starts: int
) -> Server:
    """A server after so many starts; its model is the task's."""
    layout = Layout.of(task.module)
    model, buffers = layout.flatten(task.module), torch.zeros(0)
    server = Server(algorithm, layout, model, buffers, data, randomness, participants=participants)
    server.incarnation = starts
    return server


def folded_state(server: Server, store: ClientStore, client: int) -> State:
    """The client's state that goes with the last update that the server has folded in; empty if there is none."""
    record, number = store.record(client), int(server.clients.sequences[client])
    if record is None or number not in record.state_numbers():
        return {}
    return store.state(client, number)


def begin(server: Server, engine: Engine | None = None) -> tuple[Round, list[Instruction]]:
    """A round of one exchange, and its instructions."""
    round = Round(server, engine or NoEngine())
    (exchange,) = round.exchanges()
    return round, round.instructions(exchange)


def refusal(round: Round, reply: Reply) -> str:
    """The reason for which a round refuses a reply."""
    try:
        round.validate(reply)
    except PacketError as error:
        before = dict(round.costs.refused)
        assert not round.receive(reply)
        assert round.costs.refused[error.reason] == before.get(error.reason, 0) + 1
        return error.reason
    raise AssertionError("the reply is valid")
