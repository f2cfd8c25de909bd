"""Each recipe of the foundation against its oracle, and the identities of algorithms.md that apply. All run by name."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import laconic
from laconic.algorithms.recipes import RECIPES
from tests.oracles import optimizers
from tests.oracles.local_sgd import local_sgd
from tests.oracles.methods import minibatch_sgd
from tests.problems import Setting

ORACLES: dict[str, Callable[[], optimizers.Optimizer]] = {
    "fed_avg": optimizers.SGD,
    "fed_sgd": optimizers.SGD,
    "fed_adagrad": optimizers.Adagrad,
    "fed_adam": optimizers.Adam,
    "fed_yogi": optimizers.Yogi,
    "fed_amsgrad": optimizers.AMSGrad,
    "fed_ams": optimizers.AMS,
}
SETTINGS = {
    "steps": Setting(),
    "epochs": Setting(local_steps=None, local_epochs=2),
    "weighted": Setting(weighting="size"),
    "loop": Setting(strategy="loop"),
}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_runs_by_its_name_alone(name: str) -> None:
    data = laconic.data.load("digits", clients=10)
    history = laconic.simulate(name, "logistic", data, rounds=2, participants=5, eval_every=1).history
    assert [record["round"] for record in history] == [1, 2]
    # Rounds with an anchor ask all clients; the first one has one.
    all_asked = [record["participants"] == 10 for record in history]
    assert all_asked[0] if name in ("fed_page", "marina") else not any(all_asked)
    assert all(record["participants"] in (5, 10) for record in history)
    assert all(min(record["bytes_up"], record["bytes_down"]) > 0 for record in history)
    first, second = (record["loss"] for record in history)
    assert math.isfinite(second) and first != second, "the model has changed"


def difference(setting: Setting, algorithm: laconic.Algorithm, oracle: optimizers.Optimizer) -> float:
    expected = local_sgd(setting.oracle(), oracle).models
    return max(np.abs(ours - theirs).max() for ours, theirs in zip(setting.models(algorithm), expected, strict=True))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", ORACLES)
def test_recipe_equals_its_oracle_for_20_rounds(name: str, setting: Setting) -> None:
    # With default rates and eps = 1e-3 the steps are far from degenerate, so 1e-9 leaves only rounding.
    assert difference(setting, RECIPES[name](), ORACLES[name]()) < 1e-9


@pytest.mark.parametrize(
    ("algorithm", "oracle"),
    [
        (laconic.fed_avg(momentum=0.8, server_lr=0.5), optimizers.SGD(0.5, momentum=0.8)),
        (laconic.fed_adam(beta1=0.5, beta2=0.9, epsilon=0.1, server_lr=0.2), optimizers.Adam(0.2, 0.5, 0.9, 0.1)),
        (laconic.fed_ams(epsilon=1e-2), optimizers.AMS(eps=1e-2)),
        (laconic.fed_amsgrad(epsilon_inside=True, epsilon=1e-4), optimizers.FedEFAMSGrad(b2=0.99, eps=1e-4)),
        (laconic.fed_adam(bias_correction=True), optimizers.Adam(bias_correction=True)),
        (laconic.fed_yogi(bias_correction=True), optimizers.Yogi(bias_correction=True)),
        (laconic.fed_amsgrad(bias_correction=True), optimizers.AMSGrad(bias_correction=True)),
        (laconic.fed_ams(bias_correction=True), optimizers.AMS(bias_correction=True)),
    ],
    ids=["momentum", "adam", "ams-eps", "eps-inside", "adam-bias", "yogi-bias", "amsgrad-bias", "ams-bias"],
)
def test_every_parameter_of_the_optimizers_means_what_the_oracle_means(
    algorithm: laconic.Algorithm, oracle: optimizers.Optimizer
) -> None:
    assert difference(Setting(), algorithm, oracle) < 1e-8


def test_fed_avg_and_fed_sgd_are_one_algorithm_bit_for_bit() -> None:
    ours, theirs = (Setting().models(recipe()) for recipe in (laconic.fed_avg, laconic.fed_sgd))
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_with_all_clients_one_step_and_rate_one_fed_avg_is_minibatch_sgd() -> None:
    setting = Setting(participants=8, local_steps=1)
    expected = minibatch_sgd(setting.oracle(), rate=0.05).models
    for ours, theirs in zip(setting.models(laconic.fed_avg()), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_recipes_differ_from_each_other() -> None:
    # Guards the comparisons above: an optimizer that was wired to another's recipe would show up here.
    finals = {name: Setting().models(RECIPES[name]())[-1] for name in ORACLES if name != "fed_sgd"}
    names = list(finals)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert np.abs(finals[one] - finals[other]).max() > 1e-4, (one, other)
