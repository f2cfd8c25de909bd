"""The later methods against their oracles, and the identities between them and the methods that they extend."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import laconic
from laconic.algorithms.methods.batches import positions
from laconic.algorithms.recipes import make
from laconic.core.randomness import Randomness
from tests.algorithms import test_link_recipes
from tests.algorithms.test_link_recipes import FIXED
from tests.algorithms.test_method_recipes import FULL, apart, large, quantize
from tests.oracles import compressors, contenders, methods, rounds
from tests.oracles.optimizers import AMS, Adam
from tests.oracles.problem import History, Problem
from tests.problems import BATCH, CLASSES, FEATURES, SIZES, Setting

SETTING = Setting(rounds=10)
EVERYBODY = Setting(rounds=10, participants=len(SIZES))
N = len(SIZES)
TOP = "top_k:0.25@model"
SIGN = "sign@layer"
TINY = 1e-12
"""How far the package may be from an oracle: both compute in float64, in different orders."""


def difference(algorithm: laconic.Algorithm, history: History, setting: Setting = SETTING) -> float:
    return test_link_recipes.difference(algorithm, history, setting)


def models(name: str, **parameters: object) -> list[np.ndarray]:
    return SETTING.models(make(name, **parameters))


def two_way(spelling: str) -> dict[str, object]:
    return {"compressor": spelling, "downlink": {"compressor": spelling}}


# Oracles


@pytest.mark.parametrize("setting", [SETTING, EVERYBODY], ids=["some", "all"])
def test_stc(setting: Setting) -> None:
    ternary = compressors.fixed(partial(compressors.heavy_sign, ratio=0.3))
    oracle = contenders.stc(setting.oracle(), ternary, ternary)
    assert difference(laconic.stc(**two_way("heavy_sign:0.3")), oracle, setting) < TINY
    assert np.abs(oracle.server_memory[-1]).max() > 1e-3, "something stays behind on the server"


def test_qsparse_local_sgd() -> None:
    def draws(round: int, client: int) -> np.ndarray:
        return Randomness(SETTING.seed).numpy("uplink", round, client).random(FEATURES * CLASSES + CLASSES)

    quantized = compressors.drawn(lambda x, drawn: compressors.top_k_qsgd(x, 1 / 64, 4, drawn), draws)
    assert difference(laconic.qsparse_local_sgd(), rounds.qsparse_local_sgd(SETTING.oracle(), quantized)) < TINY


def test_fed_cams_two_way() -> None:
    # Its parts have oracles of their own; the second moment's root amplifies rounding.
    oracle = rounds.train(SETTING.oracle(), rounds.ErrorFeedback(FIXED[TOP]), AMS(), rounds.Broadcast(FIXED[TOP]))
    assert difference(laconic.fed_cams_two_way(**two_way(TOP)), oracle) < 1e-10


@pytest.mark.parametrize("spelling", [TOP, SIGN])
@pytest.mark.parametrize("name", ["ef21_p", "ef21_bc"])
def test_ef21_both_ways(name: str, spelling: str) -> None:
    compress = FIXED[spelling]
    oracle = getattr(contenders, name)(SETTING.oracle(), compress, compress, FULL, 0.05)
    assert difference(make(name, **two_way(spelling)), oracle) < TINY
    other = "ef21_bc" if name == "ef21_p" else "ef21_p"
    assert difference(make(other, **two_way(spelling)), oracle) > 1e-4


def test_ef21_sgdm() -> None:
    oracle = contenders.ef21_sgdm(SETTING.oracle(), FIXED[TOP], large(6), 0.05, 0.3)
    assert difference(laconic.ef21_sgdm(compressor=TOP, batch_size=6, momentum_rate=0.3), oracle) < TINY


def test_scallion() -> None:
    oracle = contenders.controlled_averaging(SETTING.oracle(), quantize("CONTROL"), alpha=0.3, server_rate=0.8)
    algorithm = laconic.scallion(compressor="uniform:4@layer", alpha=0.3, server_lr=0.8)
    assert difference(algorithm, oracle) < TINY


def test_scafcom() -> None:
    oracle = contenders.controlled_averaging(SETTING.oracle(), FIXED[TOP], beta=0.3, server_rate=0.8)
    assert difference(laconic.scafcom(compressor=TOP, momentum_rate=0.3, server_lr=0.8), oracle) < TINY


def drawn_steps(setting: Setting) -> Problem:
    """The problem with a number of steps in each round that was drawn as the package draws it."""
    problem, randomness = setting.oracle(), Randomness(setting.seed)
    assert setting.local_steps is not None
    batches = []
    for t in range(setting.rounds):
        steps = int(randomness.numpy("local steps", t).geometric(1 / setting.local_steps))
        plans = {
            i: positions(SIZES[i], BATCH, steps, None, "shuffled", randomness.numpy("batches", t, i)) for i in range(N)
        }
        batches.append({i: list(plan) for i, plan in plans.items()})
    return replace(problem, batches=batches)


@pytest.mark.parametrize("setting", [SETTING, EVERYBODY], ids=["some", "all"])
def test_scaffnew(setting: Setting) -> None:
    problem = drawn_steps(setting)
    assert len({len(each[0]) for each in problem.batches}) > 4, "the number of steps must differ between rounds"
    assert difference(laconic.scaffnew(), contenders.scaffnew(problem, 1 / 4), setting) < TINY


@pytest.mark.parametrize("setting", [SETTING, EVERYBODY], ids=["some", "all"])
def test_compressed_scaffnew(setting: Setting) -> None:
    oracle = contenders.scaffnew(drawn_steps(setting), 1 / 4, quantize())
    algorithm = laconic.scaffnew(compressor="uniform:4@layer", memory=False)
    assert difference(algorithm, oracle, setting) < TINY
    assert difference(algorithm.replace(tracker_rate=0.5), oracle, setting) > 1e-4
    for trackers in oracle.trackers:
        assert np.abs(sum(trackers.values())).max() < TINY


@pytest.mark.parametrize(
    "setting", [SETTING, Setting(rounds=10, local_steps=None, local_epochs=2)], ids=["steps", "epochs"]
)
def test_fed_dyn(setting: Setting) -> None:
    assert difference(laconic.fed_dyn(alpha=0.3), contenders.fed_dyn(setting.oracle(), 0.3), setting) < TINY


def test_diloco() -> None:
    assert difference(laconic.diloco(local_lr=0.01), contenders.diloco(SETTING.oracle(), 0.01)) < TINY
    assert difference(laconic.diloco(local_lr=0.01, nesterov=False), contenders.diloco(SETTING.oracle(), 0.01)) > 1e-3


def test_sparse_loco() -> None:
    def two_bits(x: np.ndarray) -> np.ndarray:
        kept = compressors.kept_positions(x, 0.3)
        return compressors.at_positions(x, np.array(kept), compressors.uniform(x[kept], 2, None))

    oracle = contenders.sparse_loco(SETTING.oracle(), compressors.fixed(two_bits), 0.01, 0.9)
    algorithm = laconic.sparse_loco(compressor="top_k:0.3+uniform:2,rounding=nearest", local_lr=0.01, memory_decay=0.9)
    assert difference(algorithm, oracle) < TINY
    assert difference(algorithm.replace(memory_decay=1.0), oracle) > 1e-4


def test_flasc() -> None:
    oracle = contenders.flasc(SETTING.oracle(), FIXED[TOP], FIXED[SIGN], Adam())
    assert difference(laconic.flasc(compressor=TOP, downlink={"compressor": SIGN}), oracle) < 1e-10


# Identities


@pytest.mark.parametrize(
    "recipe", [laconic.scallion(alpha=1.0), laconic.scafcom(momentum_rate=1.0)], ids=lambda a: a.name
)
@pytest.mark.parametrize("given", [{}, {"warm_start": True}, {"local_schedule": "cosine:6"}], ids=str)
def test_without_compression_they_are_scaffold(recipe: laconic.Algorithm, given: dict[str, object]) -> None:
    ours = SETTING.models(recipe.replace(compressor="dense", server_lr=0.7, **given))
    assert apart(ours, models("scaffold", server_lr=0.7, **given)) < TINY


def test_the_control_variates_of_scallion_and_scafcom_are_the_oracles() -> None:
    for algorithm in (laconic.scallion(compressor="qsgd:4@layer"), laconic.scafcom(compressor=TOP)):
        simulation = SETTING.simulation(algorithm)
        for _ in simulation.rounds():
            own = {client: state["method/control"] for client, state in simulation.store.states()}
            assert float((simulation.server.method_state["control"] - sum(own.values()) / N).abs().max()) < TINY
        simulation.close()
        assert max(float(value.abs().max()) for value in own.values()) > 1e-2


def test_they_send_one_vector_up() -> None:
    simulation = SETTING.simulation(laconic.scafcom(compressor="dense"))
    for _ in simulation.rounds():
        assert {name for name in simulation.last_round.costs.streams if name.startswith("up/")} == {"up/control"}
    simulation.close()


def test_scaffnew_with_a_fixed_number_of_steps_is_fed_gate() -> None:
    for setting in (SETTING, EVERYBODY):
        oracle = contenders.scaffnew(setting.oracle(), 1 / 4)
        assert apart(oracle.models, methods.gradient_tracking(setting.oracle()).models) < TINY
        assert difference(laconic.fed_gate(), oracle, setting) < TINY
    # A geometric number with mean 1 is 1.
    one = Setting(rounds=10, local_steps=1)
    assert apart(one.models(laconic.scaffnew()), one.models(laconic.fed_gate())) == 0
    assert apart(models("scaffnew"), models("fed_gate")) > 1e-3


def test_the_control_variates_of_scaffnew_sum_to_zero() -> None:
    for trackers in contenders.scaffnew(drawn_steps(SETTING), 1 / 4).trackers:
        assert np.abs(sum(trackers.values())).max() < TINY


def test_the_server_of_fed_dyn_has_the_mean_of_the_clients() -> None:
    oracle = contenders.fed_dyn(SETTING.oracle(), 0.3)
    for h, g in zip(oracle.server_state, oracle.client_states, strict=True):
        assert np.abs(h - sum(g.values()) / N).max() < TINY


def test_ef21_sgdm_that_forgets_at_once_is_ef21() -> None:
    given = {"batch_size": "full", "compressor": TOP}
    assert apart(models("ef21_sgdm", momentum_rate=1.0, **given), models("ef21", **given)) == 0


def test_ef21_both_ways_with_a_dense_downlink_is_ef21() -> None:
    for name in ("ef21_p", "ef21_bc"):
        assert apart(models(name, downlink={"compressor": "dense"}), models("ef21")) < TINY


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (laconic.stc(), laconic.fed_ef_sgd(compressor="heavy_sign:1/64@model", downlink="broadcast")),
        (laconic.qsparse_local_sgd(), laconic.fed_ef_sgd(compressor="top_k:1/64+qsgd:4@model")),
        (laconic.fed_cams_two_way(), laconic.fed_cams(downlink="broadcast")),
        (laconic.flasc(compressor="dense", downlink={"compressor": "dense"}), laconic.fed_adam()),
        (laconic.sparse_loco(compressor="dense"), laconic.diloco(momentum=0.0, server_lr=1.0)),
        (laconic.fed_avg(momentum=0.0, nesterov=True), laconic.fed_avg()),
    ],
    ids=["stc", "qsparse", "two-way cams", "flasc", "loco", "nesterov"],
)
def test_what_else_they_are_bit_for_bit(one: laconic.Algorithm, other: laconic.Algorithm) -> None:
    assert apart(SETTING.models(one), SETTING.models(other)) == 0


def test_what_they_cannot_do_is_refused_in_one_line() -> None:
    with pytest.raises(laconic.ConfigError, match="scallion needs an unbiased compressor"):
        SETTING.simulation(laconic.scallion(compressor="sign"))
    with pytest.raises(laconic.ConfigError, match="the server of scafcom must know the number of steps"):
        laconic.scafcom(local_epochs=1).method.check(np.array([8, 8]), "uniform")
    with pytest.raises(laconic.ConfigError, match="method 'scafcom' cannot use uplink 'compressed' with memory"):
        SETTING.simulation(laconic.scafcom(memory=True))
    with pytest.raises(laconic.ConfigError, match="same weight"):
        Setting(weighting="size").simulation(laconic.fed_dyn())


def test_sparse_loco_compresses_in_chunks() -> None:
    assert laconic.sparse_loco().uplink.parameters()["granularity"] == "chunk:4096"
