"""Attackers and losses on real data: what they cost in accuracy, with and without defenses."""

from __future__ import annotations

import logging

import pytest

import laconic
from laconic.core.errors import DataError
from laconic.core.randomness import Randomness

pytestmark = pytest.mark.long

ATTACK = {"not_finite": 1, "boosted": 2, "boost": 1000.0}


def mnist(clients: int, partition: str) -> laconic.FederatedData:
    try:
        return laconic.data.load("mnist", clients=clients, partition=partition)
    except DataError as error:
        pytest.skip(str(error))


def test_three_attackers_of_fifty_change_nothing_that_matters(caplog) -> None:
    """One sends NaN and two send 1000 times their update."""
    data = mnist(50, "iid")

    def accuracy(**given) -> float:
        algorithm = laconic.fed_avg(local_lr=0.1)
        found = laconic.simulate(algorithm, "mlp:64", data, rounds=20, eval_every=20, **given).accuracy
        assert found is not None
        return found

    clean = accuracy()
    assert accuracy(faults=ATTACK) < clean - 0.5
    for defense in ({"aggregate": "median"}, {"aggregate": "trimmed_mean:0.1"}, {"clip": 2.0}, {"clip": "median"}):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="laconic"):
            assert accuracy(faults=ATTACK, defense=defense) > clean - 0.01, defense
        attacker = int(Randomness(0).numpy("attackers").choice(50, 3, replace=False)[0])
        assert f"client {attacker} is blocked after 3 refused replies" in caplog.text


@pytest.mark.parametrize("label", ["fed_cams:compressor=sign", "fed_ef_sgd:compressor=top_k:1/16"])
def test_a_third_of_all_replies_lost_costs_no_point(label: str) -> None:
    name, _, compressor = label.partition(":compressor=")
    algorithm = laconic.algorithms.recipes.make(name, compressor=compressor, local_lr=0.1)
    data = mnist(20, "dirichlet:1")
    found = {}
    for drop in (0.0, 0.3):
        result = laconic.simulate(algorithm, "mlp:32", data, rounds=50, eval_every=50, faults={"drop": drop})
        found[drop] = result.accuracy
        heard = sum(record["participants"] for record in result.history)
        assert heard == pytest.approx(20 * 50 * (1 - drop), rel=0.06)
    assert found[0.3] > found[0.0] - 0.01
