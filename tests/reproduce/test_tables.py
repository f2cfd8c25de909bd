"""Tables and figures of a study: the spread over seeds, and the axes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from laconic.reproduce.catalog import PAPERS
from laconic.reproduce.document import save
from laconic.reproduce.experiments import Experiment
from laconic.reproduce.measures import FINAL, MEGABYTES_UP
from laconic.reproduce.study import Short, Study
from laconic.reproduce.tables import as_run, command, draw, grid

STUDY = Study("three", Experiment("", {"a": "", "b": ""}), measures=(FINAL, MEGABYTES_UP))


def run(*ends: float) -> dict:
    """Two evaluations of each seed."""
    traffic = {"bytes_up": [10**6, 2 * 10**6], "bytes_down": [10**6, 2 * 10**6], "paper_bits_up": [10**7, 3 * 10**7]}
    curves = [{"round": [1, 2], "accuracy": [0.5, end], "training_loss": [1.0, end]} | traffic for end in ends]
    return {"seeds": [*range(len(ends))], "curves": curves}


THREE = {"mode": "full", "rounds": 2, "runs": {"a": run(0.7, 0.8, 0.9), "b": run(0.6, 0.6, 0.9)}}
ONE = {"mode": "full", "rounds": 2, "runs": {"a": run(0.7), "b": run(0.6)}}


def test_three_seeds_have_a_standard_deviation_in_every_cell() -> None:
    # The standard deviation of 70, 80, 90 is 10; of 60, 60, 90 it is sqrt(300) = 17.3.
    rows = [["a", "80.0 ± 10.0", "2.0 ± 0.0"], ["b", "70.0 ± 17.3", "2.0 ± 0.0"]]
    assert grid(STUDY, THREE).rows == rows
    assert all("±" not in cell for row in grid(STUDY, ONE).rows for cell in row)


def test_a_shortened_study_shows_how_often_its_runs_were_evaluated() -> None:
    experiment = Experiment("--clients 2 --eval-every 20", {"a": ""}, rounds=100)
    study = replace(STUDY, experiment=experiment, short=Short(rounds=20))
    curve = {"round": [4, 8, 12, 16, 20], "accuracy": [0.5] * 5}
    data = {"mode": "short", "rounds": 20, "setting": experiment.common}
    data |= {"runs": {"a": {"seeds": [0], "curves": [curve]}}}
    assert as_run(data) == "--clients 2 --eval-every 4"
    assert command("study", study, data) == "Made by `laconic reproduce study --seeds 1`."
    curve["round"] = [1, 2, 3, 4, 5]
    assert as_run(data) == "--clients 2 --eval-every 1"
    assert command("study", study, data).endswith(" The current version uses `--eval-every 4` instead.")


def test_three_seeds_have_a_band_in_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = pytest.importorskip("matplotlib.axes").Axes
    bands: list[tuple[list[float], ...]] = []
    monkeypatch.setattr(axes, "fill_between", lambda self, *columns, **look: bands.append(columns))
    study = replace(STUDY, drawn="training_loss")
    assert draw(study, ONE, tmp_path / "one.svg") and not bands
    assert draw(study, THREE, tmp_path / "three.svg")
    (rounds, low, high), (_, low_b, high_b) = bands
    assert rounds == [1, 2] and low == pytest.approx([1, 0.7]) and high == pytest.approx([1, 0.9])
    assert low_b == pytest.approx([1, 0.7 - 0.03**0.5]) and high_b == pytest.approx([1, 0.7 + 0.03**0.5])


def test_the_second_figure_has_its_own_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FedAMD, Figures 8 to 10: accuracy against rounds, and training loss against gradient complexity."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    lines: list[tuple[list[float], list[float]]] = []
    plot = axes.plot
    monkeypatch.setattr(axes, "plot", lambda self, *xy, **look: (lines.append(xy), plot(self, *xy, **look)))
    study = replace(STUDY, second=PAPERS["FedAMD"]["fedamd-table2"].studies["fed-amd-table2-shuffled"].second)
    both, costs = {**ONE, "runs": {"a": run(0.7)}}, {"gradients": [640, 1280]}
    curve = both["runs"]["a"]["curves"][0]
    curve |= costs
    paths = save("two", study, both, tmp_path)
    figures = [path.name for path in paths if path.suffix == ".svg"]
    assert figures == ["two.svg", "two-second.svg"]
    assert lines == [([1, 2], [50, pytest.approx(60)]), ([640, 1280], [1.0, 0.7])]
    assert "gradients of single examples" in (tmp_path / "figures/two-second.svg").read_text()
    # A round without a miner has no training loss; the seeds are averaged where all of them have one.
    lines.clear()
    other = {"round": [1, 2, 3], "training_loss": [None, 0.5, 0.1], "gradients": [640, 1280, 1920]}
    both["runs"]["a"] = {"seeds": [0, 1], "curves": [curve, other]}
    assert draw(study.figures("two")["two-second.svg"], both, tmp_path / "seeds.svg")
    assert lines == [([1280], [pytest.approx(0.6)])]
    without = {name: values for name, values in curve.items() if name != "training_loss"}
    both["runs"]["a"] = {"seeds": [0], "curves": [without]}
    assert not draw(study.figures("two")["two-second.svg"], both, tmp_path / "none.svg")
    both["runs"]["b"] = {"seeds": [0], "curves": [curve]}
    paths = save("some", study, both, tmp_path)
    assert [path.name for path in paths if path.suffix == ".svg"] == ["some.svg"], "a run has no training loss"


def test_fed_ef_is_drawn_against_the_bits_of_the_paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures 2, 3, 6 to 9, 12, 13, 16 and 17 have "communicated bits" on their horizontal axis."""
    axes = pytest.importorskip("matplotlib.axes").Axes
    lines: list[list[float]] = []
    plot = axes.plot
    monkeypatch.setattr(axes, "plot", lambda self, *xy, **look: (lines.append(xy[0]), plot(self, *xy, **look)))
    for name in ("fed-ef-figures2-3", "fed-ef-losses", "fed-ef-figures6-7"):
        for study in PAPERS["Fed-EF"][name].studies.values():
            assert draw(study, THREE, tmp_path / "figure.svg")
    assert len(lines) == 2 * (4 + 4 + 2) and all(line == [1e7, 3e7] for line in lines)
    assert "bits up, as the paper counts them" in (tmp_path / "figure.svg").read_text()
