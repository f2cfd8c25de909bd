"""`laconic sweep` and `laconic advise`."""

from __future__ import annotations

import io
import json
import tomllib
from pathlib import Path
from statistics import fmean, stdev

import pytest
from rich.console import Console

from laconic import Optimizer, part
from laconic.cli.view import SearchView
from laconic.run.config import load_config
from laconic.run.target import Reached
from laconic.search.advise import ADAPTIVE_RATES, advise, candidates
from laconic.search.score import Score, mean_of
from laconic.search.space import PRESETS, Range, grid, parse_choice, space_of

GRID = ("--try", "local_lr=0.000001,0.1", "--try", "server_lr=0.5,1")


def test_a_grid_ranks_every_combination_and_writes_the_best(forked, small, tmp_path: Path) -> None:
    done = forked("sweep", "--algorithm", "fed_avg", *small, *GRID, "--rounds", 4, "--out", "s", "--json")
    assert done.code == 0, done.stderr
    runs = done.json()["runs"]
    assert len(runs) == 4 and runs[0]["settings"] == {"local_lr": 0.1, "server_lr": 1}
    accuracies = [run["accuracy"] for run in runs]
    assert accuracies == sorted(accuracies, reverse=True) and accuracies[0] > accuracies[-1]
    assert (tmp_path / "s/report.html").exists()
    best = tomllib.loads((tmp_path / "s/best.toml").read_text())
    assert best["method"]["local_lr"] == 0.1 and best["optimizer"]["server_lr"] == 1
    # The winner's config gives the winner's model.
    again = forked("run", "s/best.toml", "--out", "again", "--json").json()
    metrics = [json.loads(line) for line in (tmp_path / runs[0]["run_dir"] / "metrics.jsonl").read_text().splitlines()]
    assert again["accuracy"] == metrics[-1]["accuracy"]


def test_a_stopped_sweep_goes_on_and_runs_nothing_twice(forked, small, tmp_path: Path) -> None:
    command = ("sweep", "--algorithm", "fed_avg", *small, *GRID, "--rounds", 3, "--out", "s", "--json")
    assert forked(*command).code == 0
    first = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/*/model.safetensors")}
    assert len(first) == 4
    # As after a kill: one run is gone, and nothing was concluded.
    gone = next(iter(first))
    for path in gone.parent.iterdir():
        path.unlink()
    gone.parent.rmdir()
    (tmp_path / "s/best.toml").unlink()
    refused = forked(*command)
    assert refused.code == 2 and "--resume" in refused.stderr
    done = forked("sweep", "--out", "s", "--resume", "--json")
    assert done.code == 0, done.stderr
    assert len(done.json()["runs"]) == 4 and (tmp_path / "s/best.toml").exists()
    for path, before in first.items():
        assert (path.stat().st_mtime_ns == before) == (path != gone)
    longer = forked("sweep", "--out", "s", "--resume", "--rounds", 4, "--json")
    assert longer.code == 0, longer.stderr
    for run in longer.json()["runs"]:
        assert len((tmp_path / run["run_dir"] / "metrics.jsonl").read_text().splitlines()) == 4
    other = forked("sweep", "--out", "s", "--resume", "--participants", 2)
    assert other.code == 2 and "participants" in other.stderr


def test_optuna_goes_on_with_the_settings_that_it_had_asked_for(forked, small, tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="the extra `sweep` is not installed")
    space = ("--try", "local_lr=0.001..1", "--try", "server_lr=0.1,1")
    done = forked(
        "sweep", "--algorithm", "fed_avg", *small, *space, "--optuna", 3, "--rounds", 2, "--out", "s", "--json"
    )
    assert done.code == 0, done.stderr
    asked = [json.loads(line) for line in (tmp_path / "s/trials.jsonl").read_text().splitlines()]
    assert len(asked) == 3 and all(0.001 <= each["local_lr"] <= 1 and each["server_lr"] in (0.1, 1) for each in asked)
    more = forked("sweep", "--out", "s", "--resume", "--optuna", 4, "--json")
    assert more.code == 0, more.stderr
    again = [json.loads(line) for line in (tmp_path / "s/trials.jsonl").read_text().splitlines()]
    assert again[:3] == asked and len(again) == 4
    whole = forked(
        "sweep", "--algorithm", "fed_avg", *small, *space, "--optuna", 4, "--rounds", 2, "--out", "w", "--json"
    )
    assert whole.code == 0, whole.stderr
    assert (tmp_path / "w/trials.jsonl").read_text() == (tmp_path / "s/trials.jsonl").read_text(), "as if never stopped"
    assert len(more.json()["runs"]) == 4


def test_seeds_are_run_for_each_setting_and_judged_by_their_mean(forked, small, tmp_path: Path) -> None:
    command = ("sweep", "--algorithm", "fed_avg", *small, "--try", "local_lr=0.01,0.1", "--rounds", 3, "--seed", 4)
    alone = forked(*command, "--out", "s", "--json").json()["runs"]
    done = forked("sweep", "--out", "s", "--resume", "--seeds", 3, "--json")
    assert done.code == 0, done.stderr
    runs = done.json()["runs"]
    assert [len(run["seeds"]) for run in runs] == [3, 3] and len([*tmp_path.glob("s/*/model.safetensors")]) == 6
    for run in runs:
        each = [one["accuracy"] for one in run["seeds"]]
        assert run["accuracy"] == pytest.approx(fmean(each)) and run["accuracy_spread"] == pytest.approx(stdev(each))
        seeds = [tomllib.loads((tmp_path / one["run_dir"] / "config.toml").read_text())["seed"] for one in run["seeds"]]
        assert seeds == [4, 5, 6] and len({*each}) > 1
        (before,) = [one for one in alone if one["settings"] == run["settings"]]
        assert each[0] == before["accuracy"], "the first seed's run is the one that was there"
    shown = forked("sweep", "--out", "s", "--resume")
    assert "±" in shown.stdout and "of 3 seeds" in shown.stdout
    assert tomllib.loads((tmp_path / "s/best.toml").read_text())["seed"] == 4


def test_a_setting_has_reached_the_target_when_all_its_seeds_have() -> None:
    def scored(rounds: int | None) -> Score:
        at = None if rounds is None else Reached(rounds, 10 * rounds, 0.5, None)
        return Score(False, 0.5, None, at, at and at.bytes)

    mean = mean_of([scored(3), scored(6)])
    assert (mean.at, mean.cost, mean.loss) == (Reached(4, 45, 0.5, None), 45.0, None)
    assert mean_of([scored(3), scored(None)]).cost is None
    assert mean_of([scored(3), Score(True, None, None, None, None)]).diverged


def test_a_target_ranks_by_what_it_costs(forked, small) -> None:
    command = ("sweep", "--algorithm", "fed_avg", *small, "--try", "local_lr=0.000001,0.1,1", "--rounds", 8)
    done = forked(*command, "--eval-every", 1, "--target", 50, "--rank-by", "rounds", "--out", "s", "--json")
    assert done.code == 0, done.stderr
    rounds = [run["rounds_to_target"] for run in done.json()["runs"]]
    reached = [each for each in rounds if each is not None]
    assert reached == sorted(reached) and rounds[: len(reached)] == reached and rounds[-1] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--try local_lr=0.1,0.03"),
        (("--try", "local_lr"), "key=value"),
        (("--try", "local_lr=0.1..1"), "--optuna"),
        (("--try", "local_lr=1..0.1", "--optuna", "2"), "lower to a higher number"),
        (("--try", "local_rate=0.1"), "local_rate"),
        (("--preset", "fedcam"), "fedcams"),
        (("--try", "local_lr=0.1", "--rank-by", "byte"), "bytes"),
        (("--try", "seed=0,1", "--seeds", "2"), "--seeds"),
    ],
)
def test_a_mistake_is_one_line(forked, arguments, said) -> None:
    done = forked("sweep", *arguments, "--out", "s")
    assert done.code == 2 and len(done.stderr.strip().splitlines()) == 1 and said in done.stderr


def test_presets_are_the_papers_grids() -> None:
    sizes = {name: len([*grid(space_of([], name))]) for name in PRESETS}
    assert sizes == {"fedamd": 18, "fedcams": 20, "fedcams-adaptive": 120, "fed-ef": 35}
    assert space_of(["local_lr=0.5"], "fedcams")["local_lr"] == (0.5,)
    assert parse_choice("optimizer.beta2=0.9..0.999")[1] == Range(0.9, 0.999)


FEW = ("fed_avg", "fed_ef_sgd:compressor=sign,downlink=mirrored,local_lr=0.1", "fed_cams:local_lr=0.1,server_lr=0.1")
ADVISE = (*FEW, "--bandwidth-up", "100kbit", "--bandwidth-down", "100kbit", "--clients", "10")


def test_advice_is_the_soonest_on_the_network(forked, small, tmp_path: Path) -> None:
    done = forked("advise", *ADVISE, *small, "--rounds", 10, "--target", 30, "--out", "a", "--json")
    assert done.code == 0, done.stderr
    found = done.json()
    times = [run["simulated_seconds_to_target"] for run in found["runs"]]
    reached = [each for each in times if each is not None]
    assert reached and reached == sorted(reached) and times[: len(reached)] == reached
    assert len(times) == 5
    # On a slow network sending everything cannot win.
    assert found["advice"]["algorithm"] == "fed_ef_sgd"
    config = tomllib.loads((tmp_path / "a/advice.toml").read_text())
    assert config["algorithm"] == found["advice"]["algorithm"] and (tmp_path / "a/report.html").exists()


def test_the_better_third_goes_on_for_longer(forked, small, tmp_path: Path) -> None:
    command = ("advise", *ADVISE, *small, "--rounds", 30, "--target", 60, "--out", "a")
    done = forked(*command)
    assert done.code == 0, done.stderr
    lengths = [len(path.read_text().splitlines()) for path in tmp_path.glob("a/*/metrics.jsonl")]
    assert sorted({*lengths}) == [10, 30] and lengths.count(30) == 2 and lengths.count(10) == 3
    assert "Recommended: fed_" in done.stdout and "laconic run" in done.stdout
    said = done.stderr.splitlines()
    assert "--latency is 0" in said[0] and said[1].startswith("runs are written to a;")
    assert "rung 1 of 2: 5 settings, 10 rounds each" in said and "rung 2 of 2: 2 settings, 30 rounds each" in said
    places = [line.split()[0] for line in said if line.startswith("  ") and "/" in line.split()[0]]
    assert places == ["1/5", "2/5", "3/5", "4/5", "5/5", "1/2", "2/2"], "which trial of how many"
    page = (tmp_path / "a/report.html").read_text()
    for name in {path.parent.name.partition("-")[2] for path in tmp_path.glob("a/*/metrics.jsonl")}:
        assert f'"algorithm":"{name}"' in page, "the evidence has what went out, too"
    again = forked(*command, "--resume")
    assert again.code == 0 and again.stdout == done.stdout and "1/5" not in again.stderr


def test_the_bar_of_a_search_goes_from_nothing_to_the_whole_of_it(tmp_path: Path) -> None:
    seen: list[float] = []

    class Looking(SearchView):
        def __getattribute__(self, name: str) -> object:
            if name.startswith("on_") and self.progress is not None:
                seen.append(self.progress.tasks[0].percentage)
            return super().__getattribute__(name)

    view = Looking(Console(file=io.StringIO(), force_terminal=True, width=100))
    base = {"model": "logistic", "strategy": "loop", "participants": 3, "local_steps": 2, "threads": 1, "rounds": 30}
    base |= {"bandwidth_up": "1Mbit"}
    advise(
        lambda each: load_config(None, base, each),
        candidates([{"algorithm": "fed_avg"}]),
        tmp_path,
        view,
        target=None,
    )
    assert view.progress is not None and view.progress.tasks[0].percentage == 100
    assert seen == sorted(seen) and len({*seen}) > 30
    view.end()
    assert view.progress is None


def test_without_a_choice_every_recipe_is_tried_at_several_rates() -> None:
    settings = candidates()
    assert len(settings) == 54 and len({each["algorithm"] for each in settings}) == 7
    assert {each["server_lr"] for each in settings if each["algorithm"] == "fed_avg"} == {1.0}
    for each in settings:
        load_config(None, each).build_algorithm()


def test_an_optimizer_of_ones_own_is_tried_at_the_rates_that_it_asks_for() -> None:
    class Plain(Optimizer):
        server_lr: float = 1.0

    class Scaled(Plain):
        adaptive = True

    part("optimizer", "plain")(Plain)
    part("optimizer", "scaled")(Scaled)
    for optimizer, rates in (("plain", {1.0}), ("scaled", {*ADAPTIVE_RATES})):
        settings = candidates([{"algorithm": "fed_avg", "optimizer": optimizer}])
        assert {setting["server_lr"] for setting in settings} == rates


def test_advice_needs_a_network(forked) -> None:
    done = forked("advise", "--dataset", "digits")
    assert done.code == 2 and "--bandwidth-up" in done.stderr
    done = forked("advise", *ADVISE, "--local-lr", 0.1)
    assert done.code == 2 and "--local-lr" in done.stderr


def test_advise_needs_enough_rounds_to_judge(laconic, small) -> None:
    done = laconic("advise", *ADVISE, *small, "--rounds", 3)
    assert done.code == 2 and "--rounds 3: 5 or more" in done.stderr
