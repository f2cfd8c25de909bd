"""Links on the command line: compressors, memory, thresholds, downlinks, faults and what is measured of them."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.cli.conftest import steps_for
from tests.cli.test_bad_input import refused


def config(folder: Path) -> dict:
    return tomllib.loads((folder / "config.toml").read_text())


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def trained(forked, tmp_path: Path):
    """A run of a few rounds: its summary, its resolved config, its metrics."""

    def run(algorithm: str, *options: object, rounds: int = 3) -> tuple[dict, dict, list[dict]]:
        common = steps_for(algorithm)
        done = forked("run", *common, "--algorithm", algorithm, "--rounds", rounds, *options, "--out", "run", "--json")
        assert done.code == 0, done.stderr
        return done.json(), config(tmp_path / "run"), metrics(tmp_path / "run")

    return run


@pytest.mark.parametrize(
    "spelling",
    [
        "dense",
        "cast:float16",
        "top_k:1/64",
        "top_k:0.1@layer",
        "random_k:1/8",
        "sign",
        "sign@model",
        "heavy_sign:0.05",
        "qsgd:4",
        "qsgd:4,norm=max@layer",
        "uniform:8",
        "top_k:0.1+qsgd:4",
        "random_k:0.1+sign@layer",
        "eden",
        "eden:1/8",
        "natural",
        "stochastic",
        "stochastic:1/8@layer",
        "dead_zone",
        "dead_zone:50",
        "sign@chunk:64",
    ],
)
def test_every_spelling_of_a_compressor_trains_and_is_kept_in_the_config(
    forked, trained, tmp_path: Path, spelling: str
) -> None:
    summary, kept, _ = trained("fed_com", "--compressor", spelling)
    # The uncompressed update of 650 parameters is 2600 bytes, of three clients in three rounds.
    assert summary["bytes_up"] < 9 * (2700 if spelling == "dense" else 1500)
    assert summary["accuracy"] > 0.1
    assert kept["uplink"]["name"] == "compressed"
    kind, _, group = spelling.partition("@")
    assert kept["uplink"]["compressor"].startswith(kind.partition(":")[0])
    assert not group or kept["uplink"]["granularity"] == group
    again = forked("run", "run", "--out", "again", "--json")
    assert again.json()["model_sha256"] == summary["model_sha256"]


def test_a_compressor_for_a_dense_recipe_comes_with_memory(trained) -> None:
    _, kept, _ = trained("fed_ams", "--compressor", "sign")
    assert kept["uplink"]["name"] == "compressed" and kept["uplink"]["memory"] is True


def test_an_uplink_is_chosen_by_its_name(forked, small, trained) -> None:
    options = ("--compressor", "sign", "--set", "uplink.threshold=1.9")
    summary, kept, _ = trained("fed_cams", "--uplink", "lazy", *options)
    assert (kept["uplink"]["name"], kept["uplink"]["threshold"]) == ("lazy", 1.9)
    assert kept["uplink"]["compressor"].startswith("sign")
    named = ("--algorithm", "fed_cams", "--rounds", 3, "--set", "uplink.name=lazy", *options)
    assert forked("run", *small, *named, "--out", "b", "--json").json()["model_sha256"] == summary["model_sha256"]


@pytest.mark.parametrize("downlink", ["broadcast", "mirrored"])
def test_a_compressed_downlink_saves_bytes_and_learns(trained, downlink: str) -> None:
    options = ("--downlink", downlink, "--compressor", "top_k:1/4", "--local-lr", 0.5)
    summary, kept, _ = trained("fed_ef_sgd", *options, rounds=15)
    assert kept["downlink"]["name"] == downlink
    assert kept["downlink"]["compressor"].startswith("top_k:1/4")
    # A client that was away for long gets the whole model, others less.
    assert summary["bytes_down"] < 0.8 * 15 * 3 * 2600
    assert summary["accuracy"] > 0.6


def test_without_memory_nothing_is_remembered(trained) -> None:
    _, kept, records = trained("fed_cams", "--no-memory", "--diagnostics")
    assert kept["uplink"]["name"] == "compressed" and kept["uplink"]["memory"] is False
    assert all("memory_norm" not in record or record["memory_norm"] == 0 for record in records)


def test_lazy_links_without_memory(trained) -> None:
    _, kept, _ = trained("fed_nlaca", "--no-memory")
    assert kept["uplink"]["name"] == "lazy" and kept["uplink"]["memory"] is False


def test_a_shifted_link_takes_the_place_of_memory(trained) -> None:
    summary, kept, _ = trained("fed_cams", "--set", "uplink.name=shifted", "--set", "uplink.shift_rate=0.5")
    assert kept["uplink"]["name"] == "shifted" and kept["uplink"]["shift_rate"] == 0.5
    assert kept["uplink"]["compressor"].startswith("top_k")
    assert summary["bytes_up"] < 9 * 200


LATER = {
    "stc": ("heavy_sign", "broadcast", 0.3),
    "qsparse_local_sgd": ("top_k", "dense", 0.6),
    "ef21_p": ("top_k", "broadcast", 0.3),
    "ef21_bc": ("top_k", "estimated", 0.3),
    "fed_cams_two_way": ("top_k", "broadcast", 0.3),
    "ef21_sgdm": ("top_k", "dense", 0.6),
    "scallion": ("qsgd", "dense", 1.2),
    "scafcom": ("top_k", "dense", 1.1),
    "scaffnew": (None, "dense", 1.6),
    "fed_dyn": (None, "dense", 1.01),
    "diloco": (None, "dense", 1.01),
    "sparse_loco": ("top_k", "dense", 0.6),
    "flasc": ("top_k", "compressed", 0.5),
    "fed_laconic": ("stochastic", "mirrored", 0.2),
}
"""Uplink's compressor, downlink, and at most this share of the bytes of dense rounds."""


@pytest.mark.parametrize("name", LATER)
def test_every_later_method_trains_by_its_name_alone(trained, name: str) -> None:
    compressor, downlink, share = LATER[name]
    summary, kept, records = trained(name, "--eval-every", 1)
    assert kept["algorithm"] == name and kept["downlink"]["name"] == downlink
    assert kept["uplink"].get("compressor", "none").startswith(compressor or "none")
    assert summary["bytes_up"] + summary["bytes_down"] < share * 9 * 2 * 2700
    assert records[0]["loss"] != records[-1]["loss"]


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("sparse_loco", "uplink.memory_decay=0.5"),
        ("diloco", "optimizer.nesterov=false"),
        ("scallion", "method.alpha=0.5"),
        ("scafcom", "method.momentum_rate=0.9"),
        ("ef21_sgdm", "method.momentum_rate=0.9"),
        ("fed_dyn", "method.alpha=1.5"),
        ("scaffnew", "method.random_steps=false"),
        ("fed_laconic", "optimizer.noise_limit=0.001"),
    ],
)
def test_settings_of_later_methods_are_options(forked, trained, tmp_path: Path, name: str, setting: str) -> None:
    changed, kept, _ = trained(name, "--set", setting)
    options = (*steps_for(name), "--algorithm", name, "--rounds", 3)
    usual = forked("run", *options, "--out", "usual", "--json").json()
    slot, _, rest = setting.partition(".")
    parameter, _, value = rest.partition("=")
    assert str(kept[slot][parameter]).lower() == value
    assert config(tmp_path / "usual")[slot][parameter] != kept[slot][parameter]
    assert changed["model_sha256"] != usual["model_sha256"]


def test_only_the_numbers_of_the_subspace_are_sent(trained) -> None:
    summary, kept, _ = trained("fed_avg", "--model", "mlp:64", "--subspace", "1/8")
    assert kept["subspace"] == 0.125
    # An eighth of 64 x 64, and the other 64 + 640 + 10 parameters, for three clients in three rounds.
    assert summary["bytes_up"] == summary["bytes_down"] == 9 * (4 * (512 + 714) + 15)
    assert summary["accuracy"] > 0.1


def test_another_subspace_is_drawn_every_few_rounds(trained) -> None:
    summary, kept, _ = trained("fed_avg", "--model", "mlp:64", "--subspace", "1/8", "--subspace-every", 2)
    assert kept["subspace_every"] == 2
    # In the third of three rounds three clients also get the last numbers of the subspace before.
    assert summary["bytes_up"] == 9 * (4 * (512 + 714) + 15) and summary["bytes_down"] == 12 * (4 * (512 + 714) + 15)


def test_a_threshold_that_all_are_under_makes_every_later_update_a_skip(trained) -> None:
    options = ("--set", "uplink.threshold=1e9", "--participants", 20, "--diagnostics")
    _, kept, records = trained("fed_nlaca", *options)
    assert kept["uplink"]["threshold"] == 1e9
    # The first update has nothing to be near to.
    assert [record["skip_rate"] for record in records] == [0.0, 1.0, 1.0]


def test_a_threshold_of_the_downlink_makes_the_server_skip(trained) -> None:
    options = ("--set", "downlink.threshold=1e9", "--diagnostics")
    _, kept, records = trained("fed_bnlaca", *options)
    assert kept["downlink"]["threshold"] == 1e9
    assert [record["skip_rate_down"] for record in records] == [1.0, 1.0, 1.0]


def test_a_memory_that_is_restarted_at_once_is_none(forked, trained, small) -> None:
    restarted, kept, _ = trained("fed_cams", "--set", "uplink.restart_after=0", "--participants", 20)
    assert kept["uplink"]["restart_after"] == 0
    options = ("run", *small, "--algorithm", "fed_cams", "--rounds", 3, "--participants", 20)
    bare = forked(*options, "--no-memory", "--out", "bare", "--json").json()
    with_memory = forked(*options, "--out", "memory", "--json").json()
    assert restarted["model_sha256"] == bare["model_sha256"] != with_memory["model_sha256"]


@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        "late",
        "duplicate",
        "crash",
        "lose-state",
    ],
)
def test_a_fault_shows_in_the_metrics_and_the_run_still_learns(trained, fault: str) -> None:
    options = (f"--{fault}", 0.4, "--participants", 10, "--local-lr", 0.5, "--compressor", "top_k:1/4")
    summary, kept, records = trained("fed_ef_sgd", *options, "--downlink", "broadcast", rounds=15)
    assert kept["faults"][fault.replace("-", "_")] == 0.4
    assert summary["accuracy"] > 0.6
    missing = sum(10 - record["participants"] for record in records)
    refusals = sum(sum(record.get("refused", {}).values()) for record in records)
    lost = sum(record.get("lost", 0) for record in records)
    # Of 150 updates 60 meet the fault. A client that has lost everything cannot read a step: it asks for the whole model.
    assert (missing > 20) == (fault in ("drop", "late", "crash", "lose-state"))
    assert (refusals > 30) == (fault in ("late", "duplicate"))
    assert (lost > 10) == (fault == "lose-state")


def test_diagnostics_are_in_every_record(trained) -> None:
    _, _, records = trained("fed_bnlaca", "--diagnostics")
    wanted = {"q_c", "q_a", "gamma", "memory_norm", "skip_rate", "skip_rate_down"}
    for record in records:
        assert wanted <= record.keys()
        assert 0 <= record["q_c"] <= 1 and record["memory_norm"] > 0


def test_the_full_gradient_is_measured_with_evaluations_and_compared(trained, tmp_path: Path) -> None:
    _, _, records = trained("fed_avg", "--full-gradient", "--eval-every", 2, "--clients", 6, rounds=4)
    assert ["objective" in record for record in records] == [False, True, False, True]
    assert records[3]["objective"] < records[1]["objective"]
    assert records[1]["gradient_norm_squared"] > 0
    rows = [line.split(",") for line in (tmp_path / "run/gradient_similarity.csv").read_text().splitlines()]
    assert [len(row) for row in rows] == [6] * 6
    assert [float(rows[place][place]) for place in range(6)] == [1.0] * 6
    assert (tmp_path / "run/gradient_similarity.png").read_bytes().startswith(b"\x89PNG")


def test_a_compressed_run_that_diverges_is_reported_and_the_others_go_on(forked, small) -> None:
    command = ("compare", "fed_cams:local_lr=1e38", "fed_avg", *small, "--rounds", 3, "--out", "all")
    done = forked(*command, "--target", 0.5, "--json")
    assert done.code == 0, done.stderr
    first, second = done.json()["runs"]
    assert first["label"] == "fed_avg" and first["accuracy"] > 0
    assert second["label"] == "fed_cams:local_lr=1e38" and "diverged" in second["error"]
    for key in ("bytes_to_target", "rounds_to_target", "seconds_to_target"):
        assert second[key] is None and first[key] is None


def test_what_a_target_cost_is_in_the_json_of_each_run(forked, small) -> None:
    options = ("--rounds", 8, "--eval-every", 1, "--target", 30, "--out", "all", "--json")
    done = forked("compare", "fed_avg", "fed_avg:local_lr=1e-9", *small, *options)
    assert done.code == 0, done.stderr
    reached, not_reached = done.json()["runs"]
    assert reached["label"] == "fed_avg"
    assert 5 <= reached["rounds_to_target"] <= 8
    assert 0 < reached["bytes_to_target"] <= reached["bytes_up"] + reached["bytes_down"]
    assert 0 < reached["seconds_to_target"] <= reached["seconds"]
    for key in ("bytes_to_target", "rounds_to_target", "seconds_to_target"):
        assert not_reached[key] is None


def test_runs_are_ranked_by_simulated_time_to_the_target(forked, small) -> None:
    """Up is a thousand times as slow as down, so the one that sends less up is first, though it needs more bytes in all."""
    options = ("--rounds", 12, "--eval-every", 1, "--target", 30, "--out", "all", "--json")
    network = ("--bandwidth-up", "100kbit", "--bandwidth-down", "100Mbit", "--latency", "1ms", "--rank-by", "time")
    algorithms = ("fed_avg", "fed_avg:compressor=top_k:0.1", "fed_avg:local_lr=1e-9")
    done = forked("compare", *algorithms, *small, *options, *network)
    assert done.code == 0, done.stderr
    times = {run["label"]: run["simulated_seconds_to_target"] for run in done.json()["runs"]}
    assert list(times) == ["fed_avg:compressor=top_k:0.1", "fed_avg", "fed_avg:local_lr=1e-9"]
    assert times["fed_avg:compressor=top_k:0.1"] < times["fed_avg"]
    assert times["fed_avg:local_lr=1e-9"] is None
    assert all(run["simulated_seconds"] > 0 for run in done.json()["runs"])


def test_a_target_and_a_ranking_of_another_metric(forked, small) -> None:
    options = ("--rounds", 6, "--eval-every", 1, "--target", "loss=2.29", "--rank-by", "loss", "--out", "all", "--json")
    done = forked("compare", "fed_avg:local_lr=1e-9", "fed_avg", *small, *options)
    assert done.code == 0, done.stderr
    first, second = done.json()["runs"]
    assert first["label"] == "fed_avg" and first["loss"] < second["loss"]
    assert (first["target"], first["target_metric"]) == (2.29, "loss") and first["rounds_to_target"] >= 5
    for options, part in ((("--target", "f1=0.5"), "'f1' on test examples"), (("--target", "f1=x"), "METRIC=VALUE")):
        refused = forked("compare", "fed_avg", *small, *options)
        assert refused.code == 2 and part in refused.stderr


def test_a_ranking_needs_what_it_ranks_by(forked) -> None:
    for options, part in (
        (("--rank-by", "time", "--target", 90), "--bandwidth-up"),
        (("--rank-by", "rounds"), "--target"),
        (("--rank-by", "tiem", "--target", 90), "did you mean 'time'?"),
    ):
        done = forked("compare", "fed_avg", *options)
        assert done.code == 2
        assert part in done.stderr


BAD = {
    "a misspelled compressor": (
        ["--compressor", "topk:1/64"],
        ["'topk'", "did you mean 'top_k'?", "choose-a-compressor"],
    ),
    "a ratio above one": (["--compressor", "top_k:2"], ["ratio = 2", "less than or equal to 1"]),
    "a ratio of zero": (["--compressor", "top_k:0"], ["ratio = 0", "greater than 0"]),
    "a ratio that is no number": (["--compressor", "top_k:few"], ["'few'", "1/64"]),
    "bits out of range": (["--compressor", "qsgd:99"], ["bits", "99"]),
    "a misspelled group": (["--compressor", "sign@layers"], ["'layers'", "did you mean 'layer'?", "model"]),
    "a chain that ends with a rotation": (["--compressor", "top_k:0.1+eden"], ["after '+'", "'eden'"]),
    "a memory beside a shift": (["--set", "uplink.name=shifted", "--memory"], ["uplink.memory", "'shifted' has none"]),
    "a shift that is too fast": (["--set", "uplink.name=shifted", "--set", "uplink.shift_rate=2"], ["shift_rate = 2"]),
    "a subspace of small layers": (["--model", "logistic", "--subspace", "1/10"], ["subspace = 0.1", "4096"]),
    "a subspace that is none": (["--subspace", "1/0"], ["subspace", "'1/0'"]),
    "no subspace to redraw": (["--subspace-every", "5"], ["subspace_every = 5", "needs subspace"]),
    "three in a chain": (["--compressor", "top_k:0.1+qsgd:4+sign"], ["at most two"]),
    "a chain in the wrong order": (["--compressor", "sign+top_k:0.1"], ["before '+'", "'sign'"]),
    "an unknown parameter of a compressor": (["--compressor", "qsgd:4,nrom=max"], ["'nrom'", "did you mean 'norm'?"]),
    "a misspelled downlink": (["--downlink", "broadcst"], ["'broadcst'", "did you mean 'broadcast'?", "mirrored"]),
    "a misspelled uplink": (["--uplink", "lazi"], ["'lazi'", "did you mean 'lazy'?", "shifted"]),
    "a misspelled name of an uplink": (["--set", "uplink.name=lazi"], ["'lazi'", "did you mean 'lazy'?"]),
    "an uplink that a method cannot use": (
        ["--algorithm", "ef21", "--uplink", "lazy"],
        ["method 'ef21' cannot use uplink 'lazy'", "use uplink = 'compressed' without memory"],
    ),
    "a negative threshold": (["--set", "uplink.threshold=-1"], ["uplink.threshold = -1", "greater than or equal to 0"]),
    "a negative threshold of the downlink": (
        ["--downlink", "mirrored", "--set", "downlink.threshold=-1"],
        ["downlink.threshold = -1", "greater than or equal to 0"],
    ),
    "a negative age": (["--set", "uplink.restart_after=-1"], ["uplink.restart_after = -1"]),
    "a threshold where there is none": (
        ["--algorithm", "fed_cams", "--set", "uplink.threshold=1"],
        ["'threshold'", "uplink 'compressed'", "restart_after"],
    ),
    "what cannot contract": (["--compressor", "uniform:1"], ["uniform:1", "error feedback"]),
    "what cannot contract on the way down": (
        ["--algorithm", "fed_com", "--compressor", "uniform:1", "--downlink", "broadcast"],
        ["uniform:1", "error feedback"],
    ),
    "a bandwidth that is none": (["--bandwidth-up", "fast"], ["network.bandwidth_up = 'fast'", "1Mbit"]),
    "a latency in bits": (["--latency", "1Mbit"], ["network.latency = '1Mbit'", "50ms"]),
    "a spread that is none": (["--bandwidth-down", "lognormal:1Mbit,wide"], ["lognormal:MEDIAN,SIGMA"]),
    "a deadline in the past": (["--deadline", "-1"], ["network.deadline = -1", "greater than 0"]),
    "a trace that is not there": (["--set", "network.trace=none.csv"], ["'none.csv'", "No such file"]),
    "a chance above one": (["--drop", "1.5"], ["faults.drop = 1.5", "less than or equal to 1"]),
    "a negative chance": (["--lose-state", "-0.1"], ["faults.lose_state = -0.1", "greater than or equal to 0"]),
    "a downlink without a compressor": (
        ["--algorithm", "fed_ams", "--downlink", "broadcast"],
        ["'broadcast'", "--compressor", "--set downlink.compressor"],
    ),
    "a downlink beside an uplink that sends everything": (
        ["--algorithm", "fed_nlaa", "--downlink", "broadcast"],
        ["'broadcast'", "--compressor", "--set downlink.compressor"],
    ),
    "an uplink without a compressor": (
        ["--algorithm", "fed_ams", "--set", "uplink.name=compressed"],
        ["'compressed'", "--compressor"],
    ),
    "a parameter that two parts have": (
        ["--algorithm", "fed_bnlaca:threshold=0.5"],
        ["uplink and downlink", "uplink.threshold", "downlink.threshold"],
    ),
}


@pytest.mark.parametrize(("arguments", "parts"), BAD.values(), ids=BAD)
def test_bad_input_for_links(forked, tmp_path: Path, arguments: list[str], parts: list[str]) -> None:
    algorithm = [] if "--algorithm" in arguments else ["--algorithm", "fed_nlaca"]
    line = refused(forked, tmp_path, *algorithm, *arguments)
    assert [part for part in parts if part not in line] == [], line
