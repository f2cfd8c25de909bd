"""How a study's runs are started, continued and read."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from laconic.cli.view import LiveView
from laconic.reproduce import document
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import FINAL
from laconic.reproduce.runner import collect, curves
from laconic.reproduce.study import Short, Study
from laconic.reproduce.tables import command, grid
from tests.reproduce.test_queue import timeless

COMMON = (
    "--dataset digits --model logistic --clients 10 --participants 3 --local-steps 2 --strategy loop --threads 1 "
    "--eval-every 1"
)
STUDY = Study(
    "a small one",
    Experiment(
        COMMON, {"fed_avg": "--algorithm fed_avg", "a sign!": "--algorithm fed_cams --compressor sign"}, rounds=4
    ),
    measures=(FINAL,),
    short=Short(rounds=2, labels=("fed_avg",)),
    seeds=2,
)


def run(study: Study, mode: str, folder: Path) -> dict:
    return collect("small", study, mode, folder, LiveView(Console(quiet=True)))


def test_the_whole_goes_on_where_the_shortened_one_ended(tmp_path: Path) -> None:
    short = run(STUDY, "short", tmp_path / "runs")
    assert [*short["runs"]] == ["fed_avg"] and len(curves(short["runs"]["fed_avg"])) == 1
    assert [record["round"] for record in curves(short["runs"]["fed_avg"])[0]] == [1, 2]
    full = run(STUDY, "full", tmp_path / "runs")
    assert [*full["runs"]] == ["fed_avg", "a sign!"] and full["runs"]["fed_avg"]["seeds"] == [0, 1]
    assert timeless(full) == timeless(run(STUDY, "full", tmp_path / "other")), "continued and uninterrupted differ"
    assert {path.name for path in (tmp_path / "runs/small").iterdir()} == {
        *("fed_avg", "fed_avg-seed-1", "a-sign-", "a-sign--seed-1")
    }
    # What is longer than was asked for is cut; what is finished and was not asked for is shown, too.
    again = run(STUDY, "short", tmp_path / "runs")
    assert curves(again["runs"]["fed_avg"]) == curves(short["runs"]["fed_avg"])
    assert [*again["runs"]] == ["fed_avg", "a sign!"]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    run(STUDY, "short", tmp_path)
    metrics = tmp_path / "small/fed_avg/metrics.jsonl"
    lines = [json.loads(line) | {"accuracy": 0.125} for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = run(STUDY, "short", tmp_path)
    assert data["runs"]["fed_avg"]["curves"][0]["accuracy"] == [0.125, 0.125]


def test_runs_of_other_settings_on_disk_are_not_read(tmp_path: Path) -> None:
    """A study may have changed since its runs were made."""

    def collected(common: str, own: str, rounds: int = 2) -> dict:
        study = Study("changed", Experiment(common, {"a": f"--algorithm fed_avg {own}"}, rounds=rounds))
        return run(study, "full", tmp_path)["runs"]["a"]["curves"][0]

    first = collected(COMMON, "--local-lr 0.5")
    slow = collected(COMMON, "--local-lr 1e-6")
    assert slow["accuracy"] != first["accuracy"]
    longer = collected(f"{COMMON} --batch-size 4", "--local-lr 0.5", rounds=3)
    assert longer["accuracy"][:2] != slow["accuracy"] and longer["gradients"][0] < slow["gradients"][0]
    assert collected(f"{COMMON} --batch-size 4", "--local-lr 0.5", rounds=3) == longer, "read from disk"
    assert {path.name for path in (tmp_path / "small").iterdir()} == {"a", "a-earlier-1", "a-earlier-2"}


def test_a_finished_run_of_other_settings_is_not_shown(tmp_path: Path) -> None:
    run(STUDY, "full", tmp_path)
    runs = {"fed_avg": "--algorithm fed_avg", "a sign!": "--algorithm fed_cams --compressor sign --local-lr 0.01"}
    changed = replace(STUDY, experiment=Experiment(COMMON, runs, rounds=4))
    assert [*run(changed, "short", tmp_path)["runs"]] == ["fed_avg"]


def test_the_options_of_each_run_are_recorded(tmp_path: Path) -> None:
    runs = {"a": "--algorithm fed_avg --local-lr 0.5", "b": "--algorithm fed_avg"}
    study = Study("options", Experiment(COMMON, runs, rounds=2), measures=(FINAL,))
    data = run(study, "full", tmp_path)
    assert {label: each["options"] for label, each in data["runs"].items()} == runs
    assert command("options", study, data) == "Made by `laconic reproduce options --full --seeds 1`."
    changed = replace(study, experiment=Experiment(COMMON, runs | {"a": "--algorithm fed_avg"}, rounds=2))
    line = "Made by an earlier version of `laconic reproduce options --full --seeds 1`. "
    assert command("options", changed, data) == line + f"The options of `a` were `{runs['a']}`."


def test_the_best_rate_is_taken_and_one_that_diverges_is_not(tmp_path: Path) -> None:
    runs = {"fed_avg": "--algorithm fed_avg --local-lr {rate}"}
    experiment = Experiment(COMMON, runs, rounds=3, rates=("1e38", "0.1", "1e-9"), trial=2)
    data = run(Study("rates", experiment, measures=(FINAL,)), "full", tmp_path)
    assert data["runs"]["fed_avg"]["rate"] == "0.1"
    assert tomllib.loads((tmp_path / "small/fed_avg-0.1/config.toml").read_text())["method"]["local_lr"] == 0.1
    assert (tmp_path / "small/fed_avg-trial-1e38/diverged").exists()
    trials = data["runs"]["fed_avg"]["trials"]
    assert trials.keys() == {"1e38", "0.1", "1e-9"} and trials["1e38"] == "diverged"
    assert 1 >= trials["0.1"] > trials["1e-9"] >= 0


def test_server_rates_are_tried_with_local_rates_in_the_full_form(tmp_path: Path) -> None:
    # With a local rate of 1e-3, three rounds at the server's rate of 1 change little: 30 is better.
    runs = {"fed_avg": "--algorithm fed_avg --local-lr {rate}"}
    experiment = Experiment(COMMON, runs, rounds=3, rates=("1e-3", "1e-9"), server_rates=("30",), trial=3)
    study = Study("rates", experiment, measures=(FINAL,), short=Short(rounds=3))
    full = run(study, "full", tmp_path / "full")["runs"]["fed_avg"]
    assert (full["rate"], full["server_rate"]) == ("1e-3", "30")
    written = tomllib.loads((tmp_path / "full/small/fed_avg-1e-3-server-30/config.toml").read_text())
    assert (written["method"]["local_lr"], written["optimizer"]["server_lr"]) == (1e-3, 30)
    assert "server rate 30" in grid(study, run(study, "full", tmp_path / "full")).rows[0][0]
    assert "server_rate" not in run(study, "short", tmp_path / "short")["runs"]["fed_avg"]


def test_a_rate_that_diverges_after_its_trial_gives_way_to_the_next(tmp_path: Path) -> None:
    # Its rate grows out of all bounds: the trial of one round is well, the whole run is not.
    runs = {"fed_avg": "--algorithm fed_avg --local-lr {rate} --set method.local_schedule=step:1:5e19"}
    experiment = Experiment(COMMON, runs, rounds=3, rates=("0.1", "1e-30"), trial=1)
    data = run(Study("rates", experiment, measures=(FINAL,)), "full", tmp_path)
    assert (tmp_path / "small/fed_avg-0.1/diverged").exists()
    assert data["runs"]["fed_avg"]["rate"] == "1e-30"


def test_a_run_that_diverges_is_said_to(tmp_path: Path) -> None:
    experiment = Experiment(COMMON, {"wild": "--algorithm fed_avg --local-lr 1e38"}, rounds=3)
    study = Study("wild", experiment, measures=(FINAL,))
    data = run(study, "full", tmp_path)
    assert data["runs"]["wild"]["diverged"] is True
    assert "diverged" in grid(study, data).rows[0][0]


def test_data_survive_the_way_to_disk(tmp_path: Path) -> None:
    data = run(STUDY, "short", tmp_path / "runs")
    written = document.save("bytes-to-accuracy", STUDY, data, tmp_path)
    assert document.load("bytes-to-accuracy", tmp_path) == data
    assert {path.suffix for path in written} == {".json", ".svg", ".md"}
    assert "| [Laconic](reproductions/laconic.md) | 1 of 4 |" in (tmp_path / document.PAGE).read_text()
    page = (tmp_path / "reproductions/laconic.md").read_text()
    assert "Not run yet: `laconic reproduce fedamd-links`." in page and f"Setting: `{COMMON}`" in page
    del data["setting"]
    document.save("bytes-to-accuracy", STUDY, data, tmp_path)
    page = (tmp_path / "reproductions/laconic.md").read_text()
    assert f"Setting: `{COMMON}`" not in page
    assert "The setting of these runs was not recorded. The current setting is `--" in page


def test_each_seed_has_its_running_time(tmp_path: Path) -> None:
    data = run(STUDY, "full", tmp_path)
    for label, each in data["runs"].items():
        folder = "fed_avg" if label == "fed_avg" else "a-sign-"
        lines = [
            (tmp_path / "small" / name / "metrics.jsonl").read_text().splitlines()
            for name in (folder, f"{folder}-seed-1")
        ]
        assert each["seconds"] == [json.loads(line[-1])["seconds"] for line in lines] and min(each["seconds"]) > 0
    untimed = {"seeds": [0], "curves": data["runs"]["fed_avg"]["curves"][:1]}
    timed = data | {"runs": {"fed_avg": {**data["runs"]["fed_avg"], "seconds": [1800.0, None]}, "a sign!": untimed}}
    document.save("bytes-to-accuracy", STUDY, timed, tmp_path)
    assert (
        "Only 1 of the 3 runs recorded their running time: 0.5 hours in total" in (tmp_path / document.PAGE).read_text()
    )


def test_a_setting_may_have_more_rounds_in_full(tmp_path: Path) -> None:
    runs = {"fed_avg": "--algorithm fed_avg", "longer": "--algorithm fed_avg --rounds 6"}
    study = Study("one is longer", Experiment(COMMON, runs, rounds=4), measures=(FINAL,), short=Short(rounds=2))
    for mode, rounds in (("short", [2, 2]), ("full", [4, 6])):
        data = run(study, mode, tmp_path / mode)["runs"]
        assert [curves(data[label])[0][-1]["round"] for label in runs] == rounds
