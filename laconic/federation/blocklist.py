"""Counts of refused replies: a client is blocked after a number of violations and receives no more instructions."""

from __future__ import annotations

from collections.abc import Callable
from logging import Logger, getLogger

from laconic.core.errors import PacketError


class Blocklist:
    """The number of violations of each client."""

    def __init__(
        self, limit: int = 3, log: Logger | None = None, name: Callable[[int], str] = "client {}".format
    ) -> None:
        self.limit, self._log, self._name = limit, log or getLogger("laconic"), name
        self.counts: dict[int, int] = {}

    def record_violation(self, client: int, error: PacketError) -> None:
        """Log and count a refused reply. A late reply, and an outlier, which may be honest, are logged only."""
        if error.reason == "stale":
            self._log.info("laconic: %s answered late: %s", self._name(client), error)
            return
        self._log.warning("laconic: the reply of %s was refused: %s", self._name(client), error)
        if error.reason == "outlier":
            return
        self.counts[client] = self.counts.get(client, 0) + 1
        if self.counts[client] == self.limit:
            self._log.warning("laconic: %s is blocked after %d refused replies", self._name(client), self.limit)

    def clear(self, client: int, count: int) -> None:
        """Remove `count` violations that were not the client's fault."""
        self.counts[client] = max(0, self.counts.get(client, 0) - count)

    def is_blocked(self, client: int) -> bool:
        """Whether a client has reached the limit of violations."""
        return self.counts.get(client, 0) >= self.limit

    def blocked_count(self) -> int:
        """The number of blocked clients."""
        return sum(self.is_blocked(client) for client in self.counts)

    def state_dict(self) -> dict[str, int]:
        """The counts, with keys that JSON can hold."""
        return {str(client): count for client, count in self.counts.items()}

    def load_state_dict(self, counts: dict[str, int]) -> None:
        """Restore a `state_dict`."""
        self.counts = {int(client): count for client, count in counts.items()}
