"""How a claim is judged by one seed, by several, and without a random draw."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laconic.reproduce.claims import Claim, LargerGap, MoreOften, Result, judge
from laconic.reproduce.intervals import half_width, probability, quantile
from laconic.reproduce.measures import FINAL, GRADIENT_NORM, Measure, to_accuracy

ROUNDS = to_accuracy(0.75, "rounds")
END = [{"round": 400, "accuracy": 0.7}]


def runs(measure: Measure, *values: float | None, curve: list[dict] = END) -> dict[int, Result]:
    """One result per seed."""
    return {seed: Result({measure.name: value}, curve) for seed, value in enumerate(values)}


@pytest.mark.parametrize(
    ("measure", "relation", "one", "other", "margin", "agrees"),
    [
        (ROUNDS, "less", 213.0, 318.0, 0, True),
        (ROUNDS, "less", 318.0, 213.0, 0, False),
        (ROUNDS, "less", 213.0, 213.0, 0, False),
        (ROUNDS, "less", 213.0, None, 0, True),
        (ROUNDS, "less", None, 318.0, 0, False),
        (ROUNDS, "less", 213.0, 214.0, 5, False),
        (FINAL, "more", 80.0, 79.0, 0, True),
        (FINAL, "more", 80.01, 80.0, 0, False),
        (FINAL, "more", None, 79.0, 0, False),
        (FINAL, "near", 80.0, 79.0, 1, True),
        (FINAL, "near", 80.0, 78.9, 1, False),
        (FINAL, "near", None, 78.9, 1, False),
    ],
)
def test_one_seed_agrees_or_not_and_decides_nothing(measure, relation, one, other, margin, agrees) -> None:
    claim = Claim(measure, relation, "a", "b", margin)
    results = {"a": runs(measure, one), "b": runs(measure, other)}
    verdict = judge(claim, results)
    assert (verdict.kind, verdict.agrees) == ("one seed", agrees)
    assert judge(claim, results, exact=True).kind == ("holds" if agrees else "fails")


def test_without_numbers_there_is_no_verdict() -> None:
    claim = Claim(ROUNDS, "less", "a", "b")
    assert judge(claim, {"a": runs(ROUNDS, None), "b": runs(ROUNDS, None)}).kind == "not judged"
    assert judge(claim, {"a": runs(ROUNDS, 1.0)}).kind == "not judged"
    assert (
        judge(claim, {"a": {0: Result({ROUNDS.name: 1.0})}, "b": {1: Result({ROUNDS.name: 2.0})}}).kind == "not judged"
    )


@pytest.mark.parametrize(
    ("relation", "ones", "others", "margin", "kind"),
    [
        # Differences of 2.0, 1.8 and 2.1: their interval is 1.59 to 2.35.
        ("more", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 0.0, "holds"),
        ("more", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 1.5, "holds"),
        ("more", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 2.0, "undecided"),
        ("more", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 3.0, "fails"),
        ("less", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 0.0, "fails"),
        ("near", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 3.0, "holds"),
        ("near", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 2.0, "undecided"),
        ("near", (80.0, 81.0, 82.0), (78.0, 79.2, 79.9), 1.0, "fails"),
        # Means 1 apart, but the pairs of seeds disagree.
        ("more", (80.0, 81.0, 82.0), (81.0, 80.0, 79.0), 0.0, "undecided"),
        # The same means, paired: seeds that differ from each other do not hide a steady difference.
        ("more", (70.0, 80.0, 90.0), (69.0, 79.1, 88.9), 0.0, "holds"),
        # Equal numbers are neither more nor less.
        ("more", (80.0, 81.0, 82.0), (80.0, 81.0, 82.0), 0.0, "fails"),
        ("more", (80.0, 81.0), (70.0, 71.1), 0.0, "undecided"),
    ],
)
def test_three_seeds_decide_by_an_interval(relation, ones, others, margin, kind) -> None:
    verdict = judge(Claim(FINAL, relation, "a", "b", margin), {"a": runs(FINAL, *ones), "b": runs(FINAL, *others)})
    assert verdict.kind == kind, verdict
    assert f"{len(ones)} seeds" in verdict.evidence and "95 % interval" in verdict.evidence


def test_only_seeds_that_all_runs_have_are_compared() -> None:
    results = {"a": runs(FINAL, 80.0, 81.0, 82.0, 0.0), "b": runs(FINAL, 78.0, 79.2, 79.9)}
    assert judge(Claim(FINAL, "more", "a", "b"), results).kind == "holds"


def test_a_target_that_was_not_reached_bounds_the_difference() -> None:
    claim, fast = Claim(ROUNDS, "less", "a", "b"), runs(ROUNDS, 100.0, 110.0, 105.0)
    never = runs(ROUNDS, None, None, None)
    held = judge(claim, {"a": fast, "b": never})
    assert held.kind == "holds" and "(-∞, -28" in held.evidence, (
        "b took more than 400 rounds: the interval ends at -283"
    )
    assert judge(claim, {"a": never, "b": fast}).kind == "fails"
    assert judge(claim, {"a": never, "b": runs(ROUNDS, 399.0, 400.0, None)}).kind == "undecided"
    late = runs(ROUNDS, 390.0, 400.0, 350.0)
    assert judge(claim, {"a": late, "b": never}).kind == "undecided", "b may have been about to reach it"


def test_a_claim_about_several_needs_all_of_them() -> None:
    claim = Claim(FINAL, "more", "a", ("b", "c"), factor=0.5)
    results = {"a": runs(FINAL, 50.0), "b": runs(FINAL, 90.0), "c": runs(FINAL, 99.0)}
    assert judge(claim, results).agrees is True
    assert judge(claim, results | {"c": runs(FINAL, 101.0)}).agrees is False
    assert judge(claim, {"a": results["a"]}).kind == "not judged"
    claim = Claim(FINAL, "more", "a", ("b", "c"))
    results = {
        "a": runs(FINAL, 80.0, 80.1, 79.9),
        "b": runs(FINAL, 70.0, 70.0, 70.0),
        "c": runs(FINAL, 80.0, 80.0, 80.0),
    }
    assert judge(claim, results).kind == "undecided" and "a and c" in judge(claim, results).evidence
    assert judge(claim, results | {"c": runs(FINAL, 90.0, 90.0, 90.0)}).kind == "fails"


def test_several_comparisons_fail_only_beyond_bonferroni() -> None:
    # Differences of -1.0, -1.2 and -0.5 exclude zero alone, at 95 %, but not if there are ten comparisons.
    ones, others = runs(FINAL, 79.0, 78.8, 79.5), runs(FINAL, 80.0, 80.0, 80.0)
    assert judge(Claim(FINAL, "more", "a", "b"), {"a": ones, "b": others}).kind == "fails"
    easy = {f"easy {n}": runs(FINAL, 10.0, 10.0, 10.0) for n in range(9)}
    assert judge(Claim(FINAL, "more", "a", ("b", *easy)), {"a": ones, "b": others, **easy}).kind == "undecided"


def test_under_no_difference_a_claim_holds_in_one_of_forty_cases() -> None:
    generator = np.random.default_rng(0)
    claim, kinds = Claim(Measure("x", lambda curve: None, 9), "more", "a", "b"), []
    for _ in range(4000):
        ones, others = generator.standard_normal((2, 3))
        kinds.append(judge(claim, {"a": runs(claim.measure, *ones), "b": runs(claim.measure, *others)}).kind)
    for kind in ("holds", "fails"):
        assert kinds.count(kind) / len(kinds) == pytest.approx(0.025, abs=0.007)


def descent(*norms: float) -> list[dict]:
    return [{"round": 10 * place, "gradient_norm_squared": norm} for place, norm in enumerate(norms, 1)]


def test_the_share_of_evaluations_counts_rounds_after_the_change() -> None:
    claim = MoreOften("gradient_norm_squared", "new", "old", after=20)
    old = {seed: Result({}, descent(1, 1, 1, 1, 1, 1)) for seed in range(3)}
    new = {seed: Result({}, descent(9, 9, 0.5, 0.5, 0.5, 2)) for seed in range(3)}
    assert judge(claim, {"new": {0: new[0]}, "old": {0: old[0]}}).evidence.endswith(
        "75 % of the evaluations after round 20"
    )
    assert judge(claim, {"new": new, "old": old}).kind == "holds"
    swings = {0: Result({}, descent(9, 9, 0.5, 2, 2, 2)), 1: new[1], 2: new[2]}
    assert judge(claim, {"new": swings, "old": old}).kind == "undecided"


def test_gaps_are_compared_as_ratios() -> None:
    name = GRADIENT_NORM.name

    def results(partial: float) -> dict:
        numbers = {"m = 20": partial, "m = 100": 1.0, "n = 20": 4.0, "n = 100": 2.0}
        return {label: {seed: Result({name: value})} for label, value in numbers.items() for seed in (0,)}

    claim = LargerGap(GRADIENT_NORM, ("m = 20", "m = 100"), ("n = 20", "n = 100"))
    assert judge(claim, results(3.0)).agrees is True and judge(claim, results(1.5)).agrees is False
    assert "m = 20 over m = 100 3.00; n = 20 over n = 100 2.00" in judge(claim, results(3.0)).evidence


def test_quantiles_are_those_of_the_tables() -> None:
    table = {(0.95, 1): 12.7062, (0.95, 2): 4.3027, (0.95, 9): 2.2622, (0.99, 4): 4.6041, (0.999, 30): 3.6460}
    for (level, freedom), value in table.items():
        assert quantile(level, freedom) == pytest.approx(value, abs=1e-4)
        assert probability(value, freedom) == pytest.approx(level, abs=1e-4)
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
