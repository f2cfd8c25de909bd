"""Waits until the nodes that a round needs are connected."""

from __future__ import annotations

import math
import time
from logging import getLogger

from laconic.core.randomness import Draw
from laconic.federation.sampling import of_attempt
from laconic.federation.server import Server
from laconic.flower.deployment import Deployment
from laconic.flower.population import Population
from laconic.flower.roster import Roster
from laconic.run.training import Diverged

LOG = getLogger("flwr.laconic")
MESSAGE_EVERY = 30.0
"""Seconds between two log messages while the server waits."""
POLL_EVERY = 0.5
"""Seconds between two polls for new nodes while the server waits."""


class Presence:
    """Waits for nodes, before the first round and whenever too few are connected."""

    def __init__(self, roster: Roster, population: Population, server: Server, deployment: Deployment) -> None:
        self.roster = roster
        self._population, self._server, self._deployment = population, server, deployment
        self._started = False

    def refresh(self) -> None:
        """Update which nodes are connected, and how many examples they have."""
        self.roster.refresh()
        if len(self.roster.clients()) < self._deployment.minimum:
            self.roster.absences.end()
        self._population.update(self.roster.sizes)
        if self.roster.blocklist.blocked_count() == len(self._population):
            raise Diverged(
                f"all clients are blocked after round {self._server.round}: their replies were refused; "
                "a higher `max-violations` unblocks them"
            )

    def wait_for_nodes(self) -> None:
        """Wait until `minimum` nodes are connected. Before the first round, wait for `first`, up to the deadline."""
        started = logged = time.monotonic()
        while True:
            self.refresh()
            connected = len(self.roster.clients())
            now = time.monotonic()
            expected = self._deployment.first or len(self._population)
            needed = self._deployment.minimum
            if not self._started and now - started < self._deployment.deadline:
                needed = max(needed, expected)
            if connected >= needed:
                break
            if now - logged >= MESSAGE_EVERY or logged == started:
                logged = now
                blocked = self.roster.blocklist.blocked_count()
                suffix = f", {blocked} are blocked" if blocked else ""
                LOG.warning("laconic: waiting for nodes: %d of %d have joined%s", connected, needed, suffix)
            time.sleep(POLL_EVERY)
        self._started = True

    def wait_for_any(self, drawn: list[int]) -> list[int]:
        """The drawn clients, as soon as one of them is connected. After the deadline, other clients that are connected.

        With privacy noise, which hides who participates, clients are not replaced: a round may have no participants.
        """
        if not drawn or self._server.defenses.noise:
            return drawn
        started, logged = time.monotonic(), -math.inf
        while not any(self.roster.node(client) is not None for client in drawn):
            now = time.monotonic()
            hopeless = all(map(self.roster.is_set_aside, drawn))
            if self.roster.clients() and (hopeless or now - started >= self._deployment.deadline):
                if not hopeless:
                    self.roster.record_answers((), drawn)
                return self._replacements(len(drawn))
            if now - logged >= MESSAGE_EVERY:
                logged = now
                clients = ", ".join(map(str, drawn[:10])) + (", …" if len(drawn) > 10 else "")
                number = self._server.round + 1
                LOG.warning("laconic: waiting: no client drawn for round %d is connected (%s)", number, clients)
            time.sleep(POLL_EVERY)
            self.refresh()
        return drawn

    def _replacements(self, count: int) -> list[int]:
        connected = self.roster.clients()
        purpose = of_attempt(Draw.STAND_INS, self._server.attempt)
        generator = self._server.secret.numpy(purpose, self._server.round)
        chosen = generator.choice(connected, min(count, len(connected)), replace=False, shuffle=False)
        LOG.warning("laconic: no drawn client is connected; %d others replace them", len(chosen))
        return sorted(int(client) for client in chosen)
