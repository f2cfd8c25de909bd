"""The server's per-client state.

Each client takes 16 bytes (the sequence number of its last update and the version of its model) plus its link state. Once
another subspace has been drawn, it takes 8 more, for the last subspace that it knows.
"""

from __future__ import annotations

import numpy as np
import torch

from laconic.algorithms.downlinks.base import LOST, ClientModelVersion
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.state_dict import joined, section
from laconic.federation.client_links import ClientLinkState, DiskClientLinkState
from laconic.federation.pending_broadcasts import PendingBroadcasts


class ClientTable:
    """Sequence numbers, model versions, link states and pending broadcasts of all clients."""

    def __init__(self, layout: Layout, count: int, links: ClientLinkState | DiskClientLinkState | None = None) -> None:
        self.sequences = np.zeros(count, dtype=np.int64)
        """The sequence number of each client's last update that was used."""
        self.versions = np.zeros(count, dtype=np.int64)
        """The version of each client's model; `LOST` for a client that has lost its state."""
        self._periods: np.ndarray | None = None
        """The last subspace that each client knows, by number; `LOST` for a client that has lost its state. None while there
        is only the first subspace."""
        self.links = ClientLinkState(layout) if links is None else links
        self.pending = PendingBroadcasts()
        self._durable: dict[int, int] = {}
        """For clients with updates since the last checkpoint: the number of the last update before it."""

    def acknowledge(self) -> None:
        """Mark all updates used so far as durable, so that instructions acknowledge them."""
        self._durable = {}

    def acknowledged(self, client: int) -> int:
        """The number of the client's last durable update."""
        return self._durable.get(client, int(self.sequences[client]))

    def continues(self, client: int) -> int | None:
        """The number of the client's last update if it was used but is not durable yet, else None."""
        return int(self.sequences[client]) if client in self._durable else None

    def model_version(self, client: int) -> ClientModelVersion:
        """The client's model version and downlink state."""
        return ClientModelVersion(int(self.versions[client]), section(self.links.get(client), "downlink"))

    def uplink_state(self, client: int) -> State:
        """The server's uplink state for the client."""
        return section(self.links.get(client), "uplink")

    def period(self, client: int) -> int:
        """The number of the last subspace that the client knows, or `LOST`."""
        return 0 if self._periods is None else int(self._periods[client])

    def has_lost_state(self, client: int) -> bool:
        """Whether the client must receive the whole model."""
        return bool(self.versions[client] == LOST)

    def advance(
        self, client: int, sequence: int, uplink: State, downlink: State, version: int | None, period: int = 0
    ) -> None:
        """Record that a client's update was used: store its link states and confirm its pending broadcast."""
        if uplink or downlink:
            self.links[client] = joined({"uplink": uplink, "downlink": downlink})
        if version is not None:
            self.versions[client] = version
        if self._periods is not None:
            self._periods[client] = period
        self._durable.setdefault(client, int(self.sequences[client]))
        self.sequences[client] = sequence
        self.pending.confirm(client)

    def forget(self, client: int) -> None:
        """Record that the client has lost its state, so that it receives the whole model next."""
        self.versions[client] = LOST
        if self._periods is not None:
            self._periods[client] = LOST
        self.links.forget(client)
        self.pending.confirm(client)

    def renew(self) -> None:
        """Start again in another subspace: the states of the links are empty, and every client has the first model."""
        if self._periods is None:
            self._periods = np.where(self.versions == LOST, LOST, 0)
        self.versions[:] = 0
        self.pending = PendingBroadcasts()
        for client in range(len(self.sequences)):
            self.links.forget(client)

    def restart(self) -> None:
        """Make all clients start over: a client that is ahead of the server resets its state."""
        self.sequences[:] = 0
        self._durable = {}
        for client in range(len(self.sequences)):
            self.forget(client)

    def state_dict(self) -> State:
        """The whole table as tensors."""
        state: State = {"sequences": torch.from_numpy(self.sequences), "versions": torch.from_numpy(self.versions)}
        if self._periods is not None:
            state["periods"] = torch.from_numpy(self._periods)
        return state | joined({"pending": self.pending.state_dict(), "links": self.links.state_dict()})

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        self.sequences = state["sequences"].cpu().numpy().copy()
        self.versions = state["versions"].cpu().numpy().copy()
        self._periods = state["periods"].cpu().numpy().copy() if "periods" in state else None
        self.pending.load_state_dict(section(state, "pending"))
        self.links.load_state_dict(section(state, "links"))
        self._durable = {}
