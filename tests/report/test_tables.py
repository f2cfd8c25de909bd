"""The final table in a terminal: what collapsed, diverged or did not reach its target is in it."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from laconic.report.tables import outcome, ranked
from laconic.run.config import RunConfig
from laconic.run.driver import Finished, run_config
from laconic.run.target import Target


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    common = {"clients": 4, "participants": 2, "rounds": 5, "eval_every": 1, "model": "logistic", "threads": 1}
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    return run_config(RunConfig(**common), folder, label="sound", target=Target(0.01))


def collapsed(run: Finished, number: int) -> Finished:
    history = [record | ({"collapsed": "…"} if record["round"] == number else {}) for record in run.result.history]
    return replace(run, label="fallen", result=replace(run.result, history=history))


def test_a_collapse_and_a_divergence_are_in_the_table_and_last(run: Finished) -> None:
    table = outcome(
        [collapsed(run, 3), run], failed={"bad": "an update is not finite in round 2: try a smaller local_lr"}
    )
    assert table.columns[-1] == "state"
    assert [row[1] for row in table.rows] == ["sound", "fallen", "bad"] and [row[0] for row in table.rows] == [
        "1",
        "2",
        "",
    ]
    assert [row[-1] for row in table.rows] == ["", "collapsed in round 3", "diverged in round 2"]
    assert [group[0].label for group in ranked([collapsed(run, 3), run])] == ["sound", "fallen"]
    alone = outcome([], failed={"bad": "the model is not finite after round 7"})
    assert (alone.columns, alone.rows) == (["algorithm", "state"], [["bad", "diverged in round 7"]])


def test_a_table_of_sound_runs_has_no_such_column(run: Finished) -> None:
    assert "state" not in outcome([run]).columns


def test_names_and_units_are_whole_at_80_columns(run: Finished) -> None:
    """With seeds, and with an evaluation by client."""
    clients = {"client_accuracy": 0.71, "worst_client_accuracy": 0.42, "client_accuracy_spread": 0.11}
    personal = {"personal_accuracy": 0.8, "worst_personal_accuracy": 0.5}
    seeds = []
    for seed in range(3):
        history = [*run.result.history[:-1], run.result.history[-1] | clients | personal | {"accuracy": 0.5 + seed / 9}]
        config, result = run.config.model_copy(update={"seed": seed}), replace(run.result, history=history)
        seeds += [replace(run, label=label, config=config, result=result) for label in ("fed_cams_two_way", "fed_avg")]
    for runs in (seeds, [seed for seed in seeds if seed.label == "fed_avg"]):
        table = outcome(runs, width=80)
        assert table.captions and not any("spread" in caption for caption in table.captions)
        assert ("worst tenth" in table.columns) == any("worst tenth" in caption for caption in table.captions)
        console = Console(width=80, record=True, quiet=False, file=StringIO())
        console.print(table.rich())
        shown = console.export_text()
        assert all(text in shown for row in table.rows for text in row) and all(name in shown for name in table.columns)
    assert {"spread", "its worst tenth", "seconds"} <= {*outcome(seeds).columns}


def test_a_run_that_never_learned_is_flagged(run: Finished) -> None:
    history = [record | {"accuracy": 0.1} for record in run.result.history]
    poor = replace(run, label="poor", result=replace(run.result, history=history))
    assert [row[-1] for row in outcome([poor, run]).rows] == ["", "no better than chance"]
    assert outcome([poor, replace(run, label="poor")]).rows[0][-1] == "1 of 2 no better than chance"


def test_seeds_that_miss_the_target_are_counted(run: Finished) -> None:
    missed = replace(run, target=Target(0.999))
    assert outcome([missed]).rows[0].count("not reached") == 1
    # The fields of a dataclass say the target: one seed reached it, the other did not.
    both = outcome([run, replace(run, result=replace(run.result, history=run.result.history[:2]))])
    assert "not reached (1 of 2)" in both.rows[0]
