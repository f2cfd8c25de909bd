"""Counts of refused replies: a client is blocked after a number of violations and receives no more instructions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import Logger, getLogger

from laconic.core.errors import PacketError
from laconic.core.state_dict import StateDict

UNSTABLE = "unstable"
"""The reason of a node that reports that its own update is not finite, so that it cannot send it."""
EXCUSED = ("stale", "failed", UNSTABLE)
"""Reasons that are no violation: the client was slow, its process failed, or it has no finite update."""
FEW = 3
"""Maximum number of refused replies of a round that are logged one by one."""


class Blocklist:
    """The number of violations of each client."""

    def __init__(
        self, limit: int = 3, log: Logger | None = None, name: Callable[[int], str] = "client {}".format
    ) -> None:
        self.limit, self._log, self._name = limit, log or getLogger("laconic"), name
        self.counts: dict[int, int] = {}
        self._outliers: dict[int, int] = {}
        """By client: its violations that were outliers in norm or direction, since its last accepted reply."""

    def record_violations(self, errors: Iterable[tuple[int, PacketError]]) -> None:
        """Log and count the refused replies of a round. Many with one reason are one line of the log."""
        by_reason: dict[str, list[tuple[int, PacketError]]] = {}
        for client, error in errors:
            by_reason.setdefault(error.reason, []).append((client, error))
        for reason, refused in by_reason.items():
            together = len(refused) > FEW and reason not in EXCUSED
            for client, error in refused:
                self.record_violation(client, error, logged=not together)
            if together:
                client, error = refused[0]
                text = "laconic: %d replies were refused for the same reason, the first of %s: %s"
                self._log.warning(text, len(refused), self._name(client), error)

    def record_violation(self, client: int, error: PacketError, logged: bool = True) -> None:
        """Log and count a refused reply. Late replies and failures are logged only."""
        if error.reason in EXCUSED:
            late = "answered late" if error.reason == "stale" else "did not answer"
            self._log.info("laconic: %s %s: %s", self._name(client), late, error)
            return
        self.counts[client] = self.counts.get(client, 0) + 1
        if error.reason in ("outlier", "direction"):
            self._outliers[client] = self._outliers.get(client, 0) + 1
        if logged:
            self._log.warning("laconic: the reply of %s was refused: %s", self._name(client), error)
        if self.counts[client] == self.limit:
            self._log.warning("laconic: %s is blocked after %d refused replies", self._name(client), self.limit)

    def accept(self, clients: Iterable[int]) -> None:
        """Note accepted replies. An honest client may be an outlier now and then, so they clear its outliers."""
        for client in {*clients} & self._outliers.keys():
            self.clear(client, self._outliers.pop(client))

    def clear(self, client: int, count: int) -> None:
        """Remove `count` violations that were not the client's fault."""
        self.counts[client] = max(0, self.counts.get(client, 0) - count)

    def is_blocked(self, client: int) -> bool:
        """Whether a client has reached the limit of violations."""
        return self.counts.get(client, 0) >= self.limit

    def blocked_count(self) -> int:
        """The number of blocked clients."""
        return sum(self.is_blocked(client) for client in self.counts)

    def state_dict(self) -> StateDict:
        """The counts, with keys that JSON can hold."""
        counts = {"violations": self.counts, "outliers": self._outliers}
        return {name: {str(client): count for client, count in table.items()} for name, table in counts.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a `state_dict`."""
        self.counts, self._outliers = (
            {int(client): count for client, count in state[name].items()} for name in ("violations", "outliers")
        )
