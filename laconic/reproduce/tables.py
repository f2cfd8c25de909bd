"""A study's results as people read them: a table beside the paper's numbers, the claims, a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from laconic.report import COSTS, STYLES, beside
from laconic.reproduce.claims import Claim, Rows, Verdict
from laconic.reproduce.measures import Curve, both, mean
from laconic.reproduce.runner import Data, curves
from laconic.reproduce.study import Study
from laconic.run import WINDOW

FEW = 12
"""Evaluations that are drawn as points, too."""


@dataclass(frozen=True)
class Grid:
    """A table of words, for a terminal or a page."""

    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """As a page has it."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def rows(study: Study, data: Data) -> Rows:
    """The numbers of each run: means over seeds."""
    if "rows" in data:
        computed: Rows = data["rows"]
        return computed
    found = {label: curves(run) for label, run in data["runs"].items()}
    return {label: {m.name: mean(m, each) for m in study.measures} for label, each in found.items()}


def grid(study: Study, data: Data) -> Grid:
    """Our numbers; where the paper has one, it follows in brackets, with the difference."""
    numbers = rows(study, data)
    lines = []
    for label, own in numbers.items():
        line = [_entitled(label, data)]
        for measure in study.measures:
            value, theirs = own.get(measure.name), study.paper.get(label, {}).get(measure.name)
            text = measure.text(value)
            if theirs is not None:
                gap = "" if value is None else f", {measure.difference(value - theirs)}"
                text += f" ({measure.text(theirs)}{gap})"
            line.append(text)
        lines.append(line)
    return Grid(["", *(measure.name for measure in study.measures)], lines)


BRACKETS = "In brackets: the paper's number, and how far ours is from it."


def _entitled(label: str, data: Data) -> str:
    run = data.get("runs", {}).get(label, {})
    said = [f"rate {run['rate']}"] if "rate" in run else []
    said += ["diverged"] if run.get("diverged") else []
    return f"{label} ({', '.join(said)})" if said else label


def verdicts(study: Study, data: Data) -> list[tuple[Claim, Verdict]]:
    """Every claim with what the numbers say of it."""
    numbers = rows(study, data)
    return [(claim, claim.judge(numbers)) for claim in study.claims]


def about(study: Study, data: Data) -> str:
    """How much of it was run, when, where."""
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
    """Which rates were tried, where they were fewer than the paper's."""
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
    """The curves as a picture, where there are any and matplotlib is there."""
    if "runs" not in data:
        return False
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError:
        return False
    # A fixed salt: the same data give the same file.
    with rc_context({"svg.hashsalt": "laconic"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, (label, run) in enumerate(data["runs"].items()):
            places, values = _line(study, curves(run)[0])
            marker = "." if len(places) <= FEW else None
            axes.plot(places, values, STYLES[number // 10 % len(STYLES)], marker=marker, label=_entitled(label, data))
        if study.drawn == "accuracy":
            axes.set(ylabel=f"accuracy, % (mean of {WINDOW} evaluations)")
        else:
            axes.set(ylabel=study.drawn.replace("_", " "), yscale="log" if "norm" in study.drawn else "linear")
        axes.set(xlabel=COSTS[study.against], xscale="linear" if study.against == "round" else "log")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8, **beside(len(data["runs"])))
        figure.savefig(path, metadata={"Date": None})
    return True


def _line(study: Study, curve: Curve) -> tuple[list[float], list[float]]:
    shown = [record for record in curve if study.drawn in record]
    values = [record[study.drawn] for record in shown]
    if study.drawn == "accuracy":
        values = [100 * fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
    if study.against == "bytes":
        return [both(record) / 1e6 for record in shown], values
    unit = 1e6 if study.against == "bytes_up" else 1
    return [record[study.against] / unit for record in shown], values
