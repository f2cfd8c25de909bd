"""Runs that learn and then collapse say so once."""

from __future__ import annotations

import numpy as np
import pytest
from torch import nn

import laconic
from laconic.run.collapse import collapse

# After 10 rounds the rate is 300 times larger.
COLLAPSING = {"model": "mlp:16", "data": "digits", "local_schedule": "step:10:300", "participants": 5, "eval_every": 1}


def test_a_collapse_is_said_once_and_stays_in_the_records() -> None:
    with pytest.warns(UserWarning, match=r"collapsed in round 1\d: ") as warned:
        result = laconic.simulate("fed_avg", rounds=20, local_lr=0.1, **COLLAPSING)
    assert len(warned) == 1
    (record,) = [record for record in result.history if "collapsed" in record]
    assert record["round"] > 10
    assert str(warned[0].message) == record["collapsed"] == result.collapsed
    assert repr(result).endswith(f"{result.collapsed}>")


def test_a_run_that_learns_says_nothing(recwarn: pytest.WarningsRecorder) -> None:
    result = laconic.simulate("fed_avg", "mlp:16", "digits", rounds=30, participants=5, eval_every=1, local_lr=0.1)
    assert not any("collapsed" in record for record in result.history)
    assert not recwarn.list and result.collapsed is None


@pytest.mark.parametrize(
    ("key", "values", "expected"),
    [
        ("accuracy", [0.1, 0.05, 0.1], False),
        ("accuracy", [0.6, 0.7, 0.36], False),
        ("accuracy", [0.6, 0.7, 0.34], True),
        ("training_loss", [2.0] * 5 + [1.0] * 5 + [1.4] * 5, False),
        ("training_loss", [10.0] * 5 + [0.1] * 5 + [0.3] * 5, False),
        ("training_loss", [10.0] * 5 + [0.1] * 5 + [9.0] * 5, True),
        ("training_loss", [2.0, 0.1, None, 3.0], False),
        ("training_loss", [2.0, 0.001, 1.9], False),
        ("training_loss", [2.0, float("inf")], True),
        ("training_loss", [180.0, 30.0, 6e5], True),
    ],
)
def test_what_counts_as_a_collapse(key: str, values: list[float | None], expected: bool) -> None:
    history = [{"round": number + 1, key: value} for number, value in enumerate(values)]
    assert (collapse(history) is not None) == expected


def test_the_lowest_loss_is_that_of_a_single_round() -> None:
    losses = [10.0] * 5 + [0.1, 0.3, 0.3, 0.3, 0.3] + [9.0] * 5
    reason = collapse([{"round": number + 1, "training_loss": loss} for number, loss in enumerate(losses)])
    assert reason is not None and "rose from 0.1 to 9, the mean of 5 rounds" in reason


def test_a_short_run_that_explodes_says_so() -> None:
    inputs = np.random.default_rng(0).normal(5, 1, (60, 4)).astype(np.float32)
    with pytest.warns(laconic.LaconicWarning, match=r"collapsed in round 2: the training loss rose from"):
        laconic.simulate("fed_avg", nn.Linear(4, 1), [(inputs, inputs.sum(1) / 3)], rounds=3, local_lr=0.02)
