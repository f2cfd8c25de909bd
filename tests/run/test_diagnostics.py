"""The measured constants of the papers' assumptions, by value: on cases made by hand, and in a run against an oracle."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

import laconic
from laconic.algorithms.context import RoundContext
from laconic.algorithms.recipes import make
from laconic.compression import GroupedCompressor
from laconic.core.randomness import Randomness
from laconic.federation.messages import Probe
from laconic.run.diagnostics import Diagnostics
from laconic.run.full_gradient import cosines
from laconic.run.simulation import Simulation
from tests.compression.test_compressors import layout_of
from tests.oracles import rounds
from tests.problems import BATCH, SIZES, Setting, data, gradient, module


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_clients_by_hand() -> None:
    """top_k that keeps one of two entries.

    Client 1: u = (3, 1), m = 0, so x = (3, 1), y = (3, 0). Client 2: u = (-1, 0), m = (0, 4), so x = (-1, 4), y = (0, 4);
    its last update was r = (0, 1), and y was called similar. mean x = (1, 2.5), C of it (0, 2.5), mean y = (1.5, 2),
    mean u = (1, 0.5).
    """
    probes = [
        Probe(vector(3, 1), vector(3, 1), vector(3, 0), memory=vector(0, 1)),
        Probe(vector(-1, 0), vector(-1, 4), vector(0, 4), memory=vector(-1, 0), change=vector(0, 3)),
    ]
    context = RoundContext(layout_of(2), Randomness(1), 0)
    measured = Diagnostics(GroupedCompressor.parse("top_k:0.5")).measure(probes, context)
    assert measured == pytest.approx(
        {
            "q_c": 1 / sqrt(7.25),
            "q_a": sqrt(0.5 / 7.25),
            "gamma": sqrt(2.5 / 1.25),
            "lambda": 3 / sqrt(1.25),
            "memory_norm": 1.0,
        }
    )


def test_equal_clients_are_one_client() -> None:
    """With equal x, C(mean x) = mean y: q_A = q_C, and gamma is 0. Without a compressor there are no constants."""
    probe = Probe(vector(3, 4), vector(3, 4), vector(0, 4), memory=vector(3, 0))
    context = RoundContext(layout_of(2), Randomness(1), 0)
    measured = Diagnostics(GroupedCompressor.parse("top_k:0.5")).measure([probe] * 3, context)
    assert measured == pytest.approx({"q_c": 0.6, "q_a": 0.6, "gamma": 0.0, "memory_norm": 3.0})
    assert Diagnostics(None).measure([Probe(vector(1, 0), vector(1, 0), vector(1, 0), None)], context) == {}


def test_cosines_by_hand() -> None:
    found = cosines(vector(3, 4, 4, 3, -3, -4, 0, 0).reshape(4, 2))
    expected = [[1, 0.96, -1, 0], [0.96, 1, -0.96, 0], [-1, -0.96, 1, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-15)


@pytest.mark.parametrize("name", ["fed_nlaa", "fed_aa"])
def test_a_run_measures_lambda_and_the_cosines(name: str) -> None:
    """lambda = ||mean of y_i - r_i over the similar|| / ||mean of u_i|| [FedBNLACA's paper, (C.15)]; here y_i = u_i."""
    setting, threshold = Setting(rounds=6, participants=len(SIZES)), 0.7
    oracle = getattr(rounds, name)(setting.oracle(), threshold)
    settings = laconic.Settings(
        rounds=setting.rounds,
        participants=setting.participants,
        seed=setting.seed,
        diagnostics=True,
        full_gradient=True,
        eval_every=setting.rounds,
        numerics={"dtype": "float64"},
    )
    algorithm = make(name, threshold=threshold, batch_size=BATCH, local_steps=4)
    simulation = Simulation(algorithm, laconic.classification(module()), data(), settings)
    try:
        records = list(simulation.rounds())
        similarity = simulation.figures()["gradient_similarity"]
        model = simulation.server.model.numpy()
    finally:
        simulation.close()
    measured = 0
    for t, record in enumerate(records):
        similar = oracle.skips[t]
        if not similar:
            assert "lambda" not in record
            continue
        measured += 1
        # The reference of round t - 1 is the last update sent before round t.
        changes = [oracle.updates[t][client] - oracle.references[t - 1][client] for client in similar]
        mean = np.mean(list(oracle.updates[t].values()), axis=0)
        expected = np.linalg.norm(np.mean(changes, axis=0)) / np.linalg.norm(mean)
        assert record["lambda"] == pytest.approx(expected, rel=1e-8)
    assert measured >= 3
    gradients = np.stack([gradient(client, model, np.arange(size)) for client, size in enumerate(SIZES)])
    for i, one in enumerate(gradients):
        for j, other in enumerate(gradients):
            cosine = (one @ other) / (np.linalg.norm(one) * np.linalg.norm(other))
            assert similarity[i, j] == pytest.approx(cosine, abs=1e-9)
