"""Costs to the accuracy that dense references set."""

from __future__ import annotations

import pytest

from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import LAST_FIVE
from laconic.reproduce.study import Study
from laconic.reproduce.tables import grid
from laconic.reproduce.targets import fewest_bytes, goals

STUDY = Study("two", Experiment("", {}), measures=(LAST_FIVE,), references=("good", "weak"), chance=0.1, goals=(0.5,))


def curve(accuracies: list[float], bytes_: int) -> dict[str, list[float]]:
    rounds = [*range(1, len(accuracies) + 1)]
    traffic = [bytes_ * round_ for round_ in rounds]
    return {
        **{"round": rounds, "accuracy": accuracies, "gradients": [1e5 * round_ for round_ in rounds]},
        **{"bytes_up": traffic, "bytes_down": traffic, "simulated_seconds": rounds},
    }


RISING = [0.1, 0.3, 0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8]
DATA = {
    "runs": {
        "good": {"seeds": [1, 2], "curves": [curve(RISING, 1_000_000), curve(RISING, 3_000_000)]},
        "weak": {"seeds": [1, 2], "curves": [curve([0.2] * 10, 10)] * 2},
        "small": {"seeds": [1, 2], "curves": [curve(RISING, 20_000), curve(RISING, 20_000)]},
        "never": {"seeds": [1, 2], "curves": [curve(RISING, 1), curve([0.2] * 10, 1)]},
    }
}


def test_the_best_reference_sets_the_targets() -> None:
    assert goals(STUDY, DATA) == pytest.approx([0.79, 0.1 + 0.9 * 0.7, 0.5])


def test_the_denominator_is_the_reference_with_the_fewest_bytes_that_is_there() -> None:
    # The weak one has fewer bytes and never gets there. The mean of five is 0.79 in the ninth evaluation.
    assert fewest_bytes(STUDY, DATA, 0.79) == pytest.approx(9 * 2 * 2_000_000)


def test_the_table_has_the_byte_ratio_with_the_spread() -> None:
    table = grid(STUDY, DATA)
    good, _, small, never = (dict(zip(table.head, row, strict=True)) for row in table.rows)
    assert small["byte ratio to 79.0 %"] == "100.0 ± 0.0"
    assert never["uplink MB to 79.0 %"] == "not reached", "one of two seeds is not there"
    assert good["uplink MB to 79.0 %"] == "18.0 ± 12.7" and good["rounds to 79.0 %"] == "9 ± 0"
