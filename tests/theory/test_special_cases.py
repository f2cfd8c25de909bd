"""The special cases that the papers name: no compression, all clients, one step, no threshold; and a quadratic."""

from __future__ import annotations

from math import inf, log, sqrt

import numpy as np
import pytest

from laconic.theory import fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate
from laconic.theory.catalog import THEOREMS
from laconic.theory.formula import evaluate
from laconic.theory.theorem import Theorem
from tests.theory.drawn import drawn


def values_of(theorem: Theorem, **changed: float) -> dict[str, float]:
    return theorem.complete(drawn(7) | changed)


def test_without_compression_and_error_fed_sgd_has_no_floor_and_with_it_one_that_no_rate_removes() -> None:
    dense, biased = values_of(fed_ef.BIASED, q=0.0), values_of(fed_ef.BIASED, q=0.5)
    del dense["a"], biased["a"]
    assert fed_ef.BIASED.rounds_to(1e-3, dense) is not None
    floor = 64 * 0.5**2 * biased["sigma"] ** 2 / (biased["K"] * biased["N"])
    assert fed_ef.BIASED.rounds_to(floor, biased) is None
    assert fed_ef.BIASED.rounds_to(1.1 * floor, biased) is not None


def test_fed_ef_with_all_clients_has_no_sampling_terms() -> None:
    parts = fed_ef.PARTIAL.parts(values_of(fed_ef.PARTIAL, n=drawn(7)["N"]), 1e-3, 100)
    assert parts["sampling"] == parts["stale memories"] == 0


def test_fed_ef_with_all_clients_has_the_order_of_full_participation() -> None:
    base = dict.fromkeys(["L", "sigma", "sigma_g", "D"], 1.0) | {"q": 0.5, "N": 64, "K": 4, "T": 10**13}

    def constant(**changed: float) -> float:
        values = fed_ef.PARTIAL.complete(base | changed)
        rate = evaluate(fed_ef.PARTIAL.corollary_rate, values)
        return fed_ef.PARTIAL.bound(values, rate, int(values["T"])) / evaluate(fed_ef.SGD.order, values)

    for changed in ({"T": 10**15}, {"K": 16}, {"N": 256}):
        assert constant(**changed) == pytest.approx(constant(), rel=0.01), changed


def test_fed_ams_with_all_clients_has_twice_the_bound_of_the_theorem_for_them() -> None:
    values = values_of(fedcams.AMS_PARTIAL, n=drawn(7)["N"])
    assert fedcams.AMS_PARTIAL.bound(values, 1e-3, 99) == pytest.approx(2 * fedcams.AMS_FULL.bound(values, 1e-3, 99))


def test_fed_cams_without_compression_has_the_terms_of_fed_ams() -> None:
    values = values_of(fedcams.CAMS_FULL, q=0.0, gamma=0.0)
    plain = values_of(fedcams.AMS_FULL)
    assert values["C1"] == plain["C1"]
    assert values["C2"] == pytest.approx(plain["C1"] ** 2)
    compressed, dense = fedcams.CAMS_FULL.parts(values, 1e-3, 99), fedcams.AMS_FULL.parts(plain, 1e-3, 99)
    # The bound of the second moment has a factor 4 within its root, and S has 2 C2 for C1^2.
    assert all(dense[name] < compressed[name] < 4 * dense[name] for name in dense)


@pytest.mark.parametrize(
    ("theorem", "base"),
    [(fedbnlaca.LAZY_FULL, fedcams.AMS_FULL), (fedbnlaca.LAZY_PARTIAL, fedcams.AMS_PARTIAL)],
    ids=["full", "partial"],
)
def test_without_a_threshold_lazy_aggregation_is_fed_ams(theorem: Theorem, base: Theorem) -> None:
    values = values_of(theorem, h=0.0)
    assert theorem.bound(values, 1e-3, 99) == base.bound(values, 1e-3, 99)


@pytest.mark.parametrize("partial", [False, True], ids=["4.1", "4.3"])
def test_noise_and_skipping_are_those_of_the_sum_in_the_proof(partial: bool) -> None:
    """The sum has (3 eta^2 L / 2 + ...) (K eta_l^2 sigma^2 / (m eps) + 2 K^2 h^2 eta_l^2 G^2 / eps); divided by eta eta_l K.

    4.1 prints 4 times this noise and twice this skipping; 4.3, which also divides by eta twice, 2 times and 2 K times.
    """
    theorem = fedbnlaca.LAZY_PARTIAL if partial else fedbnlaca.LAZY_FULL
    v = values_of(theorem)
    parts = theorem.parts(v, v["a"], 100)
    front, m = evaluate(theorem.factor, v), v["n"] if partial else v["N"]
    moment = sqrt(2 * (1 - v["beta2"])) * v["b"] * v["G"]
    before = 3 * v["b"] ** 2 * v["L"] / 2 + moment + v["C1"] ** 2 * v["b"] ** 2 * v["L"] / 2
    divided = front * before / (v["b"] * v["a"] * v["K"])
    noise = divided * v["K"] * v["a"] ** 2 * v["sigma"] ** 2 / (m * v["eps"])
    skipping = divided * 2 * v["K"] ** 2 * v["h"] ** 2 * v["a"] ** 2 * v["G"] ** 2 / v["eps"]
    assert parts["noise"] == pytest.approx(noise)
    floor = front * evaluate(fedbnlaca.FLOOR, v)
    assert parts["similar updates"] == pytest.approx(skipping + floor)
    bracket = (3 + v["C1"] ** 2) * v["b"] ** (1 if partial else 2) * v["L"] + 2 * moment / (v["b"] if partial else 1)
    printed = front * bracket * v["a"] / (v["b"] * v["eps"])
    multiple = 1 / v["b"] if partial else 1.0
    assert printed * (1 if partial else 2) * v["sigma"] ** 2 / m == pytest.approx(
        (2 if partial else 4) * multiple * noise
    )
    printed *= 2 * v["K"] ** (2 if partial else 1) * v["h"] ** 2 * v["G"] ** 2
    assert printed == pytest.approx((2 * v["K"] if partial else 2) * multiple * skipping)
    assert ("four times the noise" if not partial else "2 K^2 for K") in theorem.reading


def test_without_errors_of_the_downlink_both_ways_is_one_way() -> None:
    for both, one in [
        (fedbnlaca.BOTH_WAYS_FULL, fedbnlaca.COMPRESSED_FULL),
        (fedbnlaca.BOTH_WAYS_PARTIAL, fedbnlaca.COMPRESSED_PARTIAL),
    ]:
        values = values_of(both, h=0.0, gamma=0.0)
        assert both.bound(values, 1e-3, 99) == one.bound(values, 1e-3, 99)
    # And one way without a threshold differs from FedCAMS only in C1: sqrt(12) for 2.
    values = values_of(fedbnlaca.COMPRESSED_FULL, h=0.0)
    other = fedcams.CAMS_FULL.parts(values_of(fedcams.CAMS_FULL), 1e-3, 99)
    parts = fedbnlaca.COMPRESSED_FULL.parts(values, 1e-3, 99)
    assert {name for name in parts if parts[name] != other[name]} == {"moments"}


@pytest.mark.parametrize(
    ("recipe", "lazy"), [("fed_aa", "fed_nlaa"), ("fed_aca", "fed_nlaca"), ("fed_baca", "fed_bnlaca")]
)
def test_acceleration_is_a_threshold_of_1(recipe: str, lazy: str) -> None:
    about = {name: [theorem for theorem in THEOREMS if name in theorem.recipes] for name in (recipe, lazy)}
    for accelerated, skipping in zip(about[recipe], about[lazy], strict=True):
        first = accelerated.bound(values_of(accelerated), 1e-3, 99)
        assert first == skipping.bound(values_of(skipping, h=1.0), 1e-3, 99)


@pytest.mark.parametrize(("participants", "expected"), [(20, 0.887), (40, 0.927), (100, 0.961)])
def test_the_optimal_probability_of_fed_amd(participants: int, expected: float) -> None:
    values = drawn(1) | {"n": participants, "N": 100}
    del values["p"], values["b"]
    found = fedamd.CONSTANT.complete(values)
    assert found["p"] == pytest.approx(expected, abs=5e-4)
    best = min((step / 1e4 for step in range(1, 10_000)), key=lambda p: 1 / (p * sqrt(1 - p**participants)))
    assert found["p"] == pytest.approx(best, abs=1e-4)
    # Corollary 4.9 with c = 1: its server rate is at most the theorem's.
    assert 2 * sqrt(6) * participants / (participants + 300) <= found["b"]


@pytest.mark.parametrize("mu", [0.3, 1.0, 5.0])
def test_the_optimal_probability_under_the_pl_condition(mu: float) -> None:
    values = drawn(1) | {"n": 10, "N": 50, "mu": mu}
    del values["p"], values["b"]
    found, c = fedamd.PL.complete(values)["p"], 11 / (2 * mu**2)
    assert found == pytest.approx(((1 + c) - sqrt(c**2 + 10 / mu**2)) ** (1 / 10))
    best = min((step / 1e4 for step in range(1, 10_000)), key=lambda p: 1 / (mu**2 * p * (1 - p**10)) + 1 / p)
    assert found == pytest.approx(best, abs=1e-4)


def test_fed_amd_needs_the_fewest_rounds_with_every_second_round_of_anchors() -> None:
    values = drawn(3) | {"B": inf, "n": 5, "N": 20}
    del values["a"], values["b"]
    rounds = {
        tau: fedamd.SEQUENTIAL_PARTIAL.rounds_to(0.01, fedamd.SEQUENTIAL_PARTIAL.complete(values | {"tau": tau}))
        for tau in range(2, 7)
    }
    assert min(rounds, key=lambda tau: rounds[tau] or inf) == 2


def test_fed_amd_with_the_fewest_local_steps_has_both_limits_of_a_miner_equal() -> None:
    values = drawn(4) | {"B_local": 2.0, "L": 0.5, "K": 36.0, "L_sigma": 3.0}
    steps = evaluate(fedamd.STEPS["local steps, at least"], values)
    assert steps == 36
    first, second = (evaluate(limit, values) for limit in fedamd.MINERS)
    assert first == pytest.approx(second)


def test_fed_amd_with_all_local_data_has_no_noise() -> None:
    values = drawn(5)
    del values["B"]
    for theorem in fedamd.THEOREMS:
        if "B" not in theorem.constants:
            assert theorem.parts(theorem.complete(values), 1e-4, 50)["noise of anchors"] == 0


@pytest.mark.parametrize(("theorem", "per"), [(fedamd.CONSTANT, "1"), (fedamd.PL, "mu")])
def test_the_anchors_batch_of_fed_amd_has_at_least_one_example(theorem: Theorem, per: str) -> None:
    """Corollaries 4.9 and 4.12: min(sigma^2 / (M epsilon), n), and divided by mu under the PL condition."""
    values, formula = drawn(5) | {"sigma": 2.0, "N": 10, "mu": 0.5}, theorem.settings["anchor batch, unless all data"]
    assert evaluate(formula, values | {"epsilon": 0.001}) == pytest.approx(400 / evaluate(per, values))
    assert evaluate(formula, values | {"epsilon": 10.0}) == 1


def test_corollary_4_5_with_its_local_steps_has_all_limits_equal() -> None:
    """K = L_sigma^2 / (6 b' L^2), eta_s = 1 / (sqrt(3) tau), eta_l = 1 / (6 sqrt(2) K L)."""
    given = drawn(4) | {"B_local": 2.0, "L": 0.5, "L_sigma": 6.0, "tau": 3}
    del given["b"]
    steps = evaluate(fedamd.SEQUENTIAL_FULL.settings["local steps, at least"], given)
    assert steps == 12
    values = fedamd.SEQUENTIAL_FULL.complete(given | {"K": steps})
    for limit in fedamd.SEQUENTIAL_FULL.limits:
        assert evaluate(limit, values) == pytest.approx(1 / (6 * sqrt(2) * 12 * 0.5))


@pytest.mark.parametrize("theorem", [fedamd.SMALL_ANCHORS, fedamd.ANCHORS_OF_K], ids=lambda theorem: theorem.number)
def test_corollary_4_5_with_small_batches_of_anchors_has_its_rounds(theorem: Theorem) -> None:
    """b = O(1): T of order sigma^2 / (M eps^2); b = O(K): sigma^2 / (M K eps^2). With our rates, and with the paper's."""
    given = dict.fromkeys(["L", "sigma", "D", "B_local"], 1.0) | {"N": 64, "n": 64, "K": 4, "tau": 2, "L_sigma": 0.1}
    small = theorem is fedamd.SMALL_ANCHORS

    def rounds(error: float, **changed: float) -> int:
        found = theorem.rounds_to(error, theorem.complete(given | changed))
        assert found is not None
        return found

    base = rounds(1e-4)
    assert rounds(1e-5) == pytest.approx(100 * base, rel=0.02)
    assert rounds(1e-4, sigma=3.0) == pytest.approx(9 * base, rel=0.02)
    assert rounds(1e-4, N=256, n=256) == pytest.approx(base / 4, rel=0.02)
    assert rounds(1e-4, K=16) == pytest.approx(base if small else base / 4, rel=0.02)
    for T in (10**12, 10**14):
        fourth = (64 / T) ** (1 / 4)
        rates = {"a": fourth / 4, "b": fourth} if small else {"a": 1 / (4 * sqrt(T)), "b": sqrt(4 * 64)}
        paper = theorem.complete(given | rates)
        ours = theorem.complete(given)
        assert paper["a"] <= theorem.limit(paper)
        least = theorem.bound(ours, theorem.best_rate(ours, T), T)
        assert least <= theorem.bound(paper, paper["a"], T) < 4 * least
        assert theorem.bound(paper, paper["a"], T) == pytest.approx(
            (84 if small else 36) / sqrt((1 if small else 4) * 64 * T), rel=0.01
        )


def test_with_one_local_step_and_no_compression_fed_com_has_the_rate_and_bound_of_sgd() -> None:
    values = fedcomgate.COM.complete(drawn(6) | {"K": 1, "omega": 0.0, "b": 1e6})
    limit = fedcomgate.COM.limit(values)
    assert limit * values["b"] == pytest.approx(1 / values["L"])
    step, rounds = limit * values["b"] / 10, 100
    sgd = 2 * values["D"] / (step * rounds) + step * values["L"] * values["sigma"] ** 2 / values["N"]
    assert fedcomgate.COM.bound(values, step / values["b"], rounds) == pytest.approx(sgd)


@pytest.mark.parametrize("kept", [10, 2], ids=["dense", "random 2 of 10"])
def test_the_bounds_of_fed_com_hold_for_a_quadratic(kept: int) -> None:
    # f(w) = sum_i c_i w_i^2 / 2, so that L and mu are the largest and the smallest c_i, and f* is 0.
    rng, curvature, sigma, clients, steps, rounds = np.random.default_rng(0), np.linspace(0.2, 2, 10), 3.0, 4, 5, 60
    start = np.full(10, 2.0)
    given = {"L": 2.0, "mu": 0.2, "sigma": sigma, "N": clients, "K": steps, "omega": 10 / kept - 1, "b": 2.0}
    given["D"] = float(curvature @ start**2) / 2
    values = fedcomgate.COM.complete(given)
    rate = 0.5 * fedcomgate.COM.limit(values)

    def trained() -> tuple[float, float]:
        """The mean squared gradient over the rounds, and the last objective."""
        model, squares = start, []
        for _ in range(rounds):
            squares.append(float(np.sum((curvature * model) ** 2)))
            updates = []
            for _ in range(clients):
                local = model
                for _ in range(steps):
                    local = local - rate * (curvature * local + rng.normal(0, sigma / sqrt(10), 10))
                chosen = rng.permutation(10)[:kept]
                updates.append(np.zeros(10))
                updates[-1][chosen] = (local - model)[chosen] * 10 / kept
            model = model + values["b"] * np.mean(updates, axis=0)
        return float(np.mean(squares)), float(curvature @ model**2) / 2

    gradient, objective = np.mean([trained() for _ in range(20)], axis=0)
    bound, last = fedcomgate.COM.bound(values, rate, rounds), fedcomgate.COM_PL.bound(values, rate, rounds)
    # The bounds hold, and are not so loose that a missing factor would go unnoticed.
    assert bound / 20 < gradient < bound
    assert last / 200 < objective < last


def test_remark_9_is_a_rate_that_fed_comgate_allows() -> None:
    values = fedcomgate.GATE.complete(drawn(6) | {"b": 60.0})
    assert 1 / (values["L"] * 60 * (values["omega"] + 1) * values["K"] * sqrt(30)) <= fedcomgate.GATE.limit(values)


def test_corollary_d_8_gives_logarithmic_rounds() -> None:
    values = drawn(6) | {"sigma": 0.0, "omega": 2.0, "b": 60.0}
    del values["a"]
    values = fedcomgate.COM_PL.complete(values)
    few, many = (fedcomgate.COM_PL.rounds_to(values["D"] * error, values) for error in (1e-3, 1e-6))
    assert few and many and many / few == pytest.approx(2, rel=0.02)
    assert few <= 2 * (values["omega"] / values["N"] + 1) * values["L"] / values["mu"] * log(1e3) + 1
