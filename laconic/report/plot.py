"""Static charts of runs for papers (PNG, SVG or PDF), with matplotlib."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from laconic.core.errors import ConfigError
from laconic.report.figure import (
    INSIDE,
    NAMED,
    STYLES,
    Scale,
    Style,
    annotate,
    figure,
    legend,
    line_name,
    literal,
    scale_costs,
    set_title,
)
from laconic.report.palette import COLORS, HEADERS, stream_tones
from laconic.report.reading import Table
from laconic.report.units import size
from laconic.run.target import Target

COSTS = {
    "bytes": "bytes, both directions",
    "bytes_up": "bytes up",
    "bytes_down": "bytes down",
    "round": "round",
    "gradients": "gradients of single examples",
    "simulated_seconds": "simulated seconds",
    "seconds": "seconds",
}
CHARTS = ("curves", "pareto", "bytes")
FORMATS = ("png", "svg", "pdf")
DASHES = ("-", "--", ":", "-.", (0, (8, 2)))
MARKERS = "os^D<Pp*"
"""Markers and dashes tell lines apart where a page is printed in gray."""
Line = dict[int, tuple[float, float]]
"""Round to (cumulative cost, metric)."""
Point = tuple[float, float, int]
"""Cost, metric, and index of the group."""


def plot(
    runs: Sequence[Table],
    out: Path,
    *,
    metric: str,
    cost: str,
    scale: Scale,
    target: Target | None = None,
    style: str = "screen",
) -> None:
    """Plot each group's mean over seeds, a band from minimum to maximum, and a cross where a run diverged or collapsed."""
    groups, look = _groups(runs), STYLES[style]
    percent = metric == "accuracy"
    with figure(out, look, *_size(groups, look)) as drawn:
        axes = drawn.subplots()
        for number, members in enumerate(groups):
            lines = [_line(run, metric, cost, 100 if percent else 1) for run in members]
            color, _ = _look(members)
            _draw_mean(axes, lines, members, number, gray=not look.titled)
            ends = [line[max(line)] for run, line in zip(members, lines, strict=True) if run["diverged"] and line]
            falls = [
                (run["collapsed"]["round"], line) for run, line in zip(members, lines, strict=True) if run["collapsed"]
            ]
            ends += [line[number] for number, line in falls if number in line]
            axes.plot([x for x, _ in ends], [y for _, y in ends], "x", color=color, markersize=4 * look.line)
        _draw_target(axes, target, metric)
        name = "accuracy, %" if percent else literal(metric.replace("_", " "))
        axes.set(xlabel=COSTS[cost], ylabel=name, xscale=scale)
        _finish(drawn, axes, runs, groups, look, scale, f"{_words(metric)} against {COSTS[cost]}")


def _look(members: Sequence[Table]) -> tuple[str, int]:
    """Return the color of a group, and how often colors had been used up before it."""
    index = members[0].get("color", 0)
    return COLORS[index % len(COLORS)], index // len(COLORS)


def _draw_mean(axes: Any, lines: Sequence[Line], members: Sequence[Table], number: int, gray: bool) -> None:
    """Draw the mean of a group's lines, with a band if there are several. `gray`: tell lines apart by their dashes, too."""
    color, cycle = _look(members)
    index = members[0].get("color", 0)
    costs, columns = _joined(lines)
    look: dict[str, Any] = {"color": color, "linestyle": DASHES[(index if gray else cycle) % len(DASHES)]}
    look |= {"marker": MARKERS[index % len(MARKERS)], "markevery": max(1, len(costs) // 8)}
    axes.plot(
        costs, [sum(column) / len(column) for column in columns], label=line_name(number, members[0]["label"]), **look
    )
    if len(lines) > 1:
        lowest, highest = [min(column) for column in columns], [max(column) for column in columns]
        axes.fill_between(costs, lowest, highest, color=color, alpha=0.2, linewidth=0)


def _draw_target(axes: Any, target: Target | None, metric: str) -> None:
    """Draw a line at the target, if the chart has its metric."""
    if target is not None and target.metric == metric:
        height = 100 * target.value if metric == "accuracy" else target.value
        axes.axhline(height, color="0.4", linewidth=0.8, linestyle=(0, (6, 3)), zorder=1)
        place = ("axes fraction", "data")
        axes.annotate(literal(f"target {target}"), (0.01, height), xycoords=place, va="bottom", color="0.3")


def _words(metric: str) -> str:
    return literal(metric.replace("_", " ").capitalize())


def _size(groups: Sequence[Any], style: Style) -> tuple[float, float]:
    """Return the size of a figure with one chart and its legend."""
    lines = sum(1 + line_name(0, members[0]["label"]).count("\n") for members in groups[:NAMED])
    if style.below:
        return style.width, style.height + 0.13 * lines
    wide = len(groups) > INSIDE
    return style.width + (4 if wide else 0), max(style.height, 0.19 * lines)


def _finish(
    drawn: Any,
    axes: Any,
    runs: Sequence[Table],
    groups: Sequence[Any],
    style: Style,
    scale: Scale,
    title: str,
) -> None:
    """Add ticks, grid, title and legend to a chart of a metric against a cost."""
    scale_costs(axes.xaxis, scale, axes.get_xlim(), 7 if style.below else 16)
    axes.grid(alpha=0.3)
    if style.titled:
        set_title(axes, title, runs)
    legend(drawn, axes, len(groups), style)


def pareto(
    runs: Sequence[Table], out: Path, *, cost: str, scale: Scale, target: Target | None = None, style: str = "screen"
) -> None:
    """Plot every evaluation as a point, and the Pareto front of accuracy and cost."""
    groups, look = _groups(runs), STYLES[style]
    with figure(out, look, *_size(groups, look)) as drawn:
        axes = drawn.subplots()
        points = []
        for number, members in enumerate(groups):
            own = [point for run in members for point in _line(run, "accuracy", cost, 100).values()]
            marker = MARKERS[members[0].get("color", 0) % len(MARKERS)]
            form = {"color": _look(members)[0], "marker": marker, "alpha": 0.6, "linewidths": 0}
            name = line_name(number, members[0]["label"])
            axes.scatter([x for x, _ in own], [y for _, y in own], 8 * look.line, label=name, **form)
            points += [(*point, number) for point in own]
        front = _front(points)
        axes.step(
            [x for x, _, _ in front],
            [y for _, y, _ in front],
            ":",
            where="post",
            color="0.2",
            linewidth=0.75 * look.line,
        )
        _draw_target(axes, target, "accuracy")
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.15 * (high - low))  # room for annotations
        axes.set(xlabel=COSTS[cost], ylabel="accuracy, %", xscale=scale)
        _finish(drawn, axes, runs, groups, look, scale, f"Pareto front: accuracy against {COSTS[cost]}")
        # Annotate each group on the front at its best point.
        best = {number: (x, y) for x, y, number in front}
        names = {groups[number][0]["label"]: (*point, _look(groups[number])[0]) for number, point in best.items()}
        annotate(axes, names, [*((x, y) for x, y, _ in points), *_along(front)])


def _along(front: Sequence[Point]) -> Iterator[tuple[float, float]]:
    """Points along the line of the front, which annotations avoid."""
    for (start, y, _), (end, _, _) in pairwise(front):
        yield from ((x, y) for x in np.geomspace(start or end / 10, end, 20))


def _front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front (low x, high y), in the order of x."""
    front: list[Point] = []
    for point in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def traffic(runs: Sequence[Table], out: Path, style: str = "screen") -> None:
    """Plot each group's bytes by direction and stream, with headers separate: in bytes and as shares."""
    groups, look = _groups(runs), STYLES[style]
    sums = [_streams(members) for members in groups]
    names = ["\n".join(textwrap.wrap(literal(members[0]["label"]), 34)) for members in groups]
    lines = [1 + name.count("\n") for name in names]
    heights = [0.018 * look.font * count + 0.2 for count in lines]
    with figure(out, look, look.wide, 1.4 + 0.3 * look.titled + sum(heights)) as drawn:
        left, right = drawn.subplots(1, 2, sharey=True)
        middles = [sum(heights[:index]) + 0.009 * look.font * count for index, count in enumerate(lines)]
        _draw_bars(left, middles, sums, [1] * len(sums))
        _draw_bars(right, middles, sums, [sum(own.values()) / 100 or 1 for own in sums])
        left.set(xlabel="bytes", yticks=middles, yticklabels=names)
        scale_costs(left.xaxis, "linear", left.get_xlim(), 10)
        left.invert_yaxis()
        right.set(xlabel="% of its bytes", xlim=(0, 100))
        for text, members in zip(left.get_yticklabels(), groups, strict=True):
            text.set_color(_look(members)[0])
        for end, own in zip(middles, sums, strict=True):
            left.annotate(f" {size(sum(own.values()))}", (sum(own.values()), end), va="center")
        left.margins(x=0.16)
        if look.titled:
            set_title(left, "Bytes by direction and stream", runs)
        handles, texts = left.get_legend_handles_labels()
        drawn.legend(handles, texts, loc="outside lower center", ncols=6)


def _draw_bars(axes: Any, middles: list[float], sums: list[Counter[str]], units: Sequence[float]) -> None:
    """Draw one stacked bar of streams per group. `units` has each group's divisor."""
    ends = [0.0] * len(sums)
    names = {name for own in sums for name in own}
    tones = stream_tones(names)
    for stream in sorted(names, key=lambda name: (name == HEADERS, name)):
        width = [own[stream] / unit for own, unit in zip(sums, units, strict=True)]
        hatch = "////" if stream == HEADERS else None
        form = {"color": tones[stream], "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        axes.barh(middles, width, 0.18, ends, label=literal(stream), **form)
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
        costs = [up + down for up, down in zip(columns["bytes_up"], columns["bytes_down"], strict=True)]
    elif cost not in columns:
        raise ConfigError(f"--against {cost}: '{run['path']}' has no such metric")
    else:
        costs = columns[cost]
    rows = zip(columns["round"], costs, columns[metric], strict=True)
    return {number: (at, factor * value) for number, at, value in rows if None not in (at, value)}
