"""`laconic compare`, `laconic tune` and the listings."""

from __future__ import annotations

import io
import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from laconic import data, models
from laconic.algorithms.recipes import RECIPES
from laconic.cli import listings, reproductions


def test_compare_ranks_runs_on_the_same_data_from_the_same_model(forked, small, tmp_path: Path) -> None:
    tiny = "fed_avg:local_lr=0.000001"
    command = ("compare", tiny, "fed_avg", "fed_adam", *small, "--rounds", 4, "--out", "all", "--json")
    done = forked(*command)
    assert done.code == 0, done.stderr
    runs = done.json()["runs"]
    assert {run["label"] for run in runs} == {tiny, "fed_avg", "fed_adam"}
    assert {run["algorithm"] for run in runs} == {"fed_avg", "fed_adam"}
    accuracies = [run["accuracy"] for run in runs]
    assert accuracies == sorted(accuracies, reverse=True)
    assert runs[-1]["label"] == tiny
    configs = [tomllib.loads((tmp_path / run["run_dir"] / "config.toml").read_text()) for run in runs]
    for key in ("dataset", "partition", "clients", "seed", "model", "participants"):
        assert len({config[key] for config in configs}) == 1
    # Alone and beside others a run is the same: same data, same draws, same initial model.
    for run in runs:
        alone = forked("run", tmp_path / run["run_dir"], "--out", f"alone-{run['model_sha256'][:8]}", "--json").json()
        assert alone["model_sha256"] == run["model_sha256"]


def test_compare_starts_all_from_the_same_model(forked, small, tmp_path: Path) -> None:
    # A client rate that moves nothing in float32 leaves each run's model at its start.
    labels = [f"{name}:local_lr=1e-30" for name in ("fed_avg", "fed_sgd", "fed_adagrad")]
    runs = forked("compare", *labels, *small, "--rounds", 1, "--out", "all", "--json").json()["runs"]
    assert len({run["model_sha256"] for run in runs}) == 1
    other = forked("compare", *labels[:1], *small, "--rounds", 1, "--seed", 1, "--out", "b", "--json").json()["runs"]
    assert other[0]["model_sha256"] != runs[0]["model_sha256"]


def test_settings_of_one_algorithm_win_over_the_shared_ones(forked, small, tmp_path: Path) -> None:
    label = "fed_ams:server_lr=0.5,optimizer.beta2=0.75,local_epochs=1"
    done = forked("compare", "fed_ams", label, *small, "--server-lr", 0.1, "--rounds", 1, "--out", "all", "--json")
    assert done.code == 0, done.stderr
    configs = {
        run["label"]: tomllib.loads((tmp_path / run["run_dir"] / "config.toml").read_text())
        for run in done.json()["runs"]
    }
    assert configs["fed_ams"]["optimizer"]["server_lr"] == 0.1
    assert configs["fed_ams"]["method"]["local_steps"] == 2
    assert configs[label]["optimizer"]["server_lr"] == 0.5
    assert configs[label]["optimizer"]["beta2"] == 0.75
    assert configs[label]["method"]["local_epochs"] == 1 and "local_steps" not in configs[label]["method"]


def test_the_table_of_a_comparison_names_every_run_and_the_target(forked, small) -> None:
    done = forked("compare", "fed_avg", "fed_sgd", *small, "--rounds", 1, "--target", 0.99, "--out", "all")
    assert done.code == 0
    assert "both to 99 %" in done.stdout and "not reached" in done.stdout
    assert "fed_avg" in done.stdout and "fed_sgd" in done.stdout
    assert "Runs are in all" in done.stdout


def test_a_run_that_diverges_is_reported_and_the_others_go_on(forked, small, tmp_path: Path) -> None:
    command = ("compare", "fed_avg:local_lr=1e38", "fed_avg", *small, "--rounds", 3, "--out", "all", "--json")
    done = forked(*command)
    assert done.code == 0, done.stderr
    first, second = done.json()["runs"]
    assert first["label"] == "fed_avg" and first["accuracy"] > 0
    assert "diverged" in second["error"] and second["label"] == "fed_avg:local_lr=1e38"
    (data,) = re.findall(r'<script id="data"[^>]*>(.*?)</script>', (tmp_path / "all/report.html").read_text())
    assert [(run["diverged"], run["finished"]) for run in json.loads(data)["runs"]] == [(True, False), (False, True)]


def test_an_interrupted_comparison_goes_on_with_its_own_settings(forked, small, tmp_path: Path) -> None:
    settings = ("--seed", 7, "--clients", 6, "--partition", "dirichlet:0.5", "--dtype", "float64", "--eval-every", 1)
    whole = forked("compare", "fed_avg", "fed_adam", *small, *settings, "--rounds", 3, "--out", "whole", "--json")
    assert forked("compare", "fed_avg", *small, *settings, "--rounds", 2, "--out", "part").code == 0
    done = forked("compare", "fed_avg", *small, *settings, "--rounds", 3, "--out", "part", "--resume", "--json")
    assert done.code == 0, done.stderr
    wanted = {run["label"]: run["model_sha256"] for run in whole.json()["runs"]}
    assert done.json()["runs"][0]["model_sha256"] == wanted["fed_avg"]
    # What is not said again is taken from the run, too.
    assert forked("compare", "fed_avg", *small, *settings, "--rounds", 2, "--out", "brief").code == 0
    done = forked("compare", "fed_avg", "--rounds", 3, "--out", "brief", "--resume", "--json")
    assert done.code == 0, done.stderr
    assert done.json()["runs"][0]["model_sha256"] == wanted["fed_avg"]


def test_a_comparison_of_links_goes_on_when_its_command_is_repeated(forked, small) -> None:
    # Words that mean something else in each recipe: memory, and a compressor that does not say its groups.
    labels = ("fed_com:compressor=qsgd:4,norm=max", "fed_ef_sgd", "fed_nlaa:uplink=accelerated")
    command = ("compare", *labels, *small, "--memory", "--compressor", "sign", "--clients", 6)
    whole = forked(*command, "--rounds", 4, "--out", "whole", "--json")
    assert whole.code == 0, whole.stderr
    assert forked(*command, "--rounds", 2, "--out", "part").code == 0
    done = forked(*command, "--rounds", 4, "--out", "part", "--resume", "--json")
    assert done.code == 0, done.stderr
    wanted = {run["label"]: run["model_sha256"] for run in whole.json()["runs"]}
    assert {run["label"]: run["model_sha256"] for run in done.json()["runs"]} == wanted
    assert len({*wanted.values()}) == 3


def test_a_comparison_goes_on_with_another_spelling_of_its_compressor(forked, small) -> None:
    command = ("compare", "fed_ef_sgd", *small, "--rounds", 1, "--out", "part")
    assert forked(*command, "--compressor", "top_k:1/64").code == 0
    done = forked(*command, "--compressor", "top_k:0.015625", "--resume")
    assert done.code == 0, done.stderr
    refused = forked(*command, "--compressor", "sign", "--participants", 2, "--resume")
    assert refused.code == 2
    assert refused.stderr.startswith("error: resume: compressor = 'sign")
    assert "participants = 2, but the comparison in 'part' was started with compressor = 'top_k:" in refused.stderr


def test_seeds_give_mean_and_spread_and_more_can_be_added(forked, small, tmp_path: Path) -> None:
    command = ("compare", "fed_avg", "fed_sgd", *small, "--rounds", 2, "--seed", 3, "--out")
    assert forked(*command, "all").code == 0
    more = forked("compare", "fed_avg", "fed_sgd", "--out", "all", "--resume", "--seeds", 2)
    assert more.code == 0, more.stderr
    assert "mean ± standard deviation over 2 seeds" in more.stdout
    # What is not said again is taken from the comparison.
    runs = forked("compare", "fed_avg", "fed_sgd", "--out", "all", "--resume", "--json").json()["runs"]
    whole = forked(*command, "whole", "--seeds", 2, "--json").json()["runs"]
    assert [run["model_sha256"] for run in runs] == [run["model_sha256"] for run in whole]
    assert sorted(Path(run["run_dir"]).name for run in runs) == [
        "fed_avg",
        "fed_avg-seed-4",
        "fed_sgd",
        "fed_sgd-seed-4",
    ]
    alone = forked(
        "run", "--algorithm", "fed_avg", *small, "--rounds", 2, "--seed", 4, "--out", "alone", "--json"
    ).json()
    (same,) = [run for run in whole if run["run_dir"].endswith("fed_avg-seed-4")]
    assert alone["model_sha256"] == same["model_sha256"]
    accuracies = [run["accuracy"] for run in whole if run["label"] == "fed_avg"]
    assert f"{50 * sum(accuracies):.2f} ± {100 * abs(accuracies[0] - accuracies[1]) / 2**0.5:.2f} %" in more.stdout


def test_tune_writes_a_config_that_runs(forked, small, tmp_path: Path) -> None:
    done = forked("tune", "--model", "logistic", "--participants", 3, "--rounds", 2, "--seed", 4, "--out", "tuned.toml")
    assert done.code == 0, done.stderr
    assert "laconic run tuned.toml" in done.stdout
    tuned = tomllib.loads((tmp_path / "tuned.toml").read_text())
    assert tuned["numerics"]["strategy"] in ("compiled", "loop", "stacked", "vmap")
    assert (tuned["rounds"], tuned["seed"], tuned["participants"]) == (2, 4, 3)
    ran = forked("run", "tuned.toml", "--out", "run", "--json")
    assert ran.code == 0, ran.stderr
    assert ran.json()["rounds"] == 2
    assert tomllib.loads((tmp_path / "run/config.toml").read_text())["numerics"] == tuned["numerics"]


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("algorithms", [*RECIPES]),
        ("datasets", [info.name for info in data.datasets()]),
        ("models", [info.name for info in models.models()]),
    ],
)
def test_listings_print_every_name(forked, command: str, names: list[str]) -> None:
    done = forked(command)
    assert done.code == 0
    words = {word for line in done.stdout.splitlines() for word in line.split()[:1]}
    assert set(names) <= words


def test_the_algorithms_fit_a_screen_with_paper_and_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(width: int) -> list[str]:
        text = io.StringIO()
        monkeypatch.setattr(listings, "stdout", Console(file=text, width=width))
        listings.list_algorithms(None)
        return text.getvalue().splitlines()

    lines = listed(80)
    assert len(lines) <= 50 and max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert "McMahan 2017" in rows["fed_avg"] and "Federated averaging" in rows["fed_avg"]
    assert "Li 2023" in rows["fed_cams_two_way"] and "FedBNLACA " in rows["fed_baca"]
    wide = listed(100)
    assert len(wide) <= 50 and max(map(len, wide)) <= 100
    assert any("fed_cams_two_way" in line and line.rstrip().endswith("compressed, ams, broadcast") for line in wide)
    assert not any("…" in line for line in (*lines, *wide)), "nothing is cut off"


@pytest.mark.parametrize("command", ["run", "compare", "sweep"])
def test_the_help_has_room_for_its_sentences_at_80_columns(forked, command: str) -> None:
    done = forked(command, "--help", COLUMNS="80")
    lines = done.stdout.splitlines()
    titles = [line.strip("╭─╮ ") for line in lines if line.startswith("╭")]
    assert titles[-1].startswith("Output (docs/")
    assert all("(docs/" in title for title in titles if title.startswith(("Model", "Server", "Network")))
    # The sentences begin in the left two thirds.
    starts = [re.search(r"Learning rate of the (clients|server)|Accuracy in %|Floating", line) for line in lines]
    assert all(start.start() < 55 for start in starts if start)
    assert not any("…" in line and "mean…" in line for line in lines)


def test_lists_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(command: Callable[[], None], width: int = 80) -> str:
        text = io.StringIO()
        for module in (listings, reproductions):
            monkeypatch.setattr(module, "stdout", Console(file=text, width=width))
        command()
        return " ".join(text.getvalue().split())

    assert "source" not in shown(listings.list_models) and "source" in shown(listings.list_models, 120)
    assert "With parts from 100 columns on" in shown(lambda: listings.list_algorithms(None))
    assert not re.search(r"\d{5}", shown(listings.list_datasets)), "thousands are separated"
    studies = shown(lambda: reproductions.stdout.print(reproductions._list()))
    assert studies.count("FedAMD fedamd-table2 ") == 1 and "Table 2: costs to 75 %" in studies, "a paper is a heading"
    assert not re.search(r"\b(\d+) of \1 (settings|learning)", studies), "only what is shortened"


def test_one_algorithm_is_shown_in_detail(forked) -> None:
    done = forked("algorithms", "fed_cams:server_lr=0.5")
    shown = " ".join(done.stdout.split())
    assert done.code == 0, done.stderr
    for text in (
        "Wang et al., ICML 2022, Algorithm 2.",
        "uplink compressed C(u), for unbiased compressors (FedCOM, FedPAQ); with memory C(u + e), error feedback.",
        "method.local_lr 0.05 --local-lr",
        "uplink.compressor top_k:1/64 --compressor",
        "uplink.granularity model --granularity",
        "uplink.memory True --memory",
        "optimizer.server_lr 0.5 --server-lr",
        "optimizer.beta2 0.99 --set optimizer.beta2=…",
        "weighting uniform --weighting",
    ):
        assert text in shown, shown
    wrong = forked("algorithms", "fed_cas")
    assert wrong.code == 2 and "did you mean 'fed_cams'?" in wrong.stderr


def test_the_help_has_the_defaults(forked) -> None:
    shown = " ".join(forked("run", "--help", COLUMNS="200").stdout.replace("│", " ").split())
    for text in (
        "Number of rounds. Default: 100.",
        "Learning rate of the clients. Default: the algorithm's own.",
        "NAME Floating-point type of the model; bfloat16: gradients in mixed precision, state in float32. Default: float32. "
        "One of float32, float64, bfloat16.",
        "Probability that an update is lost. Default: 0.",
        "Size of the disk store's in-memory cache, such as 200MB. Default: 500MB.",
        "(see `laconic algorithms`). Default: fed_avg.",
    ):
        assert text in shown


def test_json_of_a_comparison_is_the_last_line(forked, small) -> None:
    done = forked("compare", "fed_avg", *small, "--rounds", 1, "--out", "all", "--json")
    assert [*json.loads(done.stdout)] == ["runs"]


def test_the_help_explains_positional_arguments(forked) -> None:
    """click 8.5 drops this text, so pyproject.toml requires click<8.5."""
    shown = " ".join(forked("run", "--help", COLUMNS="200").stdout.replace("│", " ").split())
    assert "A TOML file, or the directory of an earlier run." in shown
