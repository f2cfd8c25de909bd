"""Rounds that a test drives by hand: it makes the replies itself."""

from __future__ import annotations

from collections.abc import Iterable

from laconic.core.errors import PacketError
from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, Reply
from laconic.federation.round import Round
from laconic.federation.server import Server


class NoEngine(Engine):
    """Delivers nothing."""

    def run(self, instructions: Iterable[Instruction]) -> Iterable[Reply]:
        return ()


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
