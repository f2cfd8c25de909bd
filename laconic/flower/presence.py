"""Which nodes are connected, and waiting for those that are needed."""

from __future__ import annotations

import math
import time
from logging import getLogger

from laconic.core.randomness import Draw
from laconic.federation.server import Server
from laconic.flower.deployment import Deployment
from laconic.flower.population import Population
from laconic.flower.roster import Roster
from laconic.run.training import Diverged

LOG = getLogger("flwr.laconic")
MESSAGE_EVERY = 30.0
"""Seconds between two messages about what the server is waiting for."""
LOOK_EVERY = 0.5
"""Seconds between two looks for new nodes while the server waits for them."""


class Presence:
    """Waits for nodes, before the first round and whenever too few are connected."""

    def __init__(self, roster: Roster, population: Population, server: Server, deployment: Deployment) -> None:
        self.roster = roster
        self._population, self._server, self._deployment = population, server, deployment
        self._begun = False

    def look(self) -> None:
        """See which nodes are connected, and how many examples they have."""
        self.roster.refresh()
        self._population.update(self.roster.sizes)
        if self.roster.blocklist.blocked_count() == len(self._population):
            raise Diverged(
                f"all clients are blocked after round {self._server.round}: their replies had to be refused; "
                "a higher `max_violations` lets them back in"
            )

    def wait_for_nodes(self) -> None:
        """Wait until enough nodes are connected. At the start, wait for all that are expected, up to the deadline."""
        started = said = time.monotonic()
        while True:
            self.look()
            here = len(self.roster.clients())
            now = time.monotonic()
            expected = self._deployment.first or len(self._population)
            wanted = self._deployment.minimum
            if not self._begun and now - started < self._deployment.deadline:
                wanted = max(wanted, expected)
            if here >= wanted:
                break
            if now - said >= MESSAGE_EVERY or said == started:
                said = now
                blocked = self.roster.blocklist.blocked_count()
                but = f", {blocked} are blocked" if blocked else ""
                LOG.warning("laconic: waiting for nodes: %d of %d are here%s", here, wanted, but)
            time.sleep(LOOK_EVERY)
        self._begun = True

    def wait_for_any(self, drawn: list[int]) -> list[int]:
        """The drawn clients, once any of them is connected; after the deadline, others that are connected.

        Where noise hides who takes part, no client stands in for another: a round may have no clients at all.
        """
        if not drawn or self._server.defenses.noise:
            return drawn
        started, said = time.monotonic(), -math.inf
        while not any(self.roster.node(client) is not None for client in drawn):
            now = time.monotonic()
            hopeless = all(map(self.roster.blocklist.is_blocked, drawn))
            if self.roster.clients() and (hopeless or now - started >= self._deployment.deadline):
                return self._stand_ins(len(drawn))
            if now - said >= MESSAGE_EVERY:
                said = now
                shown = ", ".join(map(str, drawn[:10])) + (", …" if len(drawn) > 10 else "")
                number = self._server.round + 1
                LOG.warning("laconic: waiting: none of the clients drawn for round %d is here (%s)", number, shown)
            time.sleep(LOOK_EVERY)
            self.look()
        return drawn

    def _stand_ins(self, count: int) -> list[int]:
        here = self.roster.clients()
        generator = self._server.secret.numpy(Draw.STAND_INS, self._server.round)
        chosen = generator.choice(here, min(count, len(here)), replace=False, shuffle=False)
        LOG.warning("laconic: none of the drawn clients is here; %d others stand in for them", len(chosen))
        return sorted(int(client) for client in chosen)
