"""Tables, verdicts and figures of a study's results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from laconic.report import COLORS, COSTS, DASHES, beside, scale_costs
from laconic.reproduce.claims import Rows, Verdict
from laconic.reproduce.measures import Curve, both, mean, spread
from laconic.reproduce.runner import Data, curves
from laconic.reproduce.study import Study
from laconic.reproduce.targets import measures
from laconic.run import WINDOW

FEW = 12
"""Maximum number of evaluations that are drawn with markers."""


@dataclass(frozen=True)
class Grid:
    """A table of text, for a terminal or a page."""

    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """Format as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def rows(study: Study, data: Data) -> Rows:
    """Return the measures of each run, averaged over seeds."""
    if "rows" in data:
        computed: Rows = data["rows"]
        return computed
    columns = measures(study, data)
    by_label = {label: curves(run) for label, run in data["runs"].items()}
    return {label: {m.name: mean(m, seeds) for m in columns} for label, seeds in by_label.items()}


def grid(study: Study, data: Data) -> Grid:
    """Return the table of our numbers, followed by the paper's number and the difference in brackets, if any.

    With several seeds a number is the mean and the standard deviation.
    """
    numbers, columns = rows(study, data), measures(study, data)
    lines = []
    for label, own in numbers.items():
        line = [_entitled(label, data)]
        seeds = curves(data["runs"][label]) if "runs" in data else []
        for measure in columns:
            value, theirs = own.get(measure.name), study.paper.get(label, {}).get(measure.name)
            text = measure.text(value)
            if (deviation := spread(measure, seeds)) is not None:
                text += f" ± {measure.text(deviation)}"
            if theirs is not None:
                gap = "" if value is None else f", {measure.difference(value - theirs)}"
                text += f" ({measure.text(theirs)}{gap})"
            line.append(text)
        lines.append(line)
    return Grid(["", *(measure.name for measure in columns)], lines)


BRACKETS = "In brackets: the paper's number, and how far ours is from it."


def _entitled(label: str, data: Data) -> str:
    run = data.get("runs", {}).get(label, {})
    details = [f"rate {run['rate']}"] if "rate" in run else []
    details += [f"server rate {run['server_rate']}"] if "server_rate" in run else []
    details += ["diverged"] if run.get("diverged") else []
    return f"{label} ({', '.join(details)})" if details else label


def verdicts(study: Study, data: Data) -> dict[str, Verdict]:
    """Judge every claim. Return the verdicts by the paper's statement."""
    numbers = rows(study, data)
    return {text: claim.judge(numbers) for text, claim in study.claims.items()}


def about(study: Study, data: Data) -> str:
    """Describe the extent, date and environment of the runs."""
    if "rows" in data:
        return f"{data['date']}, {data['software']}."
    counts = [_seeds(study, data), _rounds(study, data), _rates(study, data), _left_out(study, data)]
    return f"{'; '.join(filter(None, counts))}. {data['date']}, {data['hardware']}, {data['software']}."


def _seeds(study: Study, data: Data) -> str:
    seeds = max(len(run["seeds"]) for run in data["runs"].values())
    paper = f" (the paper: {study.seeds})" if study.seeds > seeds else ""
    return f"{seeds} seed{'s' if seeds > 1 else ''}{paper}"


def _rounds(study: Study, data: Data) -> str:
    rounds = data.get("rounds")
    if not rounds:
        return ""
    whole = study.experiment.rounds if study.experiment else rounds
    return f"{rounds} rounds" + (f" of {whole}: shortened" if whole > rounds else "")


def _rates(study: Study, data: Data) -> str:
    """List the rates that were tried, if fewer than the paper's."""
    chosen = any("rate" in run for run in data["runs"].values())
    if data["mode"] != "short" or not chosen or not (study.short and study.short.rates and study.experiment):
        return ""
    tried = f"{' and '.join(study.short.rates)} instead of {len(study.experiment.rates)} rates"
    trial = study.short.trial or study.experiment.trial
    return f"{tried}, trials of {trial} rounds" if len(study.short.rates) > 1 else f"rate {tried}"


def _left_out(study: Study, data: Data) -> str:
    runs = study.experiment.runs if study.experiment else ()
    left = [label for label in runs if label not in data["runs"]]
    return f"without {', '.join(left)}" if left else ""


def draw(study: Study, data: Data, path: Path) -> bool:
    """Draw the curves. Return False if there are none or matplotlib is missing."""
    if "runs" not in data:
        return False
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return False
    # With a fixed salt, equal data give equal files.
    with rc_context({"svg.hashsalt": "laconic"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, (label, run) in enumerate(data["runs"].items()):
            color, dash = COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]
            seeds = [_line(study, curve) for curve in curves(run)]
            _plot(axes, seeds, color=color, linestyle=dash, label=_entitled(label, data))
        if study.drawn == "accuracy":
            axes.set(ylabel=f"accuracy, % (mean of {WINDOW} evaluations)")
        else:
            axes.set(ylabel=study.drawn.replace("_", " "), yscale="log" if "norm" in study.drawn else "linear")
        scale: Literal["linear", "log"] = "linear" if study.against == "round" else "log"
        axes.set(xlabel=COSTS[study.against], xscale=scale)
        scale_costs(axes.xaxis, scale, axes.get_xlim(), most=16)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8, **beside(len(data["runs"])))
        figure.savefig(path, metadata={"Date": None})
    return True


def _plot(axes: Any, seeds: Sequence[tuple[list[float], list[float]]], color: str, **look: Any) -> None:
    """Plot the mean over seeds, with a band of one standard deviation."""
    # The seeds of a run that diverged have fewer evaluations.
    costs, values = ([*zip(*columns, strict=False)] for columns in zip(*seeds, strict=True))
    places, means = [fmean(each) for each in costs], [fmean(each) for each in values]
    axes.plot(places, means, color=color, marker="." if len(places) <= FEW else None, **look)
    if len(seeds) > 1:
        bands = [pstdev(each) for each in values]
        low, high = ([m + sign * b for m, b in zip(means, bands, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)


def _line(study: Study, curve: Curve) -> tuple[list[float], list[float]]:
    records = [record for record in curve if study.drawn in record]
    values = [record[study.drawn] for record in records]
    if study.drawn == "accuracy":
        values = [100 * fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
    if study.against == "bytes":
        return [both(record) for record in records], values
    return [record[study.against] for record in records], values
