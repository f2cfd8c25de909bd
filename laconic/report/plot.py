"""Static charts of runs for papers (PNG, SVG or PDF), with matplotlib."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from laconic.core.errors import ConfigError
from laconic.report.reading import Table

COSTS = {
    "bytes": "megabytes, both directions",
    "bytes_up": "megabytes up",
    "bytes_down": "megabytes down",
    "round": "round",
    "gradients": "gradients of single examples",
    "simulated_seconds": "simulated seconds",
    "seconds": "seconds",
}
CHARTS = ("curves", "pareto", "bytes")
FORMATS = ("png", "svg", "pdf")
Scale = Literal["linear", "log"]
STYLES = ("-", "--", ":", "-.")
"""Line styles. Colors repeat after ten lines; then the style changes."""
INSIDE = 6
"""Maximum number of lines for a legend inside the axes. A longer legend is placed to the right."""
NAMED = 40
"""Maximum number of lines in the legend."""
LONGEST = 60
"""Maximum number of characters of a label in the legend."""
HEADERS = "headers"
Line = dict[int, tuple[float, float]]
"""Round to (cumulative cost, metric)."""
Point = tuple[float, float, int]
"""Cost, metric, and index of the group."""
OFFSETS = [(right, up) for right in (-60, -35, -10, 10, 35, 60) for up in range(-60, 61, 10)]
"""Candidate offsets of an annotation from its point, in points (1/72 inch)."""


def beside(lines: int) -> dict[str, Any]:
    """Return the legend's position for this number of lines."""
    return {} if lines <= INSIDE else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: in the folder of the clone, pip install -e '.[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained", dpi=150)


def _figure_of_lines(groups: Sequence[Any]) -> Any:
    return _figure(11 if len(groups) > INSIDE else 7, max(4.3, 0.19 * min(len(groups), NAMED)))


def _name(number: int, label: str) -> str:
    """Return a line's label. Matplotlib omits labels with a leading underscore from the legend."""
    return _short(label) if number < NAMED else f"_{label}"


def _legend(axes: Any, groups: Sequence[Any]) -> None:
    omitted = len(groups) - NAMED
    title = f"and {omitted} more" if omitted > 0 else None
    font = 7 if len(groups) > INSIDE else 9
    axes.legend(frameon=False, fontsize=font, title=title, title_fontsize=font, **beside(len(groups)))


def plot(runs: Sequence[Table], out: Path, *, metric: str, cost: str, scale: Scale) -> None:
    """Plot each group's mean over seeds, a band from minimum to maximum, and a cross where a run diverged."""
    groups = _groups(runs)
    figure = _figure_of_lines(groups)
    axes = figure.subplots()
    factor = 100 if metric == "accuracy" else 1
    for number, members in enumerate(groups):
        lines = [_line(run, metric, cost, factor) for run in members]
        color = _draw_mean(axes, lines, STYLES[number // 10 % len(STYLES)], _name(number, members[0]["label"]))
        ends = [line[max(line)] for run, line in zip(members, lines, strict=True) if run["diverged"] and line]
        axes.plot([x for x, _ in ends], [y for _, y in ends], "x", color=color)
    name = _literal(metric.replace("_", " "))
    axes.set(xlabel=COSTS[cost], ylabel="accuracy, %" if metric == "accuracy" else name, xscale=scale)
    axes.grid(alpha=0.3)
    _legend(axes, groups)
    figure.savefig(out)


def _draw_mean(axes: Any, lines: Sequence[Line], style: str, label: str) -> Any:
    """Draw the mean of a group's lines, with a band if there are several. Return the color."""
    costs, columns = _joined(lines)
    (drawn,) = axes.plot(costs, [sum(column) / len(column) for column in columns], style, label=label)
    if len(lines) > 1:
        lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(costs, lowest, highest, color=drawn.get_color(), alpha=0.2, linewidth=0)
    return drawn.get_color()


def pareto(runs: Sequence[Table], out: Path, *, cost: str, scale: Scale) -> None:
    """Plot every evaluation as a point, and the Pareto front of accuracy and cost."""
    groups = _groups(runs)
    figure = _figure_of_lines(groups)
    axes = figure.subplots()
    points = []
    for number, members in enumerate(groups):
        own = [point for run in members for point in _line(run, "accuracy", cost, 100).values()]
        look = {"color": f"C{number % 10}", "marker": "os^D"[number // 10 % 4], "alpha": 0.6, "linewidths": 0}
        axes.scatter([x for x, _ in own], [y for _, y in own], 12, label=_name(number, members[0]["label"]), **look)
        points += [(*point, number) for point in own]
    front = _front(points)
    axes.step([x for x, _, _ in front], [y for _, y, _ in front], ":", where="post", color="0.4", linewidth=1.2)
    axes.set(xlabel=COSTS[cost], ylabel="accuracy, %", xscale=scale)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.15 * (high - low))  # room for annotations
    axes.grid(alpha=0.3)
    _legend(axes, groups)
    # Annotate each group on the front at its best point.
    best = {number: (x, y) for x, y, number in front}
    names = {groups[number][0]["label"]: (*point, f"C{number % 10}") for number, point in best.items()}
    steps = [(x, y) for (start, y, _), (end, _, _) in pairwise(front) for x in np.geomspace(start or end / 10, end, 20)]
    _annotate(axes, names, [(x, y) for x, y, _ in points] + steps)
    figure.savefig(out)


def _front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front (low x, high y), in the order of x."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def _annotate(axes: Any, names: dict[str, tuple[float, float, str]], points: Sequence[tuple[float, float]]) -> None:
    """Write names beside their points, each at the offset where it overlaps least with names, frame and points."""
    from matplotlib.transforms import Bbox  # late: an extra

    axes.figure.draw_without_rendering()
    frame, dots, pixels = axes.get_window_extent(), axes.transData.transform(points), axes.figure.dpi / 72
    taken: list[Any] = []
    for label, (x, y, color) in names.items():
        text = "\n".join(textwrap.wrap(_short(label), 30))
        trial = axes.text(x, y, text, fontsize=7)
        size, (left, middle) = trial.get_window_extent().size, axes.transData.transform((x, y))
        trial.remove()
        boxes = {}
        for right, up in OFFSETS:
            start = left + right * pixels - (size[0] if right < 0 else 0)
            boxes[right, up] = Bbox.from_bounds(start, middle + up * pixels - size[1] / 2, *size)

        def penalty(offset: tuple[int, int], boxes: dict[tuple[int, int], Any] = boxes) -> float:
            box = boxes[offset]
            outside = not (frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1))
            overlaps = sum(box.overlaps(other) for other in taken)
            return float(1000 * (overlaps + outside) + 10 * box.count_contains(dots) + sum(map(abs, offset)) / 20)

        offset = min(OFFSETS, key=penalty)
        taken.append(boxes[offset])
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 2}
        side = "right" if offset[0] < 0 else "left"
        position = {"xytext": offset, "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(text, (x, y), color=color, fontsize=7, arrowprops=line, **position)


def traffic(runs: Sequence[Table], out: Path) -> None:
    """Plot each group's bytes by direction and stream, with headers separate: in megabytes and as shares."""
    groups = _groups(runs)
    sums = [_streams(members) for members in groups]
    streams = sorted({name for own in sums for name in own}, key=lambda name: (name == HEADERS, name))
    names = ["\n".join(textwrap.wrap(_literal(members[0]["label"]), 34)) for members in groups]
    lines = [1 + name.count("\n") for name in names]
    figure = _figure(9, 1.4 + sum(0.16 * count + 0.2 for count in lines))
    left, right = figure.subplots(1, 2, sharey=True)
    tops = [sum(0.16 * count + 0.2 for count in lines[:index]) for index in range(len(lines))]
    middles = [top + 0.08 * count for top, count in zip(tops, lines, strict=True)]
    _draw_bars(left, middles, sums, streams, [1e6] * len(sums))
    _draw_bars(right, middles, sums, streams, [sum(own.values()) / 100 or 1 for own in sums])
    left.set(xlabel="megabytes", yticks=middles, yticklabels=names)
    left.tick_params(axis="y", labelsize=8)
    left.invert_yaxis()
    right.set(xlabel="% of its bytes", xlim=(0, 100))
    handles, texts = left.get_legend_handles_labels()
    figure.legend(handles, texts, loc="outside upper center", ncols=6, frameon=False, fontsize=8)
    figure.savefig(out)


def _draw_bars(
    axes: Any, middles: list[float], sums: list[Counter[str]], streams: Sequence[str], units: Sequence[float]
) -> None:
    """Draw one stacked bar of streams per group. `units` has each group's divisor."""
    ends = [0.0] * len(sums)
    for number, stream in enumerate(streams):
        width = [own[stream] / unit for own, unit in zip(sums, units, strict=True)]
        color = "0.6" if stream == HEADERS else f"C{number % 10}"
        axes.barh(middles, width, 0.18, ends, color=color, label=_literal(stream))
        ends = [end + more for end, more in zip(ends, width, strict=True)]
    axes.grid(alpha=0.3, axis="x")
    axes.set_axisbelow(True)


def _streams(members: Sequence[Table]) -> Counter[str]:
    """Average the streams over the finished runs, or over all runs if none is finished."""
    counted = [run for run in members if run["finished"]] or members
    means: Counter[str] = Counter()
    for run in counted:
        for name, stream in run["streams"].items():
            means[name] += (stream["bytes"] - stream["headers"]) / len(counted)
            means[HEADERS] += stream["headers"] / len(counted)
    return means


def _short(label: str) -> str:
    return _literal(label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…")


def _literal(text: str) -> str:
    """Escape dollar signs, between which matplotlib expects a formula."""
    return text.replace("$", r"\$")


def _groups(runs: Sequence[Table]) -> list[list[Table]]:
    groups: dict[str, list[Table]] = {}
    for run in runs:
        groups.setdefault(run["group"], []).append(run)
    return list(groups.values())


def _joined(lines: Sequence[Line]) -> tuple[list[float], list[list[float]]]:
    """Return mean costs and the seeds' values per round.

    A round is skipped if a seed that has got that far has no value for it. Seeds that ended earlier do not count.
    """
    costs, columns = [], []
    for number in sorted({number for line in lines for number in line}):
        points = [line[number] for line in lines if number in line]
        if len(points) == sum(max(line, default=0) >= number for line in lines):
            costs.append(sum(cost for cost, _ in points) / len(points))
            columns.append([value for _, value in points])
    return costs, columns


def _line(run: Table, metric: str, cost: str, factor: float) -> Line:
    """Return the curve of one run, with the metric multiplied by the factor."""
    columns: Table = run["evaluations"] if metric in run["metrics"] else run["course"]
    if cost == "bytes":
        costs = [(up + down) / 1e6 for up, down in zip(columns["bytes_up"], columns["bytes_down"], strict=True)]
    elif cost not in columns:
        raise ConfigError(f"--against {cost}: '{run['path']}' has no such metric")
    else:
        unit = 1e6 if cost.startswith("bytes") else 1
        costs = [None if value is None else value / unit for value in columns[cost]]
    rows = zip(columns["round"], costs, columns[metric], strict=True)
    return {number: (at, factor * value) for number, at, value in rows if None not in (at, value)}
