"""The roster: which Flower node is which client, and which clients are connected or blocked.

A client is a number, on which a run's randomness depends. A node is identified by Flower's node id, which may change. A
node reports its client number (`partition-id` in its config), or the server assigns one. A client number belongs to the
first node that has it. Another node that claims the number is rejected, unless it has the same name in its file or the same
Flower id (for authenticated nodes, the id belongs to the node's key).

If a method needs clients of similar size, the median of all reported sizes decides which ones are allowed. No node does so
by joining first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import getLogger
from statistics import median_low

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from laconic.core.counts import counted
from laconic.core.errors import ConfigError, PacketError
from laconic.core.state_dict import StateDict
from laconic.federation.blocklist import Blocklist
from laconic.flower import wire
from laconic.flower.absences import Absences
from laconic.flower.inbox import Inbox
from laconic.flower.plan import Plan

LOG = getLogger("flwr.laconic")
FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0
"""The first and the longest delay, in seconds, of the exponential backoff for a rejected node."""
LONGEST_NAME = 64
"""The most characters of the name in a node's file. Every checkpoint has all names."""


@dataclass(frozen=True)
class Rejection:
    """Why a node could not join, and when it is invited again."""

    reason: str
    pause: float
    until: float


class Roster:
    """The nodes of a run, by client."""

    def __init__(
        self,
        grid: Grid,
        plan: Plan,
        *,
        max_violations: int,
        patience: float,
        replace_nodes: bool = False,
        most_examples: int = wire.MOST_EXAMPLES,
        fixed_sizes: bool = False,
        fits: Callable[[Iterable[int]], None] = lambda sizes: None,
    ) -> None:
        self._grid, self._inbox, self.plan, self._patience = grid, Inbox(grid), plan, patience
        self.absences = Absences()
        self.blocklist = Blocklist(max_violations, LOG, self.name)
        self._nodes: dict[int, int] = {}
        """By client: its connected node."""
        self._invited: dict[str, tuple[int, float]] = {}
        """Unanswered invitations by message id: the node, and when the invitation expires."""
        self._rejected: dict[int, Rejection] = {}
        self.refused_joins = 0
        """Invalid answers to invitations since the last finished round."""
        self._fits = fits
        """Raises `ConfigError` if the algorithm does not support clients of these sizes."""
        self._replace_nodes, self._most_examples, self._fixed_sizes = replace_nodes, most_examples, fixed_sizes
        self.owners: dict[int, tuple[str, int]] = {}
        """By client: the name in its node's file, and the Flower id of its last node."""
        self._by_name: dict[str, int] = {}
        self._by_node: dict[int, int] = {}
        """The client of each owner, by the name in its file and by its Flower id."""
        self._free = 0
        """All lower client numbers have an owner."""
        self._unfit: dict[int, int] = {}
        """By client: the rejected node whose size the method cannot use together with the median size."""
        self.sizes: dict[int, int] = {}
        """The number of examples that each client has reported, including those that were rejected for it."""

    def name(self, client: int) -> str:
        """A client and its node, for the log."""
        return f"client {client} (node {self._nodes.get(client)})"

    def clients(self) -> list[int]:
        """The clients that are connected, not blocked, and not absent."""
        return sorted(client for client in self._nodes if not self.is_set_aside(client))

    def is_set_aside(self, client: int) -> bool:
        """Whether a client is blocked, or counts as absent because it did not answer."""
        return self.blocklist.is_blocked(client) or self.absences.is_absent(client)

    def node(self, client: int) -> int | None:
        """The client's node; None if it is not connected or is set aside."""
        return None if self.is_set_aside(client) else self._nodes.get(client)

    def record_answers(self, answered: Iterable[int], unanswered: Iterable[int]) -> None:
        """Record which clients answered in an exchange. One that did not answer several times counts as absent."""
        for client in self.absences.record(answered, unanswered):
            LOG.warning("laconic: %s did not answer several times; it counts as absent for a while", self.name(client))

    def refresh(self) -> None:
        """Update which nodes are connected, invite new ones, and read their answers, without waiting."""
        connected, now = set(self._grid.get_node_ids()), time.monotonic()
        self._drop_disconnected(connected, now)
        resting = {node for node, rejection in self._rejected.items() if now < rejection.until}
        invited = {node for node, _ in self._invited.values()}
        self._invite(sorted(connected - set(self._nodes.values()) - invited - resting), now)
        admitted: list[int] = []
        for identifier, message in self._inbox.pull(list(self._invited)) if self._invited else ():
            invitation = self._invited.pop(identifier, None)
            if invitation is not None:
                admitted += self._admit(invitation[0], message)
        if admitted:
            self._check_sizes()
        for client in admitted:
            if client in self._nodes:
                size = self.sizes[client]
                LOG.info("laconic: client %d has joined (node %d, %d examples)", client, self._nodes[client], size)

    def _drop_disconnected(self, connected: set[int], now: float) -> None:
        for client, node in list(self._nodes.items()):
            if node not in connected:
                LOG.info("laconic: client %d (node %d) has disconnected", client, node)
                del self._nodes[client]
        self._rejected = {node: rejection for node, rejection in self._rejected.items() if node in connected}
        # A node that was killed and restarted has its old id, but has lost the invitation.
        self._invited = {
            key: (node, until) for key, (node, until) in self._invited.items() if node in connected and now < until
        }

    def _invite(self, nodes: list[int], now: float) -> None:
        """Send the plan to nodes."""
        if not nodes:
            return
        plan = self.plan.model_dump_json()
        messages = [Message(wire.content(plan=plan), node, MessageType.QUERY, ttl=self._patience) for node in nodes]
        sent = zip(self._grid.push_messages(messages), nodes, strict=False)
        self._invited |= {key: (node, now + self._patience) for key, node in sent if key}

    def _admit(self, node: int, message: Message | PacketError) -> list[int]:
        """Read a node's answer to an invitation. Returns its client, or nothing if the node is rejected."""
        try:
            record = wire.read_answer(message)
            name = wire.text(record, "name", LONGEST_NAME)
            client = self._number(name, wire.count(record, "client", lowest=-1), node)
            size = self._size(client, wire.count(record, "examples", lowest=1))
        except PacketError as error:
            self.refused_joins += error.reason != "full"  # spare nodes are no problem
            self._reject(node, str(error))
            return []
        previous = self._nodes.get(client, node)
        if previous != node:
            self._reject(previous, f"number: client {client} is node {node} now")
        self._own(client, name, node)
        self._nodes[client], self.sizes[client] = node, size
        if client not in self._unfit:
            self._rejected.pop(node, None)
        return [client]

    def _own(self, client: int, name: str, node: int) -> None:
        """Record the owner of a client number."""
        old_name, old_node = self.owners.get(client, (name, node))
        # A node that has moved to another number keeps its entries.
        if self._by_name.get(old_name) == client:
            del self._by_name[old_name]
        if self._by_node.get(old_node) == client:
            del self._by_node[old_node]
        self.owners[client] = name, node
        self._by_name[name] = self._by_node[node] = client

    def _check_sizes(self) -> None:
        """Reject the clients whose size the method cannot use together with the median size, and invite others again."""
        unfit: dict[int, int] = {}
        try:
            self._fits(self.sizes.values())
        except ConfigError:
            typical = median_low(self.sizes.values())
            for client, size in self.sizes.items():
                node = self._nodes.get(client, self._unfit.get(client))
                try:
                    self._fits((typical, size))
                except ConfigError as error:
                    if node is not None:
                        unfit[client] = node
                    if client in self._nodes:
                        self._reject(self._nodes.pop(client), f"examples: {counted(size, 'example')}: {error}")
        for client, node in self._unfit.items():
            if client not in unfit:
                self._rejected.pop(node, None)
        self._unfit = unfit

    def _reject(self, node: int, reason: str) -> None:
        """Reject a node, and invite it again with exponential backoff. The same reason is logged once."""
        previous = self._rejected.get(node)
        pause = FIRST_PAUSE if previous is None else min(LONGEST_PAUSE, 2 * previous.pause)
        if previous is None or previous.reason != reason:
            LOG.warning("laconic: node %d cannot take part: %s", node, reason)
        self._rejected[node] = Rejection(reason, pause, time.monotonic() + pause)

    def _number(self, name: str, wanted: int, node: int) -> int:
        client = wanted if wanted >= 0 else self._by_name.get(name, -1)
        if client < 0:
            while self._free in self.owners:
                self._free += 1
            client = self._free
            if client >= self.plan.clients:
                raise PacketError("full", f"all {self.plan.clients} clients of this run have a node")
        if client >= self.plan.clients:
            raise PacketError("number", f"partition-id = {client}: 0 to {self.plan.clients - 1} is allowed")
        # The same file under a new node id: Flower considers the old node connected for a minute after it has ended.
        moved = client in self.owners and self.owners[client][0] == name
        if self._nodes.get(client, node) != node and not moved:
            raise PacketError(
                "number", f"client {client} is node {self._nodes[client]}; every node needs its own partition-id"
            )
        if not self._replace_nodes:
            self._check_owner(client, name, node)
        return client

    def _check_owner(self, client: int, name: str, node: int) -> None:
        owner = self.owners.get(client)
        if owner is not None and name != owner[0] and node != owner[1]:
            raise PacketError("owner", f"client {client} belongs to another node; replace-nodes = true admits this one")
        other = self._by_node.get(node, client)
        if other != client:
            raise PacketError("owner", f"it is client {other}, not {client}; replace-nodes = true allows the change")

    def _size(self, client: int, size: int) -> int:
        """Check the number of examples that a client reports. If it is the client's weight, it must not change."""
        if size > self._most_examples:
            raise PacketError("examples", f"{counted(size, 'example')}; most-examples = {self._most_examples}")
        if self._fixed_sizes and self.sizes.get(client, size) != size:
            raise PacketError(
                "examples", f"client {client} had {counted(self.sizes[client], 'example')}, and now reports {size}"
            )
        return size

    def invite_again(self, client: int) -> None:
        """Send the plan again to a client that has lost it."""
        self._nodes.pop(client, None)

    def disconnected(self, clients: Iterable[int]) -> set[int]:
        """Those of `clients` whose node is no longer connected."""
        connected = set(self._grid.get_node_ids())
        return {client for client in clients if self._nodes.get(client) not in connected}

    def state_dict(self) -> StateDict:
        """The state that a restarted server needs, as plain values."""
        return {
            "owners": {str(client): list(owner) for client, owner in self.owners.items()},
            "sizes": {str(client): size for client, size in self.sizes.items()},
            "blocklist": self.blocklist.state_dict(),
            "absences": self.absences.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state that `state_dict` returned."""
        for client, (name, node) in state["owners"].items():
            self._own(int(client), name, node)
        self.sizes = {int(client): size for client, size in state["sizes"].items()}
        self.blocklist.load_state_dict(state["blocklist"])
        self.absences.load_state_dict(state["absences"])
