"""What is read of runs on disk."""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
import warnings
from pathlib import Path

import pytest

from laconic.cli.reports import plot as command
from laconic.core.errors import ConfigError
from laconic.report.figure import wrapped
from laconic.report.gather import entitle, find_runs, gather
from laconic.report.labels import labels
from laconic.report.page import html
from laconic.report.palette import COLORS
from laconic.report.plot import _joined, pareto, plot, traffic
from laconic.report.reading import COSTS, POINTS, _thinned, read_run
from laconic.run.target import Target, reached


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


def test_milestones_say_exactly_when_a_target_is_reached(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished / "avg", run)
    generator = random.Random(0)
    records = []
    for number in range(1, 1500):
        accuracy = 1 - 0.9 / (1 + number / 200) + 0.05 * generator.random()
        known = None if number % 97 == 0 else accuracy  # an evaluation that is not a number
        records.append({"round": number, "accuracy": known, "loss": 1.0, "bytes_up": number, "bytes_down": number})
    records = [record | {"seconds": 0.0, "participants": 1} for record in records]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = read_run(run)
    assert len(found["evaluations"]["round"]) <= POINTS
    for target in (0.2, 0.333, 0.5, 0.6789, 0.8):
        expected = reached(records, Target(target))
        got = next((each for each in found["milestones"] if each[0] >= target), None)
        assert (None if got is None else got[1:3]) == (None if expected is None else [expected.rounds, expected.bytes])


def test_a_damaged_run_is_left_out_and_named(finished: Path, tmp_path: Path) -> None:
    for name in ("good", "bad", "worse"):
        shutil.copytree(finished / "avg", tmp_path / name)
    (tmp_path / "bad/config.toml").write_text("algorithm = ")
    (tmp_path / "worse/label_counts.json").write_text("[[1,")
    found = gather(find_runs([tmp_path]))
    assert [Path(run["path"]).name for run in found["runs"]] == ["good"]
    assert {Path(path).name for path in found["unreadable"]} == {"bad", "worse"}
    with pytest.raises(ConfigError, match="cannot be read"):
        gather(find_runs([tmp_path / "bad"]))


def test_many_long_runs_make_a_page_that_can_be_sent(finished: Path, tmp_path: Path) -> None:
    record = json.loads((finished / "avg/metrics.jsonl").read_text().splitlines()[1])
    lines = "".join(json.dumps(record | {"round": number}) + "\n" for number in range(1, 901))
    for number in range(120):
        shutil.copytree(
            finished / "avg", tmp_path / str(number), ignore=shutil.ignore_patterns("*.html", "*.safetensors")
        )
        (tmp_path / str(number) / "metrics.jsonl").write_text(lines)
    assert len(html(gather(find_runs([tmp_path])))) < 6e6


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
        "a (compressor=sign)",
        "a (compressor=dense)",
        "b",
    ]
    parts = [
        {"algorithm": "a", "uplink.name": "lazy", "uplink.threshold": 1},
        {"algorithm": "a", "uplink.name": "dense"},
    ]
    assert labels(parts) == ["a (uplink=lazy)", "a (uplink=dense)"]
    alike = [{"algorithm": "a", "uplink.name": "lazy", "uplink.alpha": alpha} for alpha in (1, 2)]
    assert labels([*alike, {"algorithm": "a", "uplink.name": "dense"}]) == [
        "a (alpha=1, uplink=lazy)",
        "a (alpha=2, uplink=lazy)",
        "a (uplink=dense)",
    ]
    sets = [{"algorithm": "a", "dataset": "digits"}, {"algorithm": "b", "dataset": "mnist"}]
    assert labels(sets) == ["a (dataset=digits)", "b (dataset=mnist)"]
    both = [{"algorithm": "a", "uplink.compressor": c, "downlink.compressor": c} for c in ("sign", "dense")]
    assert labels(both)[0] == "a (downlink.compressor=sign, uplink.compressor=sign)"


def test_a_label_has_what_changes_a_recipe_unless_all_runs_share_it() -> None:
    slow, fast = (
        {"algorithm": "fed_cams", "optimizer.server_lr": rate, "method.local_lr": 0.1} for rate in (0.03, 0.01)
    )
    other = {"algorithm": "fed_avg", "optimizer.server_lr": 1.0, "method.local_lr": 0.1}
    assert labels([slow, other]) == ["fed_cams", "fed_avg"]
    assert labels([fast, other]) == ["fed_cams (server_lr=0.01)", "fed_avg"], "the recipe's own is 0.03"
    # Another part of the same algorithm is named, and its parameters only if they are not its defaults.
    replaced = {
        "algorithm": "fed_cams",
        "optimizer.name": "sgd",
        "optimizer.server_lr": 0.25,
        "optimizer.momentum": 0.0,
    }
    assert labels([slow | {"optimizer.name": "ams"}, replaced])[1] == "fed_cams (optimizer=sgd, server_lr=0.25)"
    # How gradients are computed changes no result.
    assert labels([slow | {"numerics.strategy": word} for word in ("loop", "vmap")]) == ["fed_cams"] * 2


def test_a_recipe_without_its_own_parts_says_so_also_alone() -> None:
    assert labels([{"algorithm": "scaffold", "method.name": "local_sgd"}]) == ["scaffold (method=local_sgd)"]
    assert labels([{"algorithm": "fed_cams", "optimizer.name": "sgd", "optimizer.server_lr": 0.5}]) == [
        "fed_cams (optimizer=sgd)"
    ]
    assert labels([{"algorithm": "scaffold", "method.name": "control_variates", "method.local_lr": 0.5}]) == [
        "scaffold"
    ]


def test_files_of_ones_own_are_told_by_their_names() -> None:
    files = [{"algorithm": "a", "model": f"/home/me/{name}.py:build"} for name in ("one/nets", "two/deep")]
    assert labels(files) == ["a (model=nets:build)", "a (model=deep:build)"]
    files.append({"algorithm": "a", "model": "/home/me/three/nets.py:build"})
    assert labels(files) == [
        "a (model=/home/me/one/nets.py:build)",
        "a (model=deep:build)",
        f"a (model={files[2]['model']})",
    ]
    own = {"algorithm": "a", "imports": ["/home/me/mine.py"]}
    assert labels(
        [own | {"uplink.compressor": "mine:2"}, {"algorithm": "a", "imports": [], "uplink.compressor": "sign"}]
    ) == [
        "a (compressor=mine:2)",
        "a (compressor=sign)",
    ]
    assert labels([own, own | {"imports": ["/home/me/mine.py", "/home/me/yours.py"]}]) == [
        "a (imports=mine)",
        "a (imports=mine and yours)",
    ]


def test_seeds_are_joined_by_round_and_not_by_place() -> None:
    often = {number: (float(number), 0.1 * number) for number in range(1, 11)}
    seldom = {5: (5.0, 0.7), 10: (12.0, 0.8)}
    assert _joined([often, seldom]) == ([5.0, 11.0], [[0.5, 0.7], [1.0, 0.8]])
    going = {1: (1.0, 0.3), 2: (2.0, 0.4)}
    places, columns = _joined([often, going])
    assert places == [*map(float, range(1, 11))] and [len(column) for column in columns] == [2] * 2 + [1] * 8


def test_seeds_are_one_group(finished: Path) -> None:
    runs = {Path(run["path"]).name: run for run in gather(find_runs([finished]))["runs"]}
    assert runs["avg"]["group"] == runs["avg-1"]["group"] == runs["avg-2"]["group"]
    assert len({run["group"] for run in runs.values()}) == 3
    assert [runs[name]["label"] for name in ("avg", "sign")] == ["fed_avg", "fed_cams (compressor=sign)"]


@pytest.mark.parametrize("count", [0, 1, POINTS - 1, POINTS, POINTS + 1, 12_345])
def test_long_curves_are_thinned_and_keep_their_end(count: int) -> None:
    records = range(count)
    thin = _thinned(records)
    assert len(thin) <= POINTS
    assert [*thin[-1:]] == [*records[-1:]]
    assert len({two - one for one, two in itertools.pairwise(thin)}) <= 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures(finished: Path, tmp_path: Path, suffix: str) -> None:
    runs = entitle([read_run(path) for path in find_runs([finished])])
    out = tmp_path / f"curves.{suffix}"
    plot(runs, out, metric="accuracy", cost="simulated_seconds", scale="log")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix]
    assert out.read_bytes().startswith(start)
    if suffix == "svg":
        assert out.read_text().count("simulated seconds") > 0


def test_the_front_is_named_and_bytes_are_told_by_stream(finished: Path, tmp_path: Path) -> None:
    runs = gather(find_runs([finished]))["runs"]
    for chart, more in ((pareto, {"cost": "bytes", "scale": "log"}), (traffic, {})):
        for suffix, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
            chart(runs, tmp_path / f"{chart.__name__}.{suffix}", **more)
            assert (tmp_path / f"{chart.__name__}.{suffix}").read_bytes().startswith(start)
    reached = {run["label"]: max(run["evaluations"]["accuracy"]) for run in runs}
    # The best of all is on the front whatever it cost: once in the legend, once beside its point.
    front = (tmp_path / "pareto.svg").read_text()
    assert front.count(f"<!-- {max(reached, key=reached.__getitem__)}") >= 2
    told = (tmp_path / "traffic.svg").read_text()
    assert all(f"<!-- {word} -->" in told for word in ("headers", "up/model", "down/model", "bytes", "fed_avg"))


def test_what_a_picture_does_not_have_cannot_be_chosen_for_it(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only with --chart curves"):
        command([finished], tmp_path / "a.svg", chart="pareto", metric="loss")
    with pytest.raises(ConfigError, match="not with --chart bytes"):
        command([finished], tmp_path / "a.svg", chart="bytes", cost="round")
    with pytest.raises(ConfigError, match="pareto"):
        command([finished], tmp_path / "a.svg", chart="pareto-front")
    assert not (tmp_path / "a.svg").exists()
    command([finished], tmp_path / "a.svg", chart="pareto", cost="round")
    assert "<!-- round -->" in (tmp_path / "a.svg").read_text()


def test_a_plot_has_a_title_a_target_and_the_report_s_colors(finished: Path, tmp_path: Path) -> None:
    command([finished], tmp_path / "a.svg", target=Target(0.5))
    text = (tmp_path / "a.svg").read_text()
    assert "<!-- Accuracy against bytes, both directions -->" in text and "<!-- target 50 % -->" in text
    assert "digits: dirichlet:0.3, 3 of 6 clients, mlp:8, 1 to 3 seeds" in text
    assert all(color in text for color in COLORS[:3])
    command([finished], tmp_path / "b.svg", style="paper")
    paper = (tmp_path / "b.svg").read_text()
    assert "<!-- Accuracy against" not in paper and 'width="241.2pt"' in paper, "a column of 3.35 inches"
    with pytest.raises(ConfigError, match="style"):
        command([finished], tmp_path / "c.svg", style="poster")


def test_runs_on_unlike_data_share_no_plot(finished: Path, tmp_path: Path) -> None:
    for name in ("avg", "sign"):
        shutil.copytree(finished / name, tmp_path / name)
    config = tmp_path / "sign/config.toml"
    config.write_text(config.read_text().replace('"digits"', '"/data/letters.csv"'))
    with pytest.raises(ConfigError, match=r"choose one with --dataset: digits, /data/letters\.csv"):
        command([tmp_path], tmp_path / "a.svg")
    command([tmp_path], tmp_path / "a.svg", dataset="letters.csv")
    assert "<!-- fed_avg -->" not in (tmp_path / "a.svg").read_text()
    with pytest.raises(ConfigError, match="data set"):
        command([tmp_path], tmp_path / "a.svg", dataset="mnist")


def test_a_curve_that_diverged_ends_in_a_cross(finished: Path, tmp_path: Path) -> None:
    (run,) = gather([finished / "avg"])["runs"]
    pictures = []
    for diverged in (False, True):
        plot([run | {"diverged": diverged}], tmp_path / "curve.svg", metric="accuracy", cost="round", scale="linear")
        pictures.append((tmp_path / "curve.svg").read_text().count("<use "))
    assert pictures[1] == pictures[0] + 1


def test_a_legend_of_more_than_three_lines_is_beside_the_curves(finished: Path, tmp_path: Path) -> None:
    (run,) = gather([finished / "sign"])["runs"]
    widths = []
    for count in (3, 4):
        several = [run | {"label": f"run {n}", "group": str(n)} for n in range(count)]
        plot(several, tmp_path / "curves.svg", metric="accuracy", cost="bytes", scale="log")
        widths.append(float(re.findall(r'width="([\d.]+)pt"', (tmp_path / "curves.svg").read_text())[0]))
    assert widths[1] > widths[0] + 200


def test_a_long_label_has_several_lines_and_keeps_its_end(finished: Path, tmp_path: Path) -> None:
    (run,) = gather([finished / "sign"])["runs"]
    long = "fed_ef_ams (downlink.compressor=sign, downlink=broadcast, uplink.compressor="
    several = [run | {"label": f"{long}{name})", "group": name} for name in ("sign", "top_k:1/64")]
    for style in ("screen", "paper"):
        plot(several, tmp_path / "a.svg", metric="accuracy", cost="bytes", scale="log", style=style)
        text = (tmp_path / "a.svg").read_text()
        assert "uplink.compressor=sign)" in text and "uplink.compressor=top_k:1/64)" in text and "…" not in text
    assert wrapped("word " * 50, 20).count("\n") == 2 and wrapped("word " * 50, 20).endswith("…")


def test_dozens_of_runs_fit_into_a_picture_and_nobody_is_warned(finished: Path, tmp_path: Path) -> None:
    (run,) = gather([finished / "sign"], course=COSTS)["runs"]
    many = [
        run | {"label": f"fed_cams with a setting that takes very many words to be told apart, {n}", "group": str(n)}
        for n in range(50)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot(many, tmp_path / "many.svg", metric="accuracy", cost="bytes", scale="log")
        plot([run], tmp_path / "q.svg", metric="q_a", cost="bytes", scale="log")
        plot([run], tmp_path / "gradient.svg", metric="gradient_norm_squared", cost="round", scale="linear")
    text = (tmp_path / "many.svg").read_text()
    assert "and 10 more" in text and text.count("<!-- fed_cams") == 40
    assert "<!-- q a -->" in (tmp_path / "q.svg").read_text()
