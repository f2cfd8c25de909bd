"""Every theorem agrees with a literal transcription, and with the special cases and corollaries that its paper names."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from laconic.algorithms.recipes import RECIPES as ALL_RECIPES
from laconic.algorithms.recipes import make
from laconic.core.errors import ConfigError
from laconic.theory import fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate
from laconic.theory.catalog import RECIPES, THEOREMS, covering
from laconic.theory.formula import evaluate, symbols
from laconic.theory.quantities import BY_SYMBOL, by_symbol
from laconic.theory.theorem import Theorem
from tests.oracles import theorems as oracle
from tests.theory.drawn import drawn

NAMES = [f"{theorem.recipes[0]}: {theorem.number}" for theorem in THEOREMS]


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
        (fedamd.PAPER, "4.5"): lambda: oracle.fedamd_4_4(**anchors, tau=v["tau"]),
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
    corollary = ["Corollary 4.5 (b = O(1))", "Corollary 4.5 (b = O(K))"]
    assert numbers("fed_amd", n=20, tau=2) == ["Theorem 4.4 (D.2)", *corollary]
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
