"""Replies from outside: whatever a client sends is folded in or refused, and what is refused changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.methods.base import Method
from laconic.algorithms.methods.cohort import Cohort
from laconic.compression import GroupedCompressor, encode_dense
from laconic.compression.packet import Body, CoreStream, Flag, Packet
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, part
from laconic.core.randomness import Randomness
from laconic.data import from_arrays
from laconic.federation.client import ClientRuntime
from laconic.federation.messages import Reply
from laconic.federation.round import Round
from laconic.federation.server import Server
from laconic.federation.store import MemoryStore
from tests.compression.test_compressors import draws
from tests.federation.rounds import begin, refusal

CLIENTS = 4
TASK = laconic.regression(nn.Sequential(nn.Linear(20, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)))
LAYOUT = Layout.of(TASK.module)
DATA = from_arrays([(np.zeros((2, 20)), np.zeros(2))] * CLIENTS)
RANDOMNESS = Randomness(5)
ALGORITHMS = {
    "dense": (laconic.DenseUplink(), laconic.DenseDownlink()),
    "feedback and broadcast": (laconic.Compressed("top_k:0.1", memory=True), laconic.Broadcast("top_k:0.1")),
    "levels": (laconic.Compressed("qsgd:4@layer"), laconic.DenseDownlink()),
    "lazy and mirrored": (laconic.Lazy("top_k:0.2+qsgd:4", memory=True, threshold=2.0), laconic.Mirrored("sign")),
    "shifted": (laconic.Shifted("qsgd:4@layer"), laconic.DenseDownlink()),
    "rotated in chunks": (laconic.Compressed("eden:0.3@chunk:64"), laconic.DenseDownlink()),
    "powers of two": (laconic.Compressed("natural", memory=True), laconic.Mirrored("dead_zone:0.1@chunk:64")),
    "sparse levels": (laconic.Shifted("stochastic:0.3@layer"), laconic.Broadcast("dead_zone:0.1")),
    "accelerated": (laconic.Accelerated("sign@layer", memory=True, threshold=2.0), laconic.DenseDownlink()),
}
SPELLINGS = ["dense", "top_k:0.1", "random_k:0.3", "sign@layer", "qsgd:4", "uniform:8", "cast:float16"]
SPELLINGS += ["eden", "eden:0.3@layer", "natural", "stochastic:0.3", "dead_zone:0.1", "sign@chunk:64"]
BODIES = [
    GroupedCompressor.parse(spelling).encode(torch.randn(LAYOUT.size), LAYOUT, draws()) for spelling in SPELLINGS
] + [encode_dense(torch.ones(LAYOUT.buffer_size))]


@part("method", "replied_updates")
class RepliedUpdates(Method):
    """Updates that need no gradients."""

    def local(self, cohort: Cohort) -> Tensor:
        drawn = [RANDOMNESS.numpy("update", cohort.round, client).normal(size=LAYOUT.size) for client in cohort.clients]
        return torch.from_numpy(np.stack(drawn)).float()

    def nominal_gradients(self, size: int) -> int:
        return 0


@dataclass
class Scene:
    """A server in the middle of a round, and the honest replies that it waits for."""

    server: Server
    round: Round
    replies: list[Reply]
    start: State
    """The server's state when the round began."""

    def begin_again(self) -> None:
        """The same round once more; it expects the same replies."""
        self.server.load_state_dict({name: value.clone() for name, value in self.start.items()})
        self.round, _ = begin(self.server)

    @classmethod
    def of(cls, name: str, rounds: int = 3) -> Scene:
        uplink, downlink = ALGORITHMS[name]
        algorithm = Algorithm(RepliedUpdates(), uplink, laconic.fed_ams().optimizer, downlink)
        model, buffers = LAYOUT.flatten(TASK.module), LAYOUT.flatten_buffers(TASK.module)
        server = Server(algorithm, LAYOUT, model, buffers, DATA, RANDOMNESS, participants=CLIENTS)
        runtime = ClientRuntime(
            algorithm, TASK, LAYOUT, model, buffers, DATA, RANDOMNESS, MemoryStore(), torch.device("cpu")
        )
        for number in range(rounds + 1):
            start = {name: value.clone() for name, value in server.state_dict().items()}
            round, instructions = begin(server)
            replies = runtime.answer(instructions, gradients=None)
            if number == rounds:
                break
            assert all(round.receive(reply) for reply in replies)
            (exchange,) = round.exchanges()
            round.finish(exchange)
            round.close()
        assert all(len(reply.packets) == 2 for reply in replies), "an update and buffers"
        return cls(server, round, replies, start)

    def books(self) -> dict[str, object]:
        """Everything that a reply can change but for the ledger of refusals, in a form that can be compared."""
        kept: dict[str, object] = {name: value.numpy().tobytes() for name, value in self.server.state_dict().items()}
        for stream in (CoreStream.MODEL, CoreStream.BUFFERS):
            mean = self.round.received.mean(stream)
            kept[f"received/{stream}"] = None if mean is None else mean.numpy().tobytes()
        acknowledged = [self.server.clients.acknowledged(client) for client in range(CLIENTS)]
        kept |= {"unanswered": self.round.unanswered(), "answered": [*self.round.answered], "durable": acknowledged}
        kept["loss"] = repr(self.round.training_loss())
        costs = self.round.costs
        traffic = {key: vars(each).copy() for key, each in costs.streams.items() if key != "up/refused"}
        ignored = ("streams", "refused", "refused_clients")
        return kept | traffic | {name: value for name, value in vars(costs).items() if name not in ignored}


def hostile(replies: list[Reply], generator: np.random.Generator) -> Reply:
    """One reply made from honest ones; most have right checksums, as anybody can compute them."""
    reply = replies[generator.integers(len(replies))]
    packets = [Packet.parse(raw, LAYOUT) for raw in reply.packets]
    place = int(generator.integers(len(packets)))
    victim = packets[place]
    data = bytearray(victim.body.data)
    kind = generator.integers(9)
    if kind == 0:  # damaged on the way
        raws = [bytearray(bytes(raw)) for raw in reply.packets]
        raws[place][generator.integers(len(raws[place]))] ^= int(generator.integers(1, 256))
        return replace(reply, packets=tuple(map(bytes, raws)))
    if kind == 1:  # another client's, or one that does not exist
        return replace(reply, client=int(generator.choice([-5, -1, 0, 1, 2, 3, CLIENTS, 10**9])))
    if kind == 2:  # packets missing, twice, in another order, or none
        chosen = generator.integers(0, 2, int(generator.integers(0, 4)))
        return replace(reply, packets=tuple(reply.packets[number] for number in chosen))
    if kind == 3:  # noise instead of a packet
        return replace(reply, packets=(generator.bytes(int(generator.integers(0, 80))), *reply.packets[1:]))
    if kind == 4 and data:  # bytes of the body changed
        for _ in range(int(generator.integers(1, 4))):
            data[generator.integers(len(data))] = int(generator.choice([0, 1, 127, 128, 255, generator.integers(256)]))
        victim = replace(victim, body=Body(victim.body.codec, bytes(data)))
    elif kind == 5:  # truncated, or longer
        cut = int(generator.integers(len(data) + 1))
        data = data[:cut] if generator.random() < 0.7 else data + generator.bytes(cut)
        victim = replace(victim, body=Body(victim.body.codec, bytes(data)))
    elif kind == 6:  # under another codec
        victim = replace(victim, body=Body(int(generator.integers(256)), bytes(data)))
    elif kind == 7:  # another body altogether
        victim = replace(victim, body=BODIES[generator.integers(len(BODIES))])
    else:  # another label
        field, most = [
            ("stream", 16),
            ("exchange", 16),
            ("sequence", 2**24),
            ("round", 2**24),
            ("flags", 8),
            ("incarnation", 2**16),
        ][generator.integers(6)]
        value = int(generator.choice([0, 1, 2, 3, 4, 7, most - 1, generator.integers(most)])) % most
        if generator.random() < 0.5:
            packets = [replace(packet, **{field: value}) for packet in packets]
            victim = packets[place]
        else:
            victim = replace(victim, **{field: value})
    packets[place] = victim
    return replace(reply, packets=tuple(packet.to_bytes() for packet in packets))


def attack(name: str, number: int, seed: int) -> set[str]:
    """Returns the reasons of refusals."""
    generator, scene, reasons, accepted = draws(seed), Scene.of(name), set(), 0
    before = scene.books()
    for _ in range(number):
        reply = hostile(scene.replies, generator)
        refused = dict(scene.round.costs.refused)
        if scene.round.receive(reply):
            accepted += 1
            scene.begin_again()
            assert scene.books() == before
            continue
        assert scene.books() == before
        now = scene.round.costs.refused
        (reason,) = [each for each in now if now[each] != refused.get(each, 0)]
        reasons.add(reason)
    # After all that, the honest replies are as good as before.
    assert all(scene.round.receive(reply) for reply in scene.replies)
    assert bool(torch.isfinite(scene.server.model).all())
    assert 0 < accepted < number, "some changes only change values"
    return reasons


@pytest.mark.parametrize("name", ALGORITHMS)
def test_hostile_replies_are_refused_without_a_trace(name: str) -> None:
    """receive() never raises; what it refuses leaves the server's state, sums and books of the round as they were."""
    reasons = attack(name, 1500, seed=1)
    assert {"stale", "stream", "checksum", "truncated", "codec", "size"} <= reasons


@pytest.mark.long
@pytest.mark.parametrize("name", ALGORITHMS)
def test_twenty_thousand_hostile_replies_for_each_link(name: str) -> None:
    attack(name, 20_000, seed=2)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_validate_says_why(name: str) -> None:
    """validate() raises PacketError and nothing else, with a reason of one word or two and one line."""
    generator, scene = draws(3), Scene.of(name)
    for _ in range(150):
        try:
            scene.round.validate(hostile(scene.replies, generator))
        except PacketError as error:
            assert error.reason and len(error.reason) < 20 and "\n" not in str(error)


def flagged(reply: Reply, flags: Flag) -> Reply:
    packets = [replace(Packet.parse(raw, LAYOUT), flags=flags) for raw in reply.packets]
    return replace(reply, packets=tuple(packet.to_bytes() for packet in packets))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_claim_of_an_acceleration_is_verified(name: str) -> None:
    """The server has both updates and computes the client's test itself. Other uplinks have no accelerations."""
    scene = Scene.of(name)
    honest = [Packet.parse(reply.packets[0], LAYOUT).flags for reply in scene.replies]
    assert (Flag.ACCELERATED in honest) == (name == "accelerated")
    if name == "accelerated":
        scene.server.algorithm = scene.server.algorithm.replace(threshold=0.1)
    before = scene.books()
    for reply in scene.replies:
        reason = refusal(scene.round, flagged(reply, Flag.ACCELERATED))
        assert reason == ("accelerated" if name == "accelerated" else "flags")
    assert scene.books() == before


@pytest.mark.parametrize("waits", [True, False])
def test_two_finite_vectors_with_an_infinite_sum_are_refused(waits: bool) -> None:
    """The server adds the shift, which it has from the client's earlier replies, to what the client sends."""
    scene = Scene.of("shifted")
    scene.round._waits = waits
    scene.server.clients.links[0] = {"uplink/shift": torch.full((LAYOUT.size,), 2e38)}
    reply = scene.replies[0]
    assert reply.client == 0
    large = encode_dense(torch.full((LAYOUT.size,), 2e38))
    packets = [Packet.parse(raw, LAYOUT) for raw in reply.packets]
    packets = [replace(packet, body=large) if packet.stream == CoreStream.MODEL else packet for packet in packets]
    assert refusal(scene.round, replace(reply, packets=tuple(each.to_bytes() for each in packets))) == "not finite"
