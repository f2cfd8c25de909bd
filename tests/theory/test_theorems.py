"""Every theorem agrees with a literal transcription, and with the special cases and corollaries that its paper names."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from laconic.algorithms.recipes import RECIPES as ALL_RECIPES
from laconic.algorithms.recipes import make
from laconic.core.errors import ConfigError
from laconic.theory import fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate
from laconic.theory.catalog import RECIPES, THEOREMS, covering
from laconic.theory.formula import evaluate, symbols
from laconic.theory.quantities import BY_SYMBOL, QUANTITIES, by_symbol
from laconic.theory.theorem import Theorem
from tests.oracles import theorems as oracle

NAMES = [f"{theorem.recipes[0]}: {theorem.number}" for theorem in THEOREMS]


def drawn(seed: int) -> dict[str, float]:
    """A value of every quantity."""
    rng = random.Random(seed)
    values = {quantity.symbol: rng.uniform(0.2, 3.0) for quantity in QUANTITIES.values()}
    values |= {name: rng.uniform(0.1, 0.9) for name in ("q", "p", "beta1", "beta2", "eps", "gamma", "lam", "h")}
    values |= {"N": rng.randint(4, 60), "K": rng.randint(1, 9), "T": rng.randint(10, 1000), "d": 50, "tau": 3, "B": 7.0}
    values |= {"n": rng.randint(2, int(values["N"])), "mu": values["L"] / 5}
    return values


def transcribed(theorem: Theorem, v: dict[str, float]) -> tuple[float | bool | None, float]:
    """The oracle's limit, or whether it allows the rate, and its bound."""
    eta, eta_l = v["b"], v["a"]
    common = {"L": v["L"], "K": v["K"], "sigma": v["sigma"], "eta": eta, "eta_l": eta_l, "T": v["T"]}
    local = common | {"sigma_g": v["sigma_g"]}
    ef = local | {"n": v["N"], "Delta": v["D"], "q": v["q"]}
    anchors = common | {"M": v["N"], "gap": v["D"], "L_sigma": v["L_sigma"], "b_small": v["B_local"], "b": v["B"]}
    adaptive = local | {name: v[name] for name in ("beta1", "beta2", "eps", "G", "d")} | {"gap": v["D"], "m": v["N"]}
    compressed = adaptive | {"q": v["q"]}
    com = {"L": v["L"], "tau": v["K"], "m": v["N"], "sigma": v["sigma"], "gap": v["D"], "q": v["omega"], "gamma": eta}
    gate = com | {"G_q": v["G_q"], "eta": eta_l, "R": v["T"]}
    h = v["h"]
    skipping = {name: v[name] for name in ("K", "G", "eps", "L", "beta1", "beta2")} | {"eta": eta, "eta_l": eta_l}
    front = evaluate(theorem.factor, v)
    down = {name: v[name] for name in ("L", "K", "G", "H", "d", "eps", "beta1", "gamma")} | {"eta": eta, "eta_l": eta_l}

    def lazily(partial: bool) -> tuple[float, float]:
        constants = oracle.fedbnlaca_constants(
            v["beta1"], v["q"], v["gamma"], v["lam"], h, v["N"] / v["n"] if partial else 1
        )
        if not partial:
            return oracle.fedcams_4_18(**compressed, gamma=v["gamma"], C1=constants[0], C2=constants[1])
        limit, bound = oracle.fedcams_b_2(**compressed, n=v["n"], C1=constants[0])
        if theorem.recipes[0] in ("fed_nlaca", "fed_aca"):  # Theorem A.3 prints the limit of A.1
            limit = oracle.fedcams_4_18(**compressed, gamma=v["gamma"], C1=constants[0], C2=constants[1])[0]
        return limit, bound

    def both_ways(partial: bool) -> tuple[float, float]:
        limit, bound = lazily(partial)
        C1, _ = oracle.fedbnlaca_constants(
            v["beta1"], v["q"], v["gamma"], v["lam"], h, v["N"] / v["n"] if partial else 1
        )
        return limit, bound + front * oracle.fedbnlaca_downlink(**down, threshold=h, C1=C1)

    def skipped(base: tuple[float, float]) -> tuple[float, float]:
        return base[0], base[1] + front * oracle.fedbnlaca_skipping(**skipping, threshold=h)

    cases = {
        (fed_ef.PAPER, "4.4"): lambda: oracle.fed_ef_4_4(**ef),
        (fed_ef.PAPER, "4.6"): lambda: oracle.fed_ef_4_6(**ef),
        (fed_ef.PAPER, "4.8"): lambda: oracle.fed_ef_4_8(**ef, beta1=v["beta1"], eps=v["eps"], G=v["G"], d=v["d"]),
        (fed_ef.PAPER, "4.10"): lambda: oracle.fed_ef_4_10(**ef, m=v["n"]),
        (fedamd.PAPER, "4.4"): lambda: oracle.fedamd_4_4(**anchors, tau=v["tau"]),
        (fedamd.PAPER, "4.6"): lambda: oracle.fedamd_4_6(**anchors, A=v["n"], tau=v["tau"]),
        (fedamd.PAPER, "4.8"): lambda: oracle.fedamd_4_8(**anchors, A=v["n"], p=v["p"]),
        (fedamd.PAPER, "4.11"): lambda: oracle.fedamd_4_11(**anchors, A=v["n"], p=v["p"], mu=v["mu"]),
        (fedcams.PAPER, "4.4"): lambda: oracle.fedcams_4_4(**adaptive),
        (fedcams.PAPER, "4.9"): lambda: oracle.fedcams_4_9(**adaptive, n=v["n"]),
        (fedcams.PAPER, "4.18"): lambda: oracle.fedcams_4_18(**compressed, gamma=v["gamma"]),
        (fedcams.PAPER, "B.2"): lambda: oracle.fedcams_b_2(**compressed, n=v["n"]),
        (fedcomgate.PAPER, "D.4"): lambda: oracle.fedcom_d_4(**com, eta=eta_l, R=v["T"]),
        (fedcomgate.PAPER, "D.6"): lambda: oracle.fedcom_d_4(**com, eta=eta_l, R=v["T"]),
        (fedcomgate.PAPER, "D.7"): lambda: oracle.fedcom_d_7(**com, mu=v["mu"], eta=eta_l, R=v["T"]),
        (fedcomgate.PAPER, "D.9"): lambda: oracle.fedcom_d_9(**com, norm=v["W"], R=v["T"]),
        (fedcomgate.PAPER, "E.4"): lambda: oracle.fedcomgate_e_4(**gate, local_gaps=[v["D_local"]] * int(v["N"])),
        (fedcomgate.PAPER, "E.6"): lambda: oracle.fedcomgate_e_6(
            **gate, squared_distances=[v["R"] ** 2] * int(v["N"]), mu=v["mu"]
        ),
        (fedcomgate.PAPER, "E.9"): lambda: oracle.fedcomgate_e_9(
            **com, G_q=v["G_q"], squared_distances=[v["R"] ** 2] * int(v["N"]), norm=v["W"], R=v["T"]
        ),
        **{(fedbnlaca.PAPER, number): lambda: skipped(oracle.fedcams_4_4(**adaptive)) for number in ("4.1", "4.2")},
        **{
            (fedbnlaca.PAPER, number): lambda: skipped(oracle.fedcams_4_9(**adaptive, n=v["n"], limit_factor=48))
            for number in ("4.3", "4.4")
        },
        **{(fedbnlaca.PAPER, number): lambda: lazily(False) for number in ("A.1", "A.2")},
        **{(fedbnlaca.PAPER, number): lambda: lazily(True) for number in ("A.3", "A.4")},
        **{(fedbnlaca.PAPER, number): lambda: both_ways(False) for number in ("4.5", "4.6")},
        **{(fedbnlaca.PAPER, number): lambda: both_ways(True) for number in ("E.1", "E.2")},
    }
    return cases[theorem.paper, theorem.number.split()[1]]()


FIXED_RATE = {"D.9": "1 / (2 * L * (omega / N + 1) * K * b)", "E.9": "1 / (2 * L * (omega + 1) * K * b)"}
"""The rates for which these two theorems print their bounds."""
BY_CONDITION = ("E.4", "E.6")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("theorem", THEOREMS, ids=NAMES)
def test_limit_and_bound_are_those_of_the_paper(theorem: Theorem, seed: int) -> None:
    given = drawn(seed)
    given |= {"b": max(given["b"], 1.0)} if theorem.paper == fedcomgate.PAPER else {}
    values, number = theorem.complete(given), theorem.number.split()[1]
    rate = evaluate(FIXED_RATE[number], values) if number in FIXED_RATE else theorem.limit(values) * 0.7
    values["a"] = rate
    limit, bound = transcribed(theorem, values)
    assert theorem.bound(values, rate, int(values["T"])) == pytest.approx(bound, rel=1e-10)
    if number in BY_CONDITION:
        assert limit, "the oracle allows a rate below the limit"
        above = values | {"a": theorem.limit(values) * 1.001}
        assert not transcribed(theorem, above)[0], "and none above it"
    elif number not in FIXED_RATE:
        assert theorem.limit(values) == pytest.approx(limit, rel=1e-10)
    else:
        assert limit == pytest.approx(rate)


ORDERED = [theorem for theorem in THEOREMS if theorem.order]


@pytest.mark.parametrize("theorem", ORDERED, ids=[f"{theorem.recipes[0]}: {theorem.number}" for theorem in ORDERED])
def test_the_rates_of_the_corollary_give_its_order(theorem: Theorem) -> None:
    # Constants that are not in the order are small, so that its term dominates; FedBNLACA's order ignores its floor.
    base = dict.fromkeys(["L", "sigma", "sigma_g", "D", "D_local", "omega", "B_local", "R"], 1.0)
    base |= {
        "N": 64,
        "n": 16,
        "K": 4,
        "d": 1,
        "G": 1e-3,
        "beta1": 0.5,
        "beta2": 0.99,
        "eps": 0.1,
        "tau": 2,
        "L_sigma": 0.1,
    }
    base |= {"q": 0.5, "H": 1e-9, "T": 10**13}
    if theorem.recipes[0] in ("fed_avg", "fed_sgd"):
        base |= {"q": 0.0, "omega": 0.0}
    if theorem.participation == "full":
        base["n"] = base["N"]
    theorem = replace(
        theorem, constants={**theorem.constants, "h": "0"} if "h" in theorem.constants else theorem.constants
    )

    def constant(**changed: float) -> float:
        values = theorem.complete(base | changed)
        rate = evaluate(theorem.corollary_rate, values)
        assert rate <= theorem.limit(values) * (1 + 1e-12)
        return theorem.bound(values, rate, int(values["T"])) / evaluate(theorem.order, values)

    expected = constant()
    changes = [{"T": 10**15}, {"K": 16}, {"N": 4 * base["N"], "n": 4 * base["n"]}, {"tau": 4}]
    if theorem.participation != "full":
        changes.append({"n": base["n"] / 2})
    for changed in changes:
        assert constant(**changed) == pytest.approx(expected, rel=0.5), changed


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
        assert theorem.parts(theorem.complete(values), 1e-4, 50)["noise of anchors"] == 0


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


@pytest.mark.parametrize("theorem", THEOREMS, ids=NAMES)
def test_the_best_rate_is_allowed_and_no_other_is_better(theorem: Theorem) -> None:
    values = drawn(8) | {"h": 0.0, "gamma": 0.0}
    del values["a"]
    values = theorem.complete(values)
    best, limit = theorem.best_rate(values, 500), theorem.limit(values)
    assert 0 < best <= limit
    least = theorem.bound(values, best, 500)
    assert all(least <= theorem.bound(values, limit * 0.9**step, 500) * (1 + 1e-9) for step in range(300))


@pytest.mark.parametrize("theorem", THEOREMS, ids=NAMES)
def test_rounds_are_the_fewest_that_suffice(theorem: Theorem) -> None:
    values = drawn(9) | {"h": 0.0, "gamma": 0.0, "B": inf}
    del values["a"]
    values = theorem.complete(values)
    error = 1.05 * theorem.bound(values, theorem.best_rate(values, 10**6), 10**6)
    rounds = theorem.rounds_to(error, values)
    assert rounds is not None
    assert theorem.bound(values, theorem.best_rate(values, rounds), rounds) <= error
    if rounds > 1:
        assert theorem.bound(values, theorem.best_rate(values, rounds - 1), rounds - 1) > error


def test_defaults_of_optimizers_are_those_of_the_recipes() -> None:
    for theorem in THEOREMS:
        for recipe in theorem.recipes:
            if "eps" in theorem.defaults:
                optimizer = make(recipe).optimizer.parameters()
                names = {"beta1": "beta1", "beta2": "beta2", "eps": "epsilon"}
                for symbol in names.keys() & theorem.defaults.keys():
                    assert float(theorem.defaults[symbol]) == optimizer[names[symbol]], (recipe, symbol)


def test_theorems_are_about_recipes_and_known_quantities() -> None:
    assert set(RECIPES) <= set(ALL_RECIPES)
    for theorem in THEOREMS:
        assert set(theorem.needs()) <= BY_SYMBOL.keys(), theorem.number
        used = {symbol for formula in theorem.settings.values() for symbol in symbols(formula)}
        assert used <= BY_SYMBOL.keys() | theorem.constants.keys()


def test_the_guide_has_every_theorem_with_its_recipes() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/theory.md").read_text()
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| ")]
    for theorem in THEOREMS:
        number = " ".join(theorem.number.split()[:2])
        for recipe in theorem.recipes:
            assert any(number in row[2] and f"`{recipe}`" in row[3] for row in rows), (number, recipe)


def test_the_case_selects_the_theorems() -> None:
    given = drawn(2) | {"N": 20, "n": 5}
    for symbol in ("W", "mu", "tau"):
        del given[symbol]

    def numbers(recipe: str, **changed: float) -> list[str]:
        return [theorem.number for theorem in covering(recipe, given | changed)]

    assert numbers("fed_ef_sgd") == ["Theorem 4.10"]
    assert numbers("fed_ef_sgd", n=20) == ["Theorem 4.6"]
    assert numbers("fed_avg", n=20) == ["Theorem 4.4", "Corollary D.6"]
    assert numbers("fed_amd") == ["Theorem 4.8 (E.4)"]
    assert numbers("fed_amd", tau=2) == ["Theorem 4.6 (D.3)"]
    assert numbers("fed_amd", mu=0.1) == ["Theorem 4.11 (E.5)"]
    assert numbers("fed_comgate", n=20, W=1.0) == ["Theorem E.9"]
    with pytest.raises(
        ConfigError, match=r"fed_ef_ams: no theorem for a non-convex objective and partial participation"
    ):
        numbers("fed_ef_ams")


def test_quantities_are_checked() -> None:
    assert by_symbol({"smoothness": 2.0, "noise": None}) == {"L": 2.0}
    for name, value in [("smoothness", 0.0), ("compression_error", 1.0), ("noise", -1.0), ("gap", float("nan"))]:
        with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} \S+: a number"):
            by_symbol({name: value})
    with pytest.raises(ConfigError, match="--participants 5: at most --clients, 4, is allowed"):
        by_symbol({"clients": 4, "participants": 5})
    with pytest.raises(ConfigError, match="--pl-constant 2: at most --smoothness, 1, is allowed"):
        by_symbol({"smoothness": 1.0, "pl_constant": 2.0})
