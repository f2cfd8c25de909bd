"""Clients whose replies have to be refused: named in the log, and not asked any more after a number of times."""

from __future__ import annotations

from collections.abc import Callable
from logging import Logger, getLogger

from laconic.core.errors import PacketError


class Blocklist:
    """How often each client has sent what had to be refused."""

    def __init__(self, limit: int, log: Logger | None = None, name: Callable[[int], str] = "client {}".format) -> None:
        self.limit, self._log, self._name = limit, log or getLogger("laconic"), name
        self.counts: dict[int, int] = {}

    def record_violation(self, client: int, error: PacketError) -> None:
        """Enter a refused reply; one that came late is nobody's fault."""
        if error.reason == "stale":
            self._log.info("laconic: %s answered late: %s", self._name(client), error)
            return
        self.counts[client] = self.counts.get(client, 0) + 1
        self._log.warning("laconic: the reply of %s was refused: %s", self._name(client), error)
        if self.counts[client] == self.limit:
            self._log.warning("laconic: %s is set aside after %d refused replies", self._name(client), self.limit)

    def clear_violations(self, client: int, count: int) -> None:
        """Take strikes back: it was not the client's fault."""
        self.counts[client] = max(0, self.counts.get(client, 0) - count)

    def is_blocked(self, client: int) -> bool:
        """Whether a client has been refused too often."""
        return self.counts.get(client, 0) >= self.limit

    def blocked_count(self) -> int:
        """How many are not asked any more."""
        return sum(self.is_blocked(client) for client in self.counts)

    def table(self) -> dict[str, int]:
        """For a checkpoint."""
        return {str(client): count for client, count in self.counts.items()}

    def restore(self, table: dict[str, int]) -> None:
        """The inverse of `table`."""
        self.counts = {int(client): count for client, count in table.items()}
