"""Draw the picture of the README, docs/figures/headline.svg, from the stored data of the frontier's first task.

    python tools/headline_picture.py

It shows the algorithms that reach 76.4 % with less than 100 MB, without variants of `fed_laconic`, and the two dense
methods of the README's table. docs/frontier.md shows all algorithms.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from laconic.report.figure import scale_costs
from laconic.report.palette import COLORS

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs/figures/headline.svg"
GRAY = "#6f7b88"
TARGET, WINDOW = 0.764, 5
OURS, DENSE = "fed_laconic", "fed_avg, clipped and averaged"
SHOWN = {
    OURS: ("fed_laconic", COLORS[1]),
    "stc": ("stc", COLORS[6]),
    "fed_ef_sgd, heavy_sign:1/16, two-way": ("fed_ef_sgd, both directions", COLORS[5]),
    "fed_bnlaca, top_k:1/8+qsgd:5": ("fed_bnlaca", COLORS[3]),
    "fed_cams_two_way": ("fed_cams_two_way", COLORS[4]),
    DENSE: ("fed_avg, clipped and averaged\n(the best dense method)", COLORS[2]),
    "fed_avg": ("fed_avg", COLORS[0]),
}
"""The runs in the order of their bytes to the target: the name in the picture, and the color."""
Line = tuple[list[float], list[float]]
"""Bytes in both directions, and the mean accuracy of the last five evaluations."""


def lines() -> dict[str, list[Line]]:
    """The line of each seed of the runs that are shown."""
    runs = json.loads((ROOT / "docs/data/frontier-fashion-mnist.json").read_text())["runs"]
    return {label: [line(curve) for curve in runs[label]["curves"]] for label in SHOWN}


def line(curve: dict[str, list[float]]) -> Line:
    """The line of one seed."""
    values = curve["accuracy"]
    means = [fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
    return [up + down for up, down in zip(curve["bytes_up"], curve["bytes_down"], strict=True)], means


def cost(of: Line) -> float:
    """The bytes at the first evaluation where the mean of five reaches the target."""
    return next(
        cost for number, (cost, mean) in enumerate(zip(*of, strict=True), 1) if number >= WINDOW and mean >= TARGET
    )


def factor(drawn: dict[str, list[Line]]) -> float:
    """How many times fewer bytes than the best dense method: the mean over seeds, as in docs/frontier.md."""
    dense = fmean(map(cost, drawn[DENSE]))
    return fmean(dense / cost(seed) for seed in drawn[OURS])


def draw(drawn: dict[str, list[Line]]) -> None:
    """Write the picture."""
    colored = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    style: dict[Any, Any] = {"svg.hashsalt": "laconic", "font.size": 11, **dict.fromkeys(colored, GRAY)}
    with rc_context(style):
        figure = Figure(figsize=(9, 4.3), layout="constrained")
        axes = figure.subplots()
        for label, seeds in drawn.items():
            name, color = SHOWN[label]
            costs, values = ([*zip(*columns, strict=True)] for columns in zip(*seeds, strict=True))
            places, means = [fmean(each) for each in costs], [100 * fmean(each) for each in values]
            spread = [100 * stdev(each) for each in values]
            axes.plot(places, means, color=color, label=name, linewidth=3 if label == OURS else 1.8)
            low, high = ([m + sign * s for m, s in zip(means, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(places, low, high, color=color, alpha=0.18, linewidth=0)
        axes.axhline(100 * TARGET, color=GRAY, linewidth=0.9, linestyle=(0, (6, 3)), zorder=1)
        ends = [fmean(map(cost, drawn[label])) for label in (OURS, DENSE)]
        height = 93
        axes.annotate("", (ends[0], height), (ends[1], height), arrowprops={"arrowstyle": "<->", "color": GRAY})
        for end in ends:
            axes.plot([end, end], [100 * TARGET, height], color=GRAY, linewidth=0.8, linestyle=":")
        middle = (ends[0] * ends[1]) ** 0.5
        axes.text(
            middle,
            height + 1,
            f"{factor(drawn):.0f} times fewer bytes to {100 * TARGET:.1f} %",
            ha="center",
            va="bottom",
        )
        axes.set(xlabel="bytes, both directions", ylabel="accuracy, %", xscale="log", ylim=(5, 102))
        scale_costs(axes.xaxis, "log", axes.get_xlim(), 10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(frameon=False, loc="outside right center", labelspacing=0.9)
        # Without a ground, and with gray letters, the picture is good to read on a white and on a dark page.
        figure.savefig(PICTURE, metadata={"Date": None}, transparent=True)


if __name__ == "__main__":
    draw(lines())
    print(PICTURE)
