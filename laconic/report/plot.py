"""Curves of runs as a picture for a paper: PNG, SVG or PDF, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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


def plot(runs: Sequence[Table], out: Path, *, metric: str, cost: str, scale: Scale) -> None:
    """The mean over the seeds of each setting, and a band from the lowest to the highest."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("pictures need matplotlib: pip install 'laconic[plot]'") from None
    figure = Figure(figsize=(7, 4.3), layout="constrained", dpi=150)
    axes = figure.subplots()
    factor = 100 if metric == "accuracy" else 1
    for label, members in _groups(runs).items():
        places = [_cost(run, cost) for run in members]
        values = [run["evaluations"][metric] for run in members]
        length = min(map(len, values))
        columns = [[factor * value[place] for value in values] for place in range(length)]
        at = [sum(place[end] for place in places) / len(places) for end in range(length)]
        (line,) = axes.plot(at, [sum(column) / len(column) for column in columns], label=label)
        if len(members) > 1:
            lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
            axes.fill_between(at, lowest, highest, color=line.get_color(), alpha=0.2, linewidth=0)
    name = metric.replace("_", " ")
    axes.set(xlabel=COSTS[cost], ylabel="accuracy, %" if metric == "accuracy" else name, xscale=scale)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(out)


def _groups(runs: Sequence[Table]) -> dict[str, list[Table]]:
    groups: dict[str, list[Table]] = {}
    for run in runs:
        groups.setdefault(run["label"], []).append(run)
    return groups


def _cost(run: Table, cost: str) -> list[float]:
    columns = run["evaluations"]
    if cost == "bytes":
        return [(up + down) / 1e6 for up, down in zip(columns["bytes_up"], columns["bytes_down"], strict=True)]
    if cost not in columns:
        raise ConfigError(f"--against {cost}: '{run['path']}' has no such number")
    scale = 1e6 if cost.startswith("bytes") else 1
    return [value / scale for value in columns[cost]]
