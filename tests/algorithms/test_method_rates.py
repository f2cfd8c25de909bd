"""Schedules of the local and the server's rate, and gradients cut to a length, in methods that do more than local SGD."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np
import pytest
import torch

import laconic
from laconic.algorithms.recipes import make
from tests.algorithms.test_link_recipes import difference
from tests.algorithms.test_method_recipes import FIXED, FULL, SPELLING, anchors, coins, large, quantize
from tests.oracles import compressors, methods, optimizers, rounds
from tests.oracles.problem import History, Problem, Vector
from tests.problems import SIZES, Setting

SETTING = Setting()
T = SETTING.rounds
LONGEST = 0.3
"""Shorter than most gradients of the problem, longer than some."""
SCHEDULES: dict[str, Callable[[int], float]] = {
    "cosine:25": lambda t: 0.5 * (1 + math.cos(math.pi * t / 25)),
    "inverse_sqrt": lambda t: 1 / math.sqrt(t + 1),
    "inverse_sqrt:3": lambda t: 1 / math.sqrt(1 + t / 3),
    "step:4:0.5": lambda t: 0.5 ** (t // 4),
}
SEQUENTIAL = [set(range(len(SIZES))) if t % 2 == 0 else set() for t in range(T)]
ROUNDS: dict[str, Callable[[], Iterator[int]]] = {
    "scaffold": count,
    "fed_gate": count,
    # The model moves where there are miners.
    "fed_amd": lambda: count(1, 2),
}


class Scheduled(optimizers.SGD):
    """w += b factor(t) y, told in which rounds it steps."""

    def __init__(self, factor: Callable[[int], float], rounds: Iterator[int]) -> None:
        super().__init__()
        self.factor, self.rounds = factor, rounds

    def step(self, w: Vector, y: Vector) -> Vector:
        return w + self.factor(next(self.rounds)) * y


def expected(name: str, problem: Problem, optimizer: optimizers.Optimizer | None = None) -> History:
    if name == "scaffold":
        return methods.control_variates(problem, optimizer=optimizer)
    if name == "fed_gate":
        return methods.gradient_tracking(problem, optimizer=optimizer)
    return methods.anchor_sampling(problem, SEQUENTIAL, FULL, large(), optimizer=optimizer)


def ours(name: str, **parameters: object) -> laconic.Algorithm:
    return make(name, **({"period": 2, "local_lr": 0.05} if name == "fed_amd" else {}), **parameters)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ROUNDS)
def test_the_local_rate_follows_its_schedule(name: str, schedule: str) -> None:
    problem = SETTING.oracle(rate_factors=[SCHEDULES[schedule](t) for t in range(T)])
    assert difference(ours(name, local_schedule=schedule), expected(name, problem)) < 1e-9
    assert difference(ours(name), expected(name, problem)) > 1e-3


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ROUNDS)
def test_the_rate_of_the_server_follows_its_schedule(name: str, schedule: str) -> None:
    oracle = expected(name, SETTING.oracle(), Scheduled(SCHEDULES[schedule], ROUNDS[name]()))
    assert difference(ours(name, server_schedule=schedule), oracle) < 1e-9
    assert difference(ours(name), oracle) > 1e-3


@pytest.mark.parametrize("name", ["local_sgd", "scaffold", "fed_gate"])
def test_a_noisy_step_is_shortened(name: str) -> None:
    factors = [SCHEDULES["inverse_sqrt:3"](t) for t in range(T)]
    problem = SETTING.oracle(rate_factors=factors)
    limited = optimizers.LimitedSGD(1.5, 0.02, [0.05 * 4 * each for each in factors])
    if name == "local_sgd":
        oracle = rounds.fed_com(problem, compressors.fixed(compressors.dense), limited)
    else:
        oracle = expected(name, problem, limited)
    assert 3 < limited.shortened < T - 3, "a limit that always or never acts shows little"
    parameters = {"local_schedule": "inverse_sqrt:3", "server_lr": 0.5, "stretch": 3.0}
    algorithm = make("fed_avg" if name == "local_sgd" else name, **parameters, noise_limit=0.02)
    assert difference(algorithm, oracle) < 1e-9
    assert difference(algorithm.replace(noise_limit=None, server_lr=1.5), oracle) > 1e-4


def test_the_path_of_epochs_and_of_schedules_within_a_round() -> None:
    method = laconic.LocalSGD(local_lr=0.1, local_epochs=2, batch_size=10, local_schedule="step:5:0.5")
    assert method.path(0, 25) == pytest.approx(0.1 * 6) and method.path(5, 25) == pytest.approx(0.05 * 6)
    assert laconic.LocalSGD(local_lr=0.1, local_steps=4, step_schedule="warmup:4").path(0, 9) == pytest.approx(0.25)


def test_epochs_over_many_examples_are_counted_at_once() -> None:
    assert laconic.LocalSGD(local_lr=0.5, local_epochs=1000, batch_size=1).path(0, 2**32) == 500 * 2.0**32


@pytest.mark.parametrize("size", [1e100, 1e154, 1e200])
def test_a_huge_step_is_shortened_to_the_limit_or_to_nothing(size: float) -> None:
    step = laconic.SGD(noise_limit=0.25, stretch=2.0).scheduled(torch.tensor([size], dtype=torch.float64), 0, 0.5)
    assert float(step) in (0.0, pytest.approx(1.0))


def test_a_limit_on_noise_excludes_momentum_and_other_optimizers() -> None:
    with pytest.raises(laconic.ConfigError, match=r"noise_limit = 0\.5: not with momentum"):
        laconic.SGD(momentum=0.9, noise_limit=0.5)
    with pytest.raises(laconic.ConfigError, match="noise_limit"):
        laconic.fed_ams(noise_limit=0.5)


@pytest.mark.parametrize("parameters", [{"local_optimizer": "adam"}, {"method": "own"}, {"method": "ef21"}], ids=str)
def test_other_local_steps_have_no_path_and_no_limit(parameters: dict[str, object]) -> None:
    if parameters.get("method") == "own":
        parameters = {"method": laconic.OwnTraining(lambda model, examples: None)}
    assert laconic.fed_avg(**parameters).method.path(3, 10) is None
    limited = laconic.SGD(server_lr=0.5, noise_limit=1e-6, stretch=3)
    assert limited.scheduled(torch.ones(3), 0, None).tolist() == [1, 1, 1]
    assert limited.scheduled(torch.zeros(3), 0, 1.0).tolist() == [0, 0, 0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_only_rate_of_ef21_follows_its_schedule(schedule: str) -> None:
    w, found = SETTING.oracle().initial.copy(), []
    problem = SETTING.oracle()
    g = {client: np.zeros_like(w) for client in range(len(SIZES))}
    for t in range(T):
        for client in problem.participants[t]:
            g[client] = problem.gradient(client, w, FULL[client])
        w = w - 0.05 * SCHEDULES[schedule](t) * np.mean(list(g.values()), axis=0)
        found.append(w.copy())
    algorithm = laconic.ef21(uplink=laconic.DenseUplink(), server_schedule=schedule)
    assert difference(algorithm, History(models=found)) < 1e-9


CLIPPED: dict[str, tuple[dict[str, object], Callable[[Problem], History]]] = {
    "scaffold": ({"warm_start": True}, lambda problem: methods.control_variates(problem, FULL)),
    "fed_gate": ({}, methods.gradient_tracking),
    "fed_amd": (
        {"probability": 0.4, "local_lr": 0.05},
        lambda problem: methods.anchor_sampling(problem, anchors(0.4), FULL, large()),
    ),
    "bvr_l_sgd": ({}, lambda problem: methods.bvr_l_sgd(problem, large())),
    "fed_page": ({"probability": 0.4}, lambda problem: methods.fed_page(problem, coins(0.4), large())),
    "minibatch_sgd": ({}, lambda problem: methods.minibatch_sgd(problem, 0.05)),
    "ef21": ({"compressor": SPELLING}, lambda problem: methods.ef21(problem, FIXED[SPELLING], FULL, 0.05)),
    "diana": (
        {"compressor": "uniform:4@layer", "alpha": 0.3},
        lambda problem: methods.diana(problem, quantize("GRADIENT"), FULL, 0.05, 0.3),
    ),
    "marina": (
        {"uplink": laconic.DenseUplink(), "probability": 0.3},
        lambda problem: methods.marina(problem, compressors.fixed(compressors.dense), coins(0.3), FULL, 0.05),
    ),
}


@pytest.mark.parametrize("name", CLIPPED)
def test_gradients_are_cut_to_a_length(name: str) -> None:
    parameters, oracle = CLIPPED[name]
    history = oracle(SETTING.oracle(longest=LONGEST))
    assert difference(make(name, **parameters, clip_norm=LONGEST), history) < 1e-9
    assert difference(make(name, **parameters), history) > 1e-3


@pytest.mark.parametrize("name", ["ef21", "diana", "marina"])
@pytest.mark.parametrize("key", ["local_lr", "local_schedule", "local_steps"])
def test_methods_of_one_step_say_that_their_only_rate_is_the_server_s(name: str, key: str) -> None:
    for give in (lambda: make(name, **{key: 1}), lambda: make(name, method={key: 1})):
        with pytest.raises(laconic.ConfigError, match=rf"method\.{key}: .*with the server's learning rate"):
            give()
