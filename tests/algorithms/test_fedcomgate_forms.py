"""FedCOMGATE's appendix B.2, weight decay, and VR-DIANA, against their oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import laconic
from laconic.core.errors import ConfigError
from laconic.core.randomness import Randomness
from tests.algorithms.test_costs import HEADER_BYTES, costs
from tests.algorithms.test_link_recipes import FIXED, LAYERS, difference
from tests.algorithms.test_method_recipes import FULL, SETTING, SPELLING, D, N, anchors, coins, large, quantize
from tests.oracles import compressors, methods, published, rounds
from tests.oracles.problem import Indices, Problem, Vector
from tests.problems import SIZES, Setting, gradient


def quantized_mean(round: int, mean: Vector) -> Vector:
    def draws(round: int, client: int) -> np.ndarray:
        return Randomness(SETTING.seed).numpy("downlink/MEAN", round).random(D)

    return compressors.drawn(lambda x, drawn: compressors.uniform(x, 4, drawn), draws, LAYERS)(round, -1, mean)


@pytest.mark.parametrize("setting", [SETTING, Setting(participants=N)], ids=["some", "all"])
def test_a_quantized_mean_equals_its_oracle(setting: Setting) -> None:
    oracle = published.fed_comgate_with_quantized_mean(setting.oracle(), quantize(), quantized_mean, 0.8)
    algorithm = laconic.fed_comgate(compressor="uniform:4@layer", mean_compressor="uniform:4@layer", server_lr=0.8)
    assert difference(algorithm, oracle, setting) < 1e-9
    assert difference(algorithm.replace(mean_compressor=None), oracle, setting) > 1e-4
    # Option I: clients repeat the server's step, which therefore must be that of the decoded mean.
    assert difference(algorithm.replace(downlink="repeated"), oracle, setting) < 1e-9


def test_a_quantized_mean_saves_the_downlink() -> None:
    algorithm = laconic.fed_comgate(
        compressor="uniform:4@layer", mean_compressor="uniform:4@layer", downlink="repeated"
    )
    setting = replace(SETTING, participants=N, rounds=4)
    plain = costs(algorithm.replace(mean_compressor=None), setting)
    for quantized, exact in zip(costs(algorithm, setting), plain, strict=True):
        assert quantized.streams["down/mean"].paper_bits == N * (4 * D + 2 * 64)
        assert exact.streams["down/mean"].paper_bits == N * 32 * D
        down = quantized.streams["down/mean"]
        assert down.bytes - down.packets * HEADER_BYTES < 0.4 * (exact.streams["down/mean"].bytes - N * HEADER_BYTES)


def test_a_quantized_mean_needs_an_unbiased_compressor_and_no_memory() -> None:
    for changes in (
        {"mean_compressor": "top_k:0.1"},
        {"mean_compressor": "uniform:8@layer", "compressor": "top_k:0.1", "memory": True},
    ):
        with pytest.raises(ConfigError, match=r"method\.mean_compressor"):
            SETTING.simulation(laconic.fed_comgate(**changes))


def test_the_printed_memory_equals_its_oracle() -> None:
    """In a few rounds: the memory is not one that converges."""
    setting = replace(SETTING, rounds=8)
    oracle = published.fed_comgate_with_printed_memory(setting.oracle(), FIXED[SPELLING], 5 / 21)
    uplink = laconic.Compressed(SPELLING, memory=True)
    algorithm = laconic.fed_gate(uplink=uplink, method={"memory": "printed"})
    assert difference(algorithm, oracle, setting) < 1e-8
    assert difference(algorithm.replace(method={"memory": "global"}), oracle, setting) > 1e-4


@pytest.mark.parametrize(
    ("spelling", "rate"), [("top_k:0.25@model", 5 / 21), ("top_k:0.1@layer", 2 / 21), ("sign@model", 0.1)]
)
def test_the_default_tracker_rate_is_k_over_d(spelling: str, rate: float) -> None:
    """top_k keeps floor(r d) of each group, and at least one: 5 of 21; 1 of 18 and 1 of 3. Others have 0.1."""
    oracle = methods.gradient_tracking(SETTING.oracle(), compressors_of(spelling), "standard", tracker_rate=rate)
    assert difference(laconic.fed_gate(uplink=laconic.Compressed(spelling, memory=True)), oracle) < 1e-8


def compressors_of(spelling: str) -> compressors.Compress:
    if spelling in FIXED:
        return FIXED[spelling]
    return compressors.fixed(lambda x: compressors.top_k(x, 0.1), LAYERS)


PHI = 0.3


def decayed() -> Problem:
    """The problem of f + phi / 2 ||w||^2 [FedCOMGATE's paper, Theorems D.9 and E.9]."""

    def regularized(client: int, w: Vector, indices: Indices) -> Vector:
        return gradient(client, w, indices) + PHI * w

    return replace(SETTING.oracle(), gradient=regularized)


@pytest.mark.parametrize("strategy", ["auto", "loop"])
def test_weight_decay_equals_its_oracle(strategy: str) -> None:
    setting = replace(SETTING, strategy=strategy)
    pairs = [
        (laconic.fed_com(compressor="uniform:4@layer"), rounds.fed_com(decayed(), quantize())),
        (laconic.fed_comgate(compressor="uniform:4@layer"), methods.gradient_tracking(decayed(), quantize())),
        (laconic.scaffold(), methods.control_variates(decayed())),
        (
            laconic.fed_amd(local_lr=0.05, probability=0.4),
            methods.anchor_sampling(decayed(), anchors(0.4), FULL, large()),
        ),
    ]
    for algorithm, oracle in pairs:
        assert difference(algorithm.replace(weight_decay=PHI), oracle, setting) < 1e-8, algorithm.name
        assert difference(algorithm, oracle, setting) > 1e-3, algorithm.name


@pytest.mark.parametrize("batch", [4, 6])
def test_vr_diana_equals_its_oracle(batch: int) -> None:
    omega = max(size / 15**2 for size in (18, 3))
    oracle = published.vr_diana(
        SETTING.oracle(), quantize("GRADIENT"), large(batch), FULL, coins(0.3), 0.1, 1 / (1 + omega)
    )
    parameters = {"compressor": "uniform:4@layer", "batch_size": batch, "probability": 0.3, "server_lr": 0.1}
    assert difference(laconic.vr_diana(**parameters), oracle) < 1e-9
    assert difference(laconic.diana(compressor="uniform:4@layer", batch_size=batch, server_lr=0.1), oracle) > 1e-4


def test_vr_diana_with_full_batches_is_diana() -> None:
    """grad(w) - grad(w_i) + mu_i = grad(w)."""
    one = SETTING.models(laconic.vr_diana(batch_size="full", compressor="uniform:4@layer"))
    other = SETTING.models(laconic.diana(compressor="uniform:4@layer"))
    assert max(np.abs(ours - theirs).max() for ours, theirs in zip(one, other, strict=True)) < 1e-9


def test_the_costs_of_vr_diana() -> None:
    setting = replace(SETTING, rounds=6)
    participants, renewed = SETTING.oracle().participants, coins(0.3)
    for t, round in enumerate(costs(laconic.vr_diana(batch_size=4, probability=0.3), setting)):
        sizes = sum(SIZES[client] for client in participants[t])
        assert round.gradients == 2 * 4 * len(participants[t]) + (sizes if renewed[t] else 0)


@pytest.mark.parametrize("name", ["ef21", "ef21_sgdm", "diana", "vr_diana", "marina"])
@pytest.mark.parametrize(
    "uplink",
    [
        laconic.Compressed("uniform:8", memory=True),
        laconic.Lazy("uniform:8"),
        laconic.Accelerated("uniform:8"),
        laconic.LAG("uniform:8"),
        laconic.Shifted("uniform:8"),
    ],
    ids=lambda uplink: uplink.name,
)
def test_links_that_gradient_methods_cannot_use_are_refused(name: str, uplink: laconic.Uplink) -> None:
    with pytest.raises(ConfigError, match="sends no update through the uplink"):
        getattr(laconic, name)(uplink=uplink).resolve()
