"""The store of a process that runs clients whose states another process keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from laconic.core.part import State
from laconic.federation.store import Change, Lent, MemoryStore, Record


class LentStore(MemoryStore):
    """The states of a few clients, lent for one call. It notes what changes, for `ClientStore.apply`."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: dict[int, Change] = {}

    def load(self, clients: Mapping[int, Lent]) -> None:
        """Replace everything by the states of these clients."""
        self._records = {client: lent.record for client, lent in clients.items() if lent.record is not None}
        self._states = {client: dict(lent.states) for client, lent in clients.items()}
        self.changes = {}

    def _write(self, client: int, record: Record, added: dict[int, State], dropped: Iterable[int]) -> None:
        gone = frozenset(dropped)
        # The lender has states that were not lent, and drops those, too.
        super()._write(client, record, added, gone & self._states[client].keys())
        before = self.changes.get(client) or Change(record)
        self.changes[client] = Change(record, before.added | added, before.dropped | gone)
