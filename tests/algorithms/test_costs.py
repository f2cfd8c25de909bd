"""FedAMD's Table 2 accounting (readings 1.6): vectors and gradients per client and round, on the ledger.

FedAvg 2 vectors and K b' gradients; SCAFFOLD 4 and K b'; an anchor 2 and b; a miner 3 and 2 K b'. The paper leaves the first
pass over all clients out of both columns; the measured bytes have it.
"""

from __future__ import annotations

import pytest

import laconic
from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.exchange import Exchange
from laconic.algorithms.recipes import make
from laconic.compression.packet import HEADER_BYTES
from laconic.federation.ledger import RoundCosts
from laconic.run.simulation import Simulation
from tests.problems import BATCH, CLASSES, FEATURES, SIZES, Setting

D = FEATURES * CLASSES + CLASSES
N = len(SIZES)
K = 4
SETTING = Setting(rounds=6, local_steps=K)
VECTOR = HEADER_BYTES + 8 * D
"""A dense vector in float64, with its header."""


def costs(algorithm: laconic.Algorithm, setting: Setting = SETTING) -> list[RoundCosts]:
    """What each round has cost."""
    simulation = setting.simulation(algorithm)
    try:
        return [simulation.last_round.costs for _ in simulation.rounds()]
    finally:
        simulation.close()


def vectors(round: RoundCosts) -> float:
    """Vectors up and down, as the paper counts them: 32 bits an entry."""
    return (round.paper_bits("up") + round.paper_bits("down")) / (32 * D)


@pytest.mark.parametrize(("name", "per_client"), [("fed_avg", 2), ("scaffold", 4)])
def test_fed_avg_and_scaffold(name: str, per_client: int) -> None:
    for round in costs(make(name)):
        n = round.folded
        assert vectors(round) == per_client * n
        assert round.gradients == n * K * BATCH
        assert round.bytes("up") + round.bytes("down") == per_client * n * VECTOR


def asked(simulation: Simulation, client: int) -> RoundContext:
    """The context on which a client was asked in the last round."""
    server = simulation.server
    return RoundContext(server.layout, server.randomness, server.round - 1, client, 3, N)


def test_anchors_and_miners() -> None:
    simulation = SETTING.simulation(laconic.fed_amd(probability=0.5))
    seen = {"anchor": 0, "miner": 0}
    for _ in simulation.rounds():
        round = simulation.last_round.costs
        streams = round.streams
        miners = streams["up/model"].packets if "up/model" in streams else 0
        # Before round 0 everybody is an anchor, at no cost in the paper.
        first = N if simulation.server.round == 1 else 0
        anchors = streams["up/anchor"].packets - first if "up/anchor" in streams else 0
        assert anchors + miners == 3 == round.folded
        assert vectors(round) == 2 * anchors + 3 * miners
        measured = round.bytes("up") + round.bytes("down")
        assert measured == (2 * first + 2 * anchors + 3 * miners) * VECTOR
        chosen = SETTING.oracle().participants[simulation.server.round - 1]
        roles = {client: simulation.algorithm.method.assign(Exchange(), asked(simulation, client)) for client in chosen}
        sizes = [SIZES[client] for client, role in roles.items() if role == "anchor"]
        assert len(sizes) == anchors
        assert round.gradients == sum(sizes) + miners * 2 * K * BATCH
        seen["anchor"] += anchors
        seen["miner"] += miners
    simulation.close()
    assert min(seen.values()) > 0


def test_the_gradients_of_anchors_and_miners() -> None:
    algorithm = laconic.fed_amd(local_steps=10, batch_size=64)
    assert (algorithm.phases["anchor"].gradients(600), algorithm.phases["miner"].gradients(600)) == (600, 1280)
    assert algorithm.replace(anchor_batch=256).phases["anchor"].gradients(600) == 256


def test_the_first_pass_is_in_the_samples_and_not_in_the_gradients() -> None:
    first, *_ = costs(laconic.fed_amd(probability=1.0))
    # Everybody once, and then the three participants as anchors.
    assert first.samples == sum(SIZES) + first.gradients
    assert 0 < first.gradients < sum(SIZES)


def test_gradient_tracking_sends_the_mean_back() -> None:
    for round in costs(laconic.fed_gate()):
        streams = round.streams
        assert streams["down/mean"].packets == streams["down/model"].packets == streams["up/model"].packets == 3
        assert streams["down/mean"].bytes == 3 * VECTOR
        # The word that it has come is a header and nothing else.
        assert streams["up/confirm"].bytes == 3 * HEADER_BYTES
        assert vectors(round) == 3 * 3
        assert round.gradients == 3 * K * BATCH


def test_two_exchanges_in_one_round() -> None:
    for round in costs(laconic.bvr_l_sgd()):
        assert {name: traffic.packets for name, traffic in round.streams.items()} == {
            "down/model": 3,
            "up/gradient": 3,
            "down/gradient": 3,
            "up/model": 3,
        }
    renewed = [round.streams["up/gradient"].packets for round in costs(laconic.fed_page(probability=0.5))]
    assert renewed[0] == N and set(renewed) == {3, N}


def test_the_gradients_of_bvr_l_sgd_and_fed_page() -> None:
    """b and 2 K b' for a client of the one; of the other b from everybody or 2 b from participants, and their 2 K b'."""
    chosen = SETTING.oracle().participants
    recursion = 3 * 2 * K * BATCH
    for t, round in enumerate(costs(laconic.bvr_l_sgd())):
        assert round.gradients == sum(SIZES[client] for client in chosen[t]) + recursion
    kinds = set()
    for t, round in enumerate(costs(laconic.fed_page(probability=0.5))):
        kind = "renewal" if round.streams["up/gradient"].packets == N else "change"
        large = sum(SIZES) if kind == "renewal" else 2 * sum(SIZES[client] for client in chosen[t])
        assert round.gradients == large + recursion
        kinds.add(kind)
    assert len(kinds) == 2
    for t, round in enumerate(costs(laconic.fed_page(probability=0.0, anchor_batch=6))):
        sizes = SIZES if t == 0 else [SIZES[client] for client in chosen[t]]
        assert round.gradients == (1 if t == 0 else 2) * sum(min(6, size) for size in sizes) + recursion


@pytest.mark.parametrize("name", ["fed_page", "marina"])
def test_clients_are_counted_once_a_round(name: str) -> None:
    """All of them where all renew the gradient, and the participants otherwise."""
    for round in costs(make(name, probability=0.5)):
        heard = round.streams["up/gradient"].packets
        assert round.folded == heard in (3, N)
        assert round.updates == (3 if name == "fed_page" else 0)
    assert [round.folded for round in costs(laconic.fed_gate())] == [3] * SETTING.rounds
    assert [round.folded for round in costs(laconic.scaffold(warm_start=True))] == [3] * SETTING.rounds


def test_the_skip_rate_is_a_share_of_the_updates() -> None:
    lazy = laconic.Lazy(threshold=1e9)
    simulation = SETTING.simulation(laconic.fed_page(probability=1.0, uplink=lazy))
    records = [record | simulation._rates(simulation.last_round.costs) for record in simulation.rounds()]
    simulation.close()
    # Whoever has sent an update before skips this one, though all renew their gradient in every round.
    sent: set[int] = set()
    for record, chosen in zip(records, SETTING.oracle().participants, strict=True):
        assert record["participants"] == N
        assert record["skip_rate"] == pytest.approx(len(sent & set(chosen)) / 3)
        sent |= set(chosen)
