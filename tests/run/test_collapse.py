"""Runs that learn and then collapse say so once."""

from __future__ import annotations

import pytest

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
    ],
)
def test_what_counts_as_a_collapse(key: str, values: list[float | None], expected: bool) -> None:
    history = [{"round": number + 1, key: value} for number, value in enumerate(values)]
    assert (collapse(history) is not None) == expected
