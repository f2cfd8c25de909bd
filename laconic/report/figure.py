"""Figures with matplotlib: their size and fonts, titles, ticks, legends and annotations."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laconic.core.counts import counted
from laconic.core.errors import missing_extra
from laconic.report.reading import Table

Scale = Literal["linear", "log"]
INSIDE = 3
"""Maximum number of lines for a legend inside the axes. A longer one would cover curves and is placed to the right."""
NAMED = 40
"""Maximum number of lines in the legend."""
WIDEST = 60
"""Maximum number of characters of a line of the legend. A longer label has several lines."""
OFFSETS = [(right, up) for right in (-60, -35, -10, 10, 35, 60) for up in range(-60, 61, 10)]
"""Candidate offsets of an annotation from its point, in points (1/72 inch)."""


@dataclass(frozen=True)
class Style:
    """Sizes of a figure, in inches and points."""

    width: float
    height: float
    font: float
    line: float
    wide: float
    """The width of a figure with two charts."""
    titled: bool
    """Whether the figure has a title. In a paper the caption has it."""

    @property
    def below(self) -> bool:
        """Whether the legend is below the chart, which has no room for it."""
        return self.width < 5


STYLES = {
    "screen": Style(7.0, 4.3, 9, 1.6, 9.0, titled=True),
    # One column of a two-column paper, as IEEE, ICML and ACM have them; two charts span both columns.
    "paper": Style(3.35, 2.2, 7, 1.0, 6.9, titled=False),
}


@contextmanager
def figure(out: Path, style: Style, width: float, height: float) -> Iterator[Any]:
    """A figure that is written to a file at the end."""
    try:
        import matplotlib  # late: an extra
        from matplotlib.figure import Figure
    except ImportError:
        raise missing_extra("plots need matplotlib", "plot") from None
    look: dict[Any, Any] = {
        **{"font.size": style.font, "axes.titlesize": style.font + 1, "axes.labelsize": style.font},
        **{"lines.linewidth": style.line, "lines.markersize": 2.5 * style.line, "axes.linewidth": 0.6},
        **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
        # Publishers want fonts that are embedded as outlines.
        "pdf.fonttype": 42,
    }
    with matplotlib.rc_context(look):
        drawn = Figure(figsize=(width, height), layout="constrained", dpi=150 if style.titled else 300)
        yield drawn
        drawn.savefig(out)


def si(value: float, _: Any = None) -> str:
    """Format a tick as in the report.

    >>> si(20_000), si(1.5e6), si(0.02), si(0)
    ('20k', '1.5M', '0.02', '0')
    """
    for unit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{prefix}"
    return f"{value:g}"


def scale_costs(axis: Any, scale: Scale, limits: tuple[float, float], most: int) -> None:
    """Set the ticks of a cost axis: 10k, 20k, 50k, 100k on a logarithmic one, or whole powers of ten if it is long."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator  # late: an extra

    if scale == "log" and limits[0] > 0:
        decades = math.log10(limits[1] / limits[0])
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if 3 * decades < most else (1,), numticks=most + 2))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(most // 2))
    axis.set_major_formatter(FuncFormatter(si))


def set_title(axes: Any, what: str, runs: Sequence[Table]) -> None:
    """Write what a chart shows, and on which data."""
    settings = [run["settings"] for run in runs]

    def common(key: str) -> str:
        values = dict.fromkeys(Path(str(own[key])).name for own in settings if key in own)
        return next(iter(values)) if len(values) == 1 else ""

    clients, per_round = common("clients"), common("participants")
    taking_part = clients and (f"{per_round} of " if per_round else "") + counted(clients, "client")
    counts = sorted(Counter(group for group, _ in {(run["group"], run["seed"]) for run in runs}).values())
    seeds = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    facts = [common("partition"), taking_part, common("model"), counted(seeds, "seed")]
    where = ": ".join(filter(None, [common("dataset"), ", ".join(filter(None, facts))]))
    axes.set_title(f"{what}\n{literal(where)}", loc="left")


def legend(figure: Any, axes: Any, count: int, style: Style) -> None:
    """Place the legend: inside, to the right if it is long, or below a small chart."""
    omitted = count - NAMED
    title = f"and {omitted} more" if omitted > 0 else None
    font = style.font - (2 if count > 2 * INSIDE else 0.5)
    if style.below:
        handles, texts = axes.get_legend_handles_labels()
        columns = 2 if max(map(len, texts), default=0) < 24 else 1
        figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize=font, title=title)
    else:
        axes.legend(fontsize=font, title=title, title_fontsize=font, **beside(count))


def beside(lines: int) -> dict[str, Any]:
    """Return the legend's position for this number of lines."""
    return {} if lines <= INSIDE else {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}


def line_name(number: int, label: str) -> str:
    """Return a line's label. Matplotlib omits labels with a leading underscore from the legend."""
    return wrapped(label, WIDEST) if number < NAMED else f"_{label}"


def wrapped(label: str, width: int) -> str:
    """Wrap a label, whose end may be what tells it from another. Only what does not fit into three lines is cut."""
    return literal("\n".join(textwrap.wrap(label, width, max_lines=3, placeholder=" …")))


def literal(text: str) -> str:
    """Escape dollar signs, between which matplotlib expects a formula."""
    return text.replace("$", r"\$")


def annotate(axes: Any, names: Mapping[str, tuple[float, float, str]], points: Sequence[tuple[float, float]]) -> None:
    """Write names beside their points, each at the offset where it overlaps least with texts, frame and points."""
    from matplotlib.transforms import Bbox  # late: an extra

    axes.figure.draw_without_rendering()
    frame, dots, pixels = axes.get_window_extent(), axes.transData.transform(points), axes.figure.dpi / 72
    font = axes.xaxis.label.get_fontsize() - 1.5
    taken = [text.get_window_extent() for text in axes.texts]
    for label, (x, y, color) in names.items():
        text = wrapped(label, 30)
        trial = axes.text(x, y, text, fontsize=font)
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
        axes.annotate(text, (x, y), color=color, fontsize=font, arrowprops=line, **position)
