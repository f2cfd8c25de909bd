"""Costs to the accuracy that dense references set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import LAST_FIVE
from laconic.reproduce.study import Study
from laconic.reproduce.tables import grid, grids
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


def test_each_target_has_a_table_with_the_fewest_bytes_first() -> None:
    tables = grids(STUDY, DATA)
    assert [table.title.split(":")[0] for table in tables] == ["Target 79.0 %", "Target 73.0 %", "Target 50.0 %"]
    small, good = (dict(zip(tables[0].head, row, strict=True)) for row in tables[0].rows)
    assert (small["algorithm"], small["byte ratio"]) == ("small", "100 ± 0")
    assert good["MB up"] == "18.0" and good["MB"] == "36.0 ± 25.5" and good["rounds"] == "9 ± 0"
    text = tables[0].markdown()
    assert text.startswith(
        "**Target 79.0 %: one point below the best dense method**\n\n| algorithm | final accuracy, % |"
    )


def test_runs_that_miss_a_target_are_named_below_its_table() -> None:
    note = "Not reached, with the final accuracy in %: never 50.0 ± 42.4 (reached with 1 of 2 seeds); weak 20.0 ± 0.0."
    assert grids(STUDY, DATA)[0].note == note and grids(STUDY, DATA)[0].markdown().endswith(f"|\n\n{note}")


def test_without_references_there_is_one_table_of_all_runs() -> None:
    runs = {label: run for label, run in DATA["runs"].items() if label not in STUDY.references}
    for study, data in ((STUDY, {"runs": runs}), (replace(STUDY, references=()), DATA)):
        (table,) = grids(study, data)
        assert table == grid(study, data) and len(table.rows) == len(data["runs"])
