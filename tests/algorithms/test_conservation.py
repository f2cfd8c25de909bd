"""Nothing is lost and nothing is doubled, whatever happens on the way.

Random histories of participation, lost, late and duplicated updates, clients that crash at any moment or come back with
nothing, and servers that crash in the middle of a round, over every kind of link. After every round:

- conservation (algorithms.md): with error feedback, the sum of what the server used of a client's updates, plus that
  client's memory, is the sum of the updates that count, less what was thrown away with a lost state, a restart or
  a decay;
- the server's and the client's idea of what they share (lazy reference, shift, mirrored model, broadcast version) are the
  same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.algorithms.downlinks.base import LOST
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import MODEL
from laconic.algorithms.optimizers.adaptive import AMS
from laconic.algorithms.uplinks.compressed import Compressed
from laconic.algorithms.uplinks.lazy import Accelerated, Lazy
from laconic.algorithms.uplinks.shifted import Shifted
from laconic.compression.packet import Flag, Packet
from laconic.core.layout import Layout
from laconic.core.part import State, part
from laconic.core.randomness import Randomness
from laconic.core.state_dict import section, split
from laconic.data import from_arrays
from laconic.federation.client import ClientRuntime
from laconic.federation.messages import Instruction, Reply
from laconic.federation.replies import CodedVector
from laconic.federation.server import Server
from laconic.federation.store import ClientStore, MemoryStore
from tests.federation.rounds import begin, folded_state, started

CLIENTS, SEED = 4, 7
TASK = laconic.regression(nn.Linear(69, 1).double())  # a chunk of 64 entries, and a shorter one
LAYOUT = Layout.of(TASK.module)
DATA = from_arrays([(np.zeros((1, 69)), np.zeros(1))] * CLIENTS)
RANDOMNESS = Randomness(SEED)


def update_of(round: int, client: int) -> Tensor:
    """What a client's training brings: a drift that is the same every round, and noise."""
    steady = RANDOMNESS.numpy("steady", client=client).normal(size=LAYOUT.size)
    return torch.from_numpy(steady + 0.3 * RANDOMNESS.numpy("noise", round, client).normal(size=LAYOUT.size))


@part("method", "given_updates")
class GivenUpdates(Method):
    """Updates that follow from the names of round and client alone, so that a test knows them."""

    def local(self, cohort: Cohort) -> Tensor:
        return torch.stack([update_of(cohort.round, client) for client in cohort.clients])

    def nominal_gradients(self, size: int) -> int:
        return 0


UPLINKS = {
    "dense": laconic.DenseUplink(),
    "qsgd without memory": laconic.Compressed("qsgd:3"),
    "top_k": Compressed("top_k:1/4", memory=True),
    "sign by layer": Compressed("sign@layer", memory=True),
    "qsgd": Compressed("qsgd:2", memory=True),
    "top_k and qsgd": Compressed("top_k:1/4+qsgd:4", memory=True),
    "eden": Compressed("eden@layer", memory=True),
    "natural": Compressed("natural", memory=True),
    "stochastic": Compressed("stochastic:1/4", memory=True),
    "dead_zone by chunk": Compressed("dead_zone:1/4@chunk:64", memory=True),
    "memory that decays": Compressed("top_k:1/4", memory=True, memory_decay=0.75),
    "restart": Compressed("top_k:1/8", restart_after=1, restart_from=2, memory=True),
    "lazy": Lazy("top_k:1/4", memory=True, threshold=1.2),
    "lazy dense": Lazy(threshold=0.5),
    "lazy with restart": Lazy("top_k:1/4", memory=True, threshold=1.0, restart_after=1, restart_from=2),
    "accelerated": Accelerated("sign", memory=True, threshold=2.0),
    "accelerated by what is used": Accelerated("sign", memory=True, threshold=2.0, feedback="used"),
    "lag": laconic.LAG("top_k:1/4", memory=True, alpha=0.02),
    "shifted": Shifted("qsgd:3"),
    "shifted at a rate": Shifted("top_k:1/4", shift_rate=0.5),
    "shifted eden by chunk": Shifted("eden:1/2@chunk:64"),
    "shifted stochastic": Shifted("stochastic:1/4"),
}
DOWNLINKS = {
    "dense": laconic.DenseDownlink(),
    "broadcast": laconic.Broadcast("top_k:1/8"),
    "broadcast sign": laconic.Broadcast("sign"),
    "compressed": laconic.CompressedDownlink("uniform:8"),
    "estimated": laconic.Estimated("top_k:1/8"),
    "mirrored": laconic.Mirrored("top_k:1/4", threshold=0.05),
    "mirrored levels": laconic.Mirrored("stochastic:1/4"),
    "mirrored as printed": laconic.Mirrored("top_k:1/4", threshold=0.05, literal=True),
    "mirrored and accelerated": laconic.Mirrored(
        "top_k:1/4", threshold=0.5, aggregation="accelerated", mirror_start="zero"
    ),
}
FAULTS = [
    "away",
    "answers",
    "answers",
    "dropped",
    "late",
    "doubled",
    "dead before",
    "dead amid",
    "dead after",
    "emptied",
    "emptied, asked before",
    "asked before",
    "asked again",
]
"""Asked before: an instruction of an earlier round arrives once more before this one; again: any of them after it."""


@dataclass
class World:
    """One server, its clients, and the books that the test keeps of them."""

    algorithm: Algorithm
    updates: dict[int, Tensor] = field(default_factory=dict)
    used: dict[int, Tensor] = field(default_factory=dict)
    thrown: dict[int, Tensor] = field(default_factory=dict)
    emptied: set[int] = field(default_factory=set)
    """Clients that have lost a state which the server still counts on."""
    late: list[Reply] = field(default_factory=list)
    asked: dict[int, list[Instruction]] = field(default_factory=dict)
    """Of each client, the instructions that its present state has seen."""
    starts: int = 0
    losses: int = 0

    def __post_init__(self) -> None:
        # Numbers are left out as in a real store after a loss, but the same ones in every run of a history.
        self.store = self.make_store(lambda: 1000 * self.losses)
        self.server = self.make_server()
        self.models = {0: self.server.model.clone()}
        initial = LAYOUT.flatten(TASK.module)
        buffers = LAYOUT.flatten_buffers(TASK.module)
        device = torch.device("cpu")
        self.runtime = ClientRuntime(
            self.algorithm, TASK, LAYOUT, initial, buffers, DATA, RANDOMNESS, self.store, device
        )
        for books in (self.updates, self.used, self.thrown):
            books |= {client: torch.zeros(LAYOUT.size, dtype=torch.float64) for client in range(CLIENTS)}

    def make_store(self, unseen: Callable[[], int]) -> ClientStore:
        return MemoryStore(unseen)

    def make_server(self) -> Server:
        self.starts += 1
        return started(self.algorithm, TASK, DATA, RANDOMNESS, CLIENTS, self.starts)

    def state_of(self, client: int) -> State:
        return {} if client in self.emptied else folded_state(self.server, self.store, client)

    def round(self, faults: list[str], server_dies: bool) -> None:
        before = {name: value.clone() for name, value in self.server.state_dict().items()}
        round, instructions = begin(self.server)
        entries = []
        for reply in self.deliver(instructions, faults):
            entry = self.would_fold(reply)
            if round.receive(reply) and entry is not None:
                entries.append(entry)
        if server_dies:
            # Nothing of this round was durable, so a new process knows the round before; the clients find out.
            self.server = self.make_server()
            self.server.load_state_dict(before)
            return
        self.costs = round.close().costs
        for client, update, used, memory_thrown in entries:
            self.updates[client] += update
            self.used[client] += used
            self.thrown[client] += memory_thrown
            self.emptied.discard(client)
        self.models[self.algorithm.downlink.version(self.server.downlink_state)] = self.server.model.clone()

    def deliver(self, instructions: list[Instruction], faults: list[str]) -> list[Reply]:
        arriving, self.late = self.late, []
        for instruction, injected in zip(instructions, faults, strict=True):
            if injected in ("away", "dead before"):
                continue
            if injected.startswith("emptied"):
                old = self.asked.get(instruction.client, [])[-1:]
                self.empty(instruction.client)
                if injected == "emptied, asked before":
                    # It cannot know that this is a copy, and answers it; the answer comes too late for its round.
                    arriving += self.runtime.answer(old, gradients=None)
            if injected == "asked before":
                self.ask_again(instruction.client)
            self.asked.setdefault(instruction.client, []).append(instruction)
            if injected == "dead amid":
                self.runtime.settle(instruction)
                self.restart_clients()
                continue
            (reply,) = self.runtime.answer([instruction], gradients=None)
            if injected == "dead after":
                self.restart_clients()
            if injected == "asked again":
                self.ask_again(instruction.client)
            if injected == "late":
                self.late.append(reply)
            elif injected not in ("dropped", "dead after"):
                arriving += [reply] * (2 if injected == "doubled" else 1)
        return arriving

    def restart_clients(self) -> None:
        """Only what is durable is left. A store in memory stands for one that makes everything durable at once."""

    def ask_again(self, client: int) -> None:
        """Copies of old instructions are refused, and whatever the client keeps stays as it was."""
        for old in self.asked.get(client, []):
            tensors, plain = split(copy.deepcopy(self.store.state_dict()))
            with pytest.raises(laconic.PacketError) as caught:
                self.runtime.answer([old], gradients=None)
            assert caught.value.reason == "stale"
            now, plain_now = split(self.store.state_dict())
            assert plain_now == plain
            assert now.keys() == tensors.keys()
            assert all(torch.equal(now[name], tensors[name]) for name in now)

    def empty(self, client: int) -> None:
        memory = self.state_of(client).get("uplink/memory")
        if memory is not None:
            self.thrown[client] += memory
        if self.server.clients.sequences[client] > 0:
            self.emptied.add(client)
        self.losses += 1
        self.store.forget(client)
        self.asked.pop(client, None)

    def would_fold(self, reply: Reply) -> tuple[int, Tensor, Tensor, Tensor] | None:
        """What the books will say if the server takes this reply: the update, what was used of it, what was restarted."""
        packet = Packet.parse(reply.packets[0], LAYOUT)
        if Flag.LOST in packet.flags:
            return None
        peer = {} if Flag.RESET in packet.flags else section(self.server.clients.links.get(reply.client, {}), "uplink")
        try:
            context = RoundContext(LAYOUT, RANDOMNESS, packet.round, reply.client, CLIENTS, CLIENTS)
            bodies, _ = self.algorithm.uplink.receive(packet.body, packet.flags, peer, context)
            payload = CodedVector(bodies, MODEL, LAYOUT).payload
        except laconic.PacketError:
            return None
        used = payload.dense()
        if Flag.ACCELERATED in packet.flags and self.algorithm.uplink.feedback == "sent":
            # Accelerated conserves what was sent, not what was made of it, unless it is told to.
            used = used - self.algorithm.uplink.reference(peer, LAYOUT).dense()
        return reply.client, update_of(packet.round, reply.client), used, self.restarted(reply.client, packet.round)

    def restarted(self, client: int, round: int) -> Tensor:
        state, uplink = section(self.state_of(client), "uplink"), self.algorithm.uplink
        if "memory" in state:
            # The state at hand may be the one this very reply made; the one before it is what was forgotten.
            committed = self.store.record(client).committed
            earlier = section(self.store.state(client, committed) if committed else {}, "uplink")
            if "memory" in earlier:
                age, after = round - int(earlier["updated"]), uplink.restart_after
                expired = after is not None and round >= uplink.restart_from and age > after
                return earlier["memory"] * (1 if expired else 1 - uplink.memory_decay)
        return torch.zeros(LAYOUT.size, dtype=torch.float64)

    def check(self) -> None:
        for client in range(CLIENTS):
            state = self.state_of(client)
            if self.algorithm.uplink.has_memory:
                memory = state.get("uplink/memory", torch.zeros(LAYOUT.size, dtype=torch.float64))
                total = self.used[client] + memory + self.thrown[client]
                torch.testing.assert_close(total, self.updates[client], rtol=0, atol=1e-9)
            if client not in self.emptied:
                self.check_shared(client, state)

    def check_shared(self, client: int, state: State) -> None:
        peer = self.server.clients.links.get(client, {})
        if self.algorithm.uplink.has_reference and self.server.clients.sequences[client]:
            shared = "uplink/shift" if isinstance(self.algorithm.uplink, Shifted) else "uplink/reference"
            assert torch.equal(peer[shared], state[shared])
        if self.server.clients.versions[client] == LOST:
            return
        if "downlink/mirror" in peer:
            assert torch.equal(peer["downlink/mirror"], state["downlink/model"])
            difference = ("downlink/difference" in peer, "downlink/difference" in state)
            assert difference[0] == difference[1]
            assert not all(difference) or torch.equal(peer["downlink/difference"], state["downlink/difference"])
        if isinstance(self.algorithm.downlink, laconic.Broadcast) and "downlink/version" in state:
            version = int(state["downlink/version"])
            assert version == self.server.clients.versions[client]
            assert torch.equal(state["downlink/model"], self.models[version])


ROUND = st.tuples(st.lists(st.sampled_from(FAULTS), min_size=CLIENTS, max_size=CLIENTS), st.booleans())
HISTORY = st.lists(ROUND, min_size=2, max_size=12)


def live_through(uplink: str, downlink: str, history: list[tuple[list[str], bool]], world_type: type = World) -> None:
    world = world_type(Algorithm(GivenUpdates(), UPLINKS[uplink], AMS(), DOWNLINKS[downlink]))
    for faults, server_dies in history:
        world.round(faults, server_dies)
        world.check()


NO_LIMIT = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=100, **NO_LIMIT)
@given(st.sampled_from(list(UPLINKS)), st.sampled_from(list(DOWNLINKS)), HISTORY)
def test_nothing_is_lost_or_doubled(uplink: str, downlink: str, history: list[tuple[list[str], bool]]) -> None:
    live_through(uplink, downlink, history)


@pytest.mark.long
@settings(max_examples=3000, **NO_LIMIT)
@given(st.sampled_from(list(UPLINKS)), st.sampled_from(list(DOWNLINKS)), HISTORY)
def test_nothing_is_lost_or_doubled_in_three_thousand_histories(
    uplink: str, downlink: str, history: list[tuple[list[str], bool]]
) -> None:
    live_through(uplink, downlink, history)


@pytest.mark.parametrize("uplink", UPLINKS)
@pytest.mark.parametrize("downlink", DOWNLINKS)
def test_with_no_faults_every_update_counts(uplink: str, downlink: str) -> None:
    # Guards the properties above: a server that refused everything would keep its books in order, too.
    world = World(Algorithm(GivenUpdates(), UPLINKS[uplink], AMS(), DOWNLINKS[downlink]))
    for _ in range(4):
        world.round(["answers"] * CLIENTS, False)
        world.check()
    assert world.server.clients.sequences.tolist() == [4] * CLIENTS
    assert all(float(world.used[client].norm()) > 0 for client in range(CLIENTS))


def test_a_client_that_lost_everything_is_brought_back() -> None:
    world = World(Algorithm(GivenUpdates(), UPLINKS["lazy"], AMS(), DOWNLINKS["mirrored"]))
    for faults in (["answers"] * 4, ["emptied"] + ["answers"] * 3, ["answers"] * 4, ["answers"] * 4):
        world.round(faults, False)
        world.check()
    assert not world.emptied
    assert world.server.clients.sequences[0] >= 3
    assert "uplink/reference" in world.server.clients.links[0]


def test_copies_of_instructions_are_tried() -> None:
    world = World(Algorithm(GivenUpdates(), UPLINKS["lazy"], AMS(), DOWNLINKS["mirrored"]))
    for faults, server_dies in [(["answers"] * 4, False), (["asked again"] * 4, True), (["asked before"] * 4, False)]:
        world.round(faults, server_dies)
        world.check()
    assert [len(world.asked[client]) for client in range(CLIENTS)] == [3] * CLIENTS
    assert world.server.clients.sequences.tolist() == [3] * CLIENTS


@pytest.mark.parametrize("uplink", ["lazy", "lazy with restart", "accelerated", "accelerated by what is used"])
def test_lazy_and_accelerated_fire_and_restart_here(uplink: str) -> None:
    """Guards the histories: skips, accelerations and restarts do happen in them."""
    world = World(Algorithm(GivenUpdates(), UPLINKS[uplink], AMS(), DOWNLINKS["dense"]))
    fired, thrown = 0, []
    for round in range(12):
        world.round(["answers" if round % 4 != 3 else "away"] * 3 + ["answers" if round % 3 == 0 else "away"], False)
        world.check()
        fired += world.costs.skipped + world.costs.accelerated
        thrown.append(float(world.thrown[3].norm()))
    assert fired > 0
    assert (thrown[-1] > 0) == ("restart" in uplink)


def test_an_old_instruction_to_a_client_that_lost_everything_is_no_acknowledged_update() -> None:
    """It cannot know that the instruction is old, but what it answers must not pass for what the server has folded."""
    for number in (0, 1):
        world = World(Algorithm(GivenUpdates(), UPLINKS["lazy"], AMS(), DOWNLINKS["dense"]))
        for _ in range(2):
            world.round(["answers"] * 4, False)
        old = world.asked[0][number]
        world.empty(0)
        world.runtime.answer([old], gradients=None)
        world.round(["answers"] * 4, False)
        world.check()
        assert 0 not in world.emptied
