"""Curves of runs as a picture for a paper: PNG, SVG or PDF, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from laconic.errors import ConfigError
from laconic.report.gather import Table

COSTS = {
    "bytes": "megabytes, both directions",
    "bytes_up": "megabytes up",
    "bytes_down": "megabytes down",
    "round": "round",
    "gradients": "gradients of single examples",
    "simulated_seconds": "simulated seconds",
    "seconds": "seconds",
}
FORMATS = ("png", "svg", "pdf")
Scale = Literal["linear", "log"]
STYLES = ("-", "--", ":", "-.")
"""Colours come again after ten lines; then the line changes."""
INSIDE = 6
"""Lines whose names fit into a picture; those of more stand beside it."""
NAMED = 40
"""Lines that are named at all."""
LONGEST = 60
"""Letters of a name; more would leave no room for the picture."""


def beside(lines: int) -> dict[str, Any]:
    """Where the legend of so many lines goes."""
    return {} if lines <= INSIDE else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}


def plot(runs: Sequence[Table], out: Path, *, metric: str, cost: str, scale: Scale) -> None:
    """The mean over the seeds of each setting, and a band from the lowest to the highest."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: in the folder of the clone, pip install -e '.[plot]'") from None
    groups = _groups(runs)
    wide = len(groups) > INSIDE
    figure = Figure(
        figsize=(11 if wide else 7, max(4.3, 0.19 * min(len(groups), NAMED))), layout="constrained", dpi=150
    )
    axes = figure.subplots()
    factor = 100 if metric == "accuracy" else 1
    for number, members in enumerate(groups):
        label = members[0]["label"]
        at, columns = _joined([_line(run, metric, cost) for run in members])
        columns = [[factor * value for value in column] for column in columns]
        style = STYLES[number // 10 % len(STYLES)]
        mean = [sum(column) / len(column) for column in columns]
        # A name that begins with an underscore is not in the legend.
        (line,) = axes.plot(at, mean, style, label=_short(label) if number < NAMED else f"_{label}")
        if len(members) > 1:
            lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
            axes.fill_between(at, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    name = metric.replace("_", " ")
    axes.set(xlabel=COSTS[cost], ylabel="accuracy, %" if metric == "accuracy" else name, xscale=scale)
    axes.grid(alpha=0.3)
    left = len(groups) - NAMED
    title = f"and {left} more" if left > 0 else None
    font = 7 if wide else 9
    axes.legend(frameon=False, fontsize=font, title=title, title_fontsize=font, **beside(len(groups)))
    figure.savefig(out)


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _groups(runs: Sequence[Table]) -> list[list[Table]]:
    groups: dict[str, list[Table]] = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    return list(groups.values())


Line = dict[int, tuple[float, float]]
"""By round: what it had cost, and the metric."""


def _joined(lines: Sequence[Line]) -> tuple[list[float], list[list[float]]]:
    """Mean costs, and the values of all seeds, at the rounds that all seeds have that have come so far."""
    at, columns = [], []
    for number in sorted({number for line in lines for number in line}):
        there = [line[number] for line in lines if number in line]
        if len(there) == sum(max(line, default=0) >= number for line in lines):
            at.append(sum(place for place, _ in there) / len(there))
            columns.append([value for _, value in there])
    return at, columns


def _line(run: Table, metric: str, cost: str) -> Line:
    columns: Table = run["evaluations"] if metric in run["metrics"] else run["course"]
    if cost == "bytes":
        places = [(up + down) / 1e6 for up, down in zip(columns["bytes_up"], columns["bytes_down"], strict=True)]
    elif cost not in columns:
        raise ConfigError(f"--against {cost}: '{run['path']}' has no such number")
    else:
        places = [value / (1e6 if cost.startswith("bytes") else 1) for value in columns[cost]]
    rows = zip(columns["round"], places, columns[metric], strict=True)
    return {number: (place, value) for number, place, value in rows if value is not None}
