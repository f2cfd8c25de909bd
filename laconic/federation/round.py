"""One round, the same in every engine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from laconic.federation.ledger import RoundCosts
from laconic.federation.messages import Instruction, Reply
from laconic.federation.server import Server


class Engine(Protocol):
    """Who runs the clients: in this process, on a cluster, or on machines of their own."""

    def run(self, instructions: Iterable[Instruction]) -> Iterable[Reply]:
        """The replies, in the order of the instructions; whoever does not answer is left out."""
        ...


def run_round(server: Server, engine: Engine) -> RoundCosts:
    """One round: who takes part -> model out -> local work -> updates in -> mean -> new model.

    Most methods have one exchange with their clients in a round; some need to hear them twice.
    """
    for exchange in server.exchanges():
        for reply in engine.run(server.invite(exchange)):
            server.receive(reply)
        server.gather(exchange)
    return server.close()
