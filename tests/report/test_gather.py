"""What is read of runs on disk."""

from __future__ import annotations

import itertools
import shutil
import warnings
from pathlib import Path

import pytest

from laconic.errors import ConfigError
from laconic.report.gather import COSTS, POINTS, _thinned, entitle, find_runs, gather, labels, read_run
from laconic.report.plot import plot


def test_runs_are_found_below_a_folder_or_named(finished: Path) -> None:
    assert find_runs([finished]) == sorted(finished.iterdir())
    assert find_runs([finished / "top", finished]) == [
        finished / "top",
        *sorted(set(finished.iterdir()) - {finished / "top"}),
    ]


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such directory"):
        find_runs([tmp_path / "nowhere"])
    with pytest.raises(ConfigError, match="there is no run in it"):
        find_runs([tmp_path])


def test_a_run_as_data(finished: Path) -> None:
    run = read_run(finished / "sign")
    assert run["finished"] and run["rounds"] == run["rounds_wanted"] == 12
    assert run["metrics"] == ["accuracy", "loss"]
    assert run["evaluations"]["round"] == [2, 4, 6, 8, 10, 12]
    total = sum(stream["bytes"] for stream in run["streams"].values())
    assert total == run["evaluations"]["bytes_up"][-1] + run["evaluations"]["bytes_down"][-1]
    assert run["streams"]["up/model"]["packets"] == 36
    assert len(run["similarity"]) == len(run["similarity"][0]) == 6
    assert len(run["label_counts"]) == 6 and len(run["label_counts"][0]) == 10
    assert len(run["course"]["q_c"]) == 12
    assert "simulated_seconds" in run["evaluations"]


def test_a_run_that_is_cut_off_in_a_line_is_read_up_to_there(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "avg", run)
    (run / "model.safetensors").unlink()
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text[: text.rindex("\n", 0, -1) + 20])
    found = read_run(run)
    assert found["rounds"] == 11 and not found["finished"]


def test_labels_tell_what_differs_and_nothing_else() -> None:
    assert labels([{"algorithm": "a", "seed": 0}, {"algorithm": "a", "seed": 1}]) == ["a", "a"]
    same = {"algorithm": "a", "rounds": 5}
    assert labels(
        [same | {"uplink.compressor": "sign"}, same | {"uplink.compressor": "dense"}, {"algorithm": "b"}]
    ) == [
        "a (compressor sign)",
        "a (compressor dense)",
        "b",
    ]
    parts = [
        {"algorithm": "a", "uplink.name": "lazy", "uplink.threshold": 1},
        {"algorithm": "a", "uplink.name": "dense"},
    ]
    assert labels(parts) == ["a (uplink lazy)", "a (uplink dense)"]
    both = [{"algorithm": "a", "uplink.compressor": c, "downlink.compressor": c} for c in ("sign", "dense")]
    assert labels(both)[0] == "a (downlink compressor sign, uplink compressor sign)"


def test_seeds_are_one_group(finished: Path) -> None:
    runs = {Path(run["path"]).name: run for run in gather(find_runs([finished]))["runs"]}
    assert runs["avg"]["group"] == runs["avg-1"]["group"] == runs["avg-2"]["group"]
    assert len({run["group"] for run in runs.values()}) == 3
    assert [runs[name]["label"] for name in ("avg", "sign")] == ["fed_avg", "fed_cams (compressor sign@model)"]


@pytest.mark.parametrize("count", [0, 1, POINTS - 1, POINTS, POINTS + 1, 12_345])
def test_long_curves_are_thinned_and_keep_their_end(count: int) -> None:
    records = [{"round": number} for number in range(count)]
    thin = _thinned(records)
    assert len(thin) <= POINTS
    assert thin[-1:] == records[-1:]
    assert len({two["round"] - one["round"] for one, two in itertools.pairwise(thin)}) <= 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures(finished: Path, tmp_path: Path, suffix: str) -> None:
    runs = entitle([read_run(path) for path in find_runs([finished])])
    out = tmp_path / f"curves.{suffix}"
    plot(runs, out, metric="accuracy", cost="simulated_seconds", scale="log")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert out.read_bytes().startswith(start)
    if suffix == "svg":
        assert out.read_text().count("simulated seconds") > 0


def test_dozens_of_runs_fit_into_a_picture_and_nobody_is_warned(finished: Path, tmp_path: Path) -> None:
    (run,) = gather([finished / "sign"], course=COSTS)["runs"]
    many = [
        run | {"label": f"fed_cams with a setting that takes very many words to be told apart, {n}"} for n in range(50)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot(many, tmp_path / "many.svg", metric="accuracy", cost="bytes", scale="log")
        plot([run], tmp_path / "q.svg", metric="q_a", cost="bytes", scale="log")
        plot([run], tmp_path / "gradient.svg", metric="gradient_norm_squared", cost="round", scale="linear")
    text = (tmp_path / "many.svg").read_text()
    assert "and 10 more" in text and text.count("<!-- fed_cams") == 40
    assert "<!-- q a -->" in (tmp_path / "q.svg").read_text()
