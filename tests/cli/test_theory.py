"""`laconic theory`."""

from __future__ import annotations

import pytest

PROBLEM = ("--smoothness", 1, "--noise", 1, "--heterogeneity", 1, "--gap", 2, "--clients", 20, "--local-steps", 10)


def test_theory_prints_rates_bound_and_rounds(forked) -> None:
    command = ("theory", "fed_ef_sgd", *PROBLEM, "--compression-error", 0, "--rounds", 10_000, "--epsilon", 0.1)
    done = forked(*command)
    assert done.code == 0, done.stderr
    for text in ("Theorem 4.6 of Fed-EF", "1 / (2 K L b (C1 + 1))", "bound after 10,000 rounds", "rounds to 0.1"):
        assert text in done.stdout
    (found,) = forked(*command, "--json").json()["theorems"]
    assert found["server_lr"] == pytest.approx(200**0.5)
    assert found["local_lr_limit"] == pytest.approx(1 / (2 * 10 * 200**0.5 * 3))
    assert found["after"]["bound"] == pytest.approx(sum(found["after"]["terms"].values()))
    assert found["after"]["local_lr"] <= found["local_lr_limit"]
    assert 1 < found["to"]["rounds"] < 10_000


def test_without_rounds_and_epsilon_theory_prints_what_is_allowed(forked) -> None:
    done = forked("theory", "fed_ef_sgd", *PROBLEM, "--compression-error", 0.9)
    assert done.code == 0, done.stderr
    assert "local_lr a, at most" in done.stdout
    assert "rounds to" not in done.stdout.partition("Add --rounds")[0]
    assert "Add --rounds" in done.stdout


def test_an_error_that_is_not_reached_is_said(forked) -> None:
    done = forked("theory", "fed_sgd", *PROBLEM, "--compression-error", 0.5, "--epsilon", 0.01)
    assert done.code == 0, done.stderr
    assert "not reached: after 1e+12 rounds it is 0.08" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("scaffold",), "unknown algorithm with a theorem 'scaffold': allowed: fed_aa, fed_aca, fed_amd"),
        (("fed_cmas",), "unknown algorithm with a theorem 'fed_cmas': did you mean 'fed_cams'?"),
        (
            ("fed_cams", *PROBLEM),
            "theory fed_cams: also give --gradient-bound, --dimension, --compression-error, for Theorem",
        ),
        (
            ("fed_ef_sgd", *PROBLEM, "--compression-error", 1),
            "--compression-error 1: a number of at least 0 and below 1",
        ),
        (
            ("fed_ef_sgd", *PROBLEM, "--compression-error", 0, "--local-lr", 1),
            "--local-lr 1: Theorem 4.6 allows at most 0.00118",
        ),
        (
            ("fed_ef_ams", *PROBLEM, "--participants", 5),
            "no theorem for a non-convex objective and partial participation",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_errors_are_one_line(forked, arguments, message: str) -> None:
    done = forked("theory", *arguments)
    assert done.code == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
