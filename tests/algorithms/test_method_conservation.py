"""What methods keep on both sides agrees after any history of losses, crashes and restarts.

Control variates: c is the mean of all c_i. FedDyn: h is the mean of all h_i. Anchors: vbar is the mean of all v_i. Gradient
tracking: the trackers, and what clients are still owed, sum to 0. What a client threw away with a lost state is entered in
the books.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.compression import decode_body
from laconic.compression.packet import Flag, Packet
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Randomness
from laconic.core.task import Batch
from laconic.data import from_arrays
from laconic.federation.client import ClientRuntime
from laconic.federation.messages import Instruction, Reply
from laconic.federation.round import Round
from laconic.federation.server import Server
from laconic.federation.store import MemoryStore
from tests.federation.rounds import NoEngine, folded_state, started

CLIENTS = 4
TASK = laconic.regression(nn.Linear(15, 1).double())
LAYOUT = Layout.of(TASK.module)
# A client's only feature is its number, so that the gradient below knows whose batch it sees.
DATA = from_arrays([(np.full((2, 15), client), np.zeros(2)) for client in range(CLIENTS)])
RANDOMNESS = Randomness(3)
CURVATURES = np.random.default_rng(0).uniform(0.5, 2.0, (CLIENTS, LAYOUT.size))
OPTIMA = np.random.default_rng(1).normal(size=(CLIENTS, LAYOUT.size))


def quadratic(models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: object) -> tuple[Tensor, Tensor]:
    """Each client's gradient of a quadratic of its own."""
    rows = []
    for model, batch in zip(models, batches, strict=True):
        assert batch is not None
        client = int(batch[0].reshape(-1)[0])
        rows.append(torch.from_numpy(CURVATURES[client]) * (model - torch.from_numpy(OPTIMA[client])))
    return torch.stack(rows), torch.zeros(len(rows))


def feedback(text: str) -> laconic.Compressed:
    return laconic.Compressed(text, memory=True)


UPLINKS = {
    "dense": laconic.DenseUplink(),
    "sign": feedback("sign"),
    "top_k": feedback("top_k:1/4"),
    "quantized": laconic.Compressed("uniform:4@layer"),
    "lazy": laconic.Lazy("top_k:1/4", memory=True, threshold=1.0),
    "accelerated": laconic.Accelerated(threshold=1.0),
    "shifted": laconic.Shifted("uniform:4@layer"),
}
DOWNLINKS = {
    "dense": laconic.DenseDownlink(),
    "broadcast": laconic.Broadcast("top_k:1/4"),
    "estimated": laconic.Estimated("top_k:1/4"),
    "mirrored": laconic.Mirrored("top_k:1/4"),
    "repeated": laconic.Repeated(),
}
METHODS = {
    "tracking": laconic.GradientTracking(local_lr=0.1, local_steps=2),
    "tracking, global memory": laconic.GradientTracking(local_lr=0.1, local_steps=2, memory="global"),
    "tracking, random steps": laconic.GradientTracking(local_lr=0.1, local_steps=2, random_steps=True),
    "control": laconic.ControlVariates(local_lr=0.1, local_steps=2),
    "warm control": laconic.ControlVariates(local_lr=0.1, local_steps=2, warm_start=True),
    "anchors": laconic.AnchorSampling(local_lr=0.1, local_steps=2, probability=0.5),
    "bvr_l_sgd": laconic.bvr_l_sgd(local_steps=2).method,
    "fed_page": laconic.fed_page(local_steps=2).method,
    "ef21": laconic.ef21().method,
    "diana": laconic.diana(alpha=0.3).method,
    "marina": laconic.marina(probability=0.3).method,
    "ef21_sgdm": laconic.ef21_sgdm().method,
    "scallion": laconic.SCALLION(local_lr=0.1, local_steps=2, alpha=0.5),
    "scafcom": laconic.SCAFCOM(local_lr=0.1, local_steps=2, warm_start=True),
    "fed_dyn": laconic.FedDyn(local_lr=0.1, local_steps=2),
}
UNBIASED = ("diana", "marina", "scallion")
"""They refuse a biased compressor."""
PLAIN = ("ef21", "diana", "marina", "ef21_sgdm", "scallion", "scafcom")
"""They refuse uplinks with a memory or a reference, and so have the compressor alone."""
MEANS = ("control", "anchor", "gradient", "dual")
KEPT = (*MEANS, "tracker")
FAULTS = ["answers"] * 3 + ["away", "dropped", "late", "doubled", "dead amid", "dead after", "emptied"]


@dataclass
class World:
    """One server, its clients, and the books of what was thrown away."""

    algorithm: Algorithm
    thrown: dict[str, Tensor] = field(default_factory=dict)
    emptied: set[int] = field(default_factory=set)
    late: list[Reply] = field(default_factory=list)
    starts: int = 0

    def __post_init__(self) -> None:
        self.algorithm = self.algorithm.resolve()
        self.store = MemoryStore()
        self.server = self.make_server()
        initial, buffers = LAYOUT.flatten(TASK.module), torch.zeros(0)
        clients = (LAYOUT, initial, buffers, DATA, RANDOMNESS, self.store, torch.device("cpu"))
        self.runtime = ClientRuntime(self.algorithm, TASK, *clients)

    def make_server(self) -> Server:
        self.starts += 1
        return started(self.algorithm, TASK, DATA, RANDOMNESS, 3, self.starts)

    def state_of(self, client: int) -> State:
        return {} if client in self.emptied else folded_state(self.server, self.store, client)

    def round(self, faults: list[str], death: int | None) -> None:
        before = {name: value.clone() for name, value in self.server.state_dict().items()}
        at_first = {client: self.belongings(client) for client in range(CLIENTS)}
        books, emptied = dict(self.thrown), set(self.emptied)
        self.newly_emptied: set[int] = set()
        waiting = iter(faults)
        round = Round(self.server, NoEngine())
        for number, exchange in enumerate(round.exchanges()):
            for reply in self.deliver(round.instructions(exchange), waiting):
                started_over = any(Flag.RESET in Packet.parse(packet, LAYOUT).flags for packet in reply.packets)
                if round.receive(reply) and started_over:
                    self.emptied.discard(reply.client)
            if death == number:
                # Nothing of this round was durable; but what a client has lost meanwhile is lost.
                self.server = self.make_server()
                self.server.load_state_dict(before)
                self.thrown = books
                self.emptied = emptied | {c for c in self.newly_emptied if self.server.clients.sequences[c] > 0}
                for client in self.newly_emptied - emptied:
                    self.throw(at_first[client])
                return
            round.finish(exchange)
        round.close()

    def deliver(self, instructions: list[Instruction], faults: object) -> list[Reply]:
        arriving, self.late = self.late, []
        for instruction in instructions:
            injected = next(faults, "answers")
            if injected == "away":
                continue
            if injected == "emptied":
                self.empty(instruction.client)
            if injected == "dead amid":
                self.runtime.settle(instruction)
                continue
            (reply,) = self.runtime.answer([instruction], gradients=quadratic)
            if injected == "late":
                self.late.append(reply)
            elif injected not in ("dropped", "dead after"):
                arriving += [reply] * (2 if injected == "doubled" else 1)
        return arriving

    def empty(self, client: int) -> None:
        self.throw(self.belongings(client))
        self.newly_emptied.add(client)
        if self.server.clients.sequences[client] > 0:
            self.emptied.add(client)
        self.store.forget(client)

    def belongings(self, client: int) -> dict[str, Tensor]:
        """What would be lost with this client's state."""
        state = self.state_of(client)
        mine = {name: state[f"method/{name}"] for name in KEPT if f"method/{name}" in state}
        if "tracker" in mine:
            mine["tracker"] = mine["tracker"] + self.owed(client, state)
        return mine

    def throw(self, belongings: dict[str, Tensor]) -> None:
        for name, value in belongings.items():
            self.thrown[name] = self.thrown.get(name, torch.zeros_like(value)) + value

    def owed(self, client: int, state: State) -> Tensor:
        bodies = self.server.clients.pending.bodies(client)
        if "mean" not in bodies or "method/unit" not in state:
            return torch.zeros(LAYOUT.size, dtype=torch.float64)
        return float(state["method/unit"]) * decode_body(bodies["mean"], LAYOUT).dense()

    def check(self) -> None:
        states = {client: self.state_of(client) for client in range(CLIENTS)}
        zero = torch.zeros(LAYOUT.size, dtype=torch.float64)
        for name in MEANS:
            if any(f"method/{name}" in state for state in states.values()):
                total = sum((state.get(f"method/{name}", zero) for state in states.values()), zero)
                total = total + self.thrown.get(name, zero)
                torch.testing.assert_close(CLIENTS * self.server.method_state[name], total, rtol=0, atol=1e-8)
        if isinstance(self.algorithm.downlink, laconic.Repeated):
            for client, state in states.items():
                # Whoever is taken to have the server's model has it, to the bit.
                now = self.algorithm.downlink.version(self.server.downlink_state)
                if client not in self.emptied and now and self.server.clients.versions[client] == now:
                    assert torch.equal(state["downlink/model"], self.server.model)
        trackers = sum((state.get("method/tracker", zero) for state in states.values()), zero)
        owed = sum((self.owed(client, state) for client, state in states.items()), zero)
        torch.testing.assert_close(trackers + owed + self.thrown.get("tracker", zero), zero, rtol=0, atol=1e-8)


ROUND = st.tuples(st.lists(st.sampled_from(FAULTS), max_size=8), st.sampled_from([None, None, 0, 1]))
HISTORY = st.lists(ROUND, min_size=2, max_size=10)
NO_LIMIT = {"deadline": None, "suppress_health_check": list(HealthCheck)}
COMBINATIONS = (st.sampled_from(list(METHODS)), st.sampled_from(list(UPLINKS)), st.sampled_from(list(DOWNLINKS)))


def live_through(method: str, uplink: str, downlink: str, history: list[tuple[list[str], int | None]]) -> World:
    if downlink == "repeated" and not method.startswith("tracking"):
        downlink = "dense"
    if method in UNBIASED and uplink in ("sign", "top_k", "lazy"):
        uplink = "quantized"
    if method == "tracking, global memory" and uplink in ("quantized", "accelerated", "shifted"):
        uplink = "lazy"  # there must be a memory to take the mean out of
    # What is conserved has nothing to do with the server's step: half of the links go with each.
    adaptive = uplink in ("sign", "lazy", "accelerated") and downlink != "repeated"
    optimizer = laconic.AMS() if adaptive else laconic.SGD()
    link = UPLINKS[uplink]
    if METHODS[method].name in PLAIN and (link.has_memory or link.has_reference):
        link = laconic.Compressed(str(link.compression))
    world = World(Algorithm(METHODS[method], link, optimizer, DOWNLINKS[downlink]))
    for faults, death in history:
        world.round(faults, death)
        world.check()
    return world


@settings(max_examples=100, **NO_LIMIT)
@given(*COMBINATIONS, HISTORY)
def test_both_sides_agree(method: str, uplink: str, downlink: str, history: list) -> None:
    live_through(method, uplink, downlink, history)


@pytest.mark.long
@settings(max_examples=3000, **NO_LIMIT)
@given(*COMBINATIONS, HISTORY)
def test_both_sides_agree_in_three_thousand_histories(method: str, uplink: str, downlink: str, history: list) -> None:
    live_through(method, uplink, downlink, history)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("uplink", UPLINKS)
def test_with_no_faults_everybody_is_heard_and_something_is_learned(method: str, uplink: str) -> None:
    # Guards the properties above: a server that refused everything would keep its books in order, too.
    world = live_through(method, uplink, "dense", [([], None)] * 12)
    assert min(world.server.clients.sequences) > 0
    assert not world.server.clients.pending.clients()
    start = LAYOUT.flatten(TASK.module)
    assert float((world.server.model - start).norm()) > 1e-3


def test_what_is_owed_comes_with_the_next_instruction() -> None:
    world = World(Algorithm(METHODS["tracking"]))
    # Three answer, and none of them hears the mean.
    world.round(["answers"] * 3 + ["away"] * 3, None)
    world.check()
    debtors = world.server.clients.pending.clients()
    assert len(debtors) == 3
    for _ in range(3):
        world.round([], None)
        world.check()
    assert not world.server.clients.pending.clients()
