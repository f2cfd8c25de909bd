"""Tables, verdicts and figures of a study's results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from laconic.core import counted
from laconic.report import COLORS, COSTS, DASHES, scale_costs
from laconic.reproduce.claims import Comparable, Result, Results, Verdict, judge
from laconic.reproduce.measures import LAST_FIVE, Curve, Measure, both
from laconic.reproduce.plans import Data, evaluated_every, other_options, plan
from laconic.reproduce.runner import by_seed, curves
from laconic.reproduce.study import Study
from laconic.reproduce.targets import END, WHY, bytes_to, costs, goals
from laconic.run import WINDOW, over_seeds

AXES = COSTS | {"paper_bits_up": "bits up, as the paper counts them"}
"""Titles of the horizontal axis."""
FEW = 12
"""Maximum number of evaluations that are drawn with markers."""
OURS, STRONG = "fed_laconic", COLORS[1]
"""The recipe that figures of comparisons emphasize, and its color."""
GRAY = "#6f7b88"
"""Letters and axes of a figure. The contrast is at least 4:1 to a white and to a dark page."""
COLORED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")


@dataclass(frozen=True)
class Grid:
    """A table of text, for a terminal or a page."""

    head: list[str]
    rows: list[list[str]]
    title: str = ""
    note: str = ""
    """A line below the table."""

    def markdown(self) -> str:
        """Format as Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        table = "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
        title = f"**{self.title}**" if self.title else ""
        return "\n\n".join(filter(None, [title, table if self.rows else "", self.note]))


def results(study: Study, data: Data) -> Results:
    """Return the measures of each run and seed."""
    if "rows" in data:
        numbers = by_seed(data)
        return {label: {seed: Result(rows[label]) for seed, rows in numbers.items()} for label in data["rows"]}
    return {
        label: {
            seed: Result({m.name: m.of(curve) for m in study.measures}, curve)
            for seed, curve in zip(run["seeds"], curves(run), strict=True)
        }
        for label, run in data["runs"].items()
    }


def grid(study: Study, data: Data) -> Grid:
    """Return the table of our numbers, followed by the paper's number and the difference in brackets, if any.

    With several seeds a number is the mean and the standard deviation.
    """
    lines = []
    for label, runs in results(study, data).items():
        line = [_entitled(label, data)]
        for measure in study.measures:
            values = [result.numbers.get(measure.name) for result in runs.values()]
            value, theirs = over_seeds(values), study.paper.get(label, {}).get(measure.name)
            text = _over_seeds(measure, values)
            if theirs is not None:
                gap = "" if value is None else f", {measure.difference(value - theirs)}"
                text += f" ({measure.printed(theirs)}{gap})"
            line.append(text)
        lines.append(line)
    return Grid(["", *(measure.name for measure in study.measures)], lines)


def _over_seeds(measure: Measure, values: Sequence[float | None]) -> str:
    return measure.mean_text(over_seeds(values), over_seeds(values, stdev, 2))


def grids(study: Study, data: Data) -> list[Grid]:
    """Return one table for each target that the study's references set. Without targets, return the table of all runs."""
    targets = zip(goals(study, data), [*WHY, *([""] * len(study.goals))], strict=False)
    return [_target(study, data, *target) for target in targets] or [grid(study, data)]


def _target(study: Study, data: Data, accuracy: float, why: str) -> Grid:
    """Return the table of the runs that reach a target with all seeds, fewest bytes first. Its note names the others."""
    columns = costs(study, data, accuracy)
    reached: list[tuple[float, list[str]]] = []
    missed: list[tuple[float, str]] = []
    for label, run in data["runs"].items():
        seeds, title = curves(run), _entitled(label, data)
        needed = [bytes_to(curve, accuracy) for curve in seeds]
        line = [_over_seeds(measure, [measure.of(curve) for curve in seeds]) for measure in columns]
        if (mean := over_seeds(needed)) is not None:
            reached.append((mean, [title, *line]))
            continue
        some = len(needed) - needed.count(None)
        part = f" (reached with {some} of {counted(len(needed), 'seed')})" if some else ""
        missed.append((-(over_seeds([END.of(curve) for curve in seeds]) or 0), f"{title} {line[0]}{part}"))
    rows = [row for _, row in sorted(reached)]
    others = "; ".join(text for _, text in sorted(missed))
    return Grid(
        ["algorithm", *(measure.name for measure in columns)],
        rows,
        f"Target {100 * accuracy:.1f} %" + (f": {why}" if why else ""),
        f"Not reached, with the final accuracy in %: {others}." if others else "",
    )


BRACKETS = "In parentheses: the paper's number, and ours minus the paper's."


def _entitled(label: str, data: Data) -> str:
    run = data.get("runs", {}).get(label, {})
    details = [f"rate {run['rate']}"] if "rate" in run else []
    details += [f"server rate {run['server_rate']}"] if "server_rate" in run else []
    details += ["diverged"] if run.get("diverged") else []
    return f"{label} ({', '.join(details)})" if details else label


def verdicts(study: Study, data: Data, beside: Data | None = None) -> dict[str, Verdict]:
    """Judge every claim. Return the verdicts by the paper's statement.

    Args:
        beside: The data of the study that `study.beside` names.
    """
    others = results(study, beside) if beside else {}
    known = {**others, **results(study, data)}

    def judged(claim: Comparable) -> Verdict:
        if beside and beside["rounds"] != data["rounds"] and others.keys() & {*claim.labels}:
            return Verdict(
                "not judged", f"{study.beside} has {counted(beside['rounds'], 'round')}, not {data['rounds']}"
            )
        return _not_learned(study, claim, known) or judge(claim, known, exact=study.exact)

    return {text: judged(claim) for text, claim in study.claims.items()}


def _not_learned(study: Study, claim: Comparable, known: Results) -> Verdict | None:
    """Return the verdict of a claim whose runs all failed."""
    ends = [LAST_FIVE.of(run.curve) or 0.0 for label in claim.labels for run in known.get(label, {}).values()]
    if not study.learned or not ends or max(ends) >= study.learned:
        return None
    return Verdict("not judged", f"no run ended above {study.learned:g} %; the best had {max(ends):.1f} %")


def about(study: Study, data: Data) -> str:
    """Describe the extent, date and environment of the runs, from the data alone."""
    if "rows" in data:
        seeds = len(data.get("seeds", [0]))
        counts = [] if study.exact else [counted(seeds, "seed")]
        return f"{'; '.join([*counts, *_trials(study, data), data['date']])}, {data['software']}."
    counts = [_seeds(study, data), _rounds(study, data), _rates(study, data), _left_out(study, data)]
    return f"{'; '.join(filter(None, counts))}. {data['date']}, {_hardware(data)}, {data['software']}."


def _hardware(data: Data) -> str:
    """The machine of the runs. Some stored data has `1 cores`."""
    return re.sub(r"^(\d+) cores?\b", lambda found: counted(found[1], "core"), str(data["hardware"]))


def _trials(study: Study, data: Data) -> list[str]:
    if not study.trials:
        return []
    done, whole = study.trials[data["mode"]], study.trials["full"]
    return [f"{done:,} of {counted(whole, 'trial')}: shortened" if done < whole else counted(done, "trial")]


def _seeds(study: Study, data: Data) -> str:
    counts = sorted({len(run["seeds"]) for run in data["runs"].values()})
    seeds = " to ".join(map(str, counts[:-1] and [counts[0], counts[-1]])) or str(counts[0])
    paper = f" (the paper: {study.seeds})" if study.seeds > counts[-1] else ""
    return f"{counted(seeds, 'seed')}{paper}"


def shortened(study: Study, data: Data) -> str:
    """Return how a study is shortened, as in "20 of 100 rounds"; empty if it is not."""
    rounds, whole = data.get("rounds"), study.experiment.rounds if study.experiment else 0
    if rounds and rounds < whole:
        return f"{rounds:,} of {counted(whole, 'round')}"
    done, trials = (study.trials.get(mode, 0) for mode in (data["mode"], "full"))
    return f"{done:,} of {counted(trials, 'trial')}" if done < trials else ""


def _rounds(study: Study, data: Data) -> str:
    if part := shortened(study, data):
        return f"{part}: shortened"
    return counted(data["rounds"], "round") if data.get("rounds") else ""


def _rates(study: Study, data: Data) -> str:
    """Describe how rates were chosen."""
    tried = data.get("tried")
    if study.experiment is None or tried is None:
        return ""
    some, grid = "some of " if tried.get("partly") else "", study.experiment.rates
    text = f"local rate {f'chosen from {some}' if len(tried['rates']) > 1 else ''}{', '.join(tried['rates'])}"
    if len(tried["rates"]) < len(grid):
        text += f" (the paper's grid has {counted(len(grid), 'rate')})"
    if study.experiment.server_rates:
        text += (
            f", server rate from 1, {', '.join(tried['server_rates'])}" if tried["server_rates"] else ", server rate 1"
        )
    return text


def command(name: str, study: Study, data: Data) -> str:
    """Return the command that makes these data, or how they differ from what it would make."""
    seeds = len(data.get("seeds", [])) or max(
        len(run["seeds"]) for run in data.get("runs", {"": {"seeds": [0]}}).values()
    )
    line = " ".join(["laconic reproduce", name, *(["--full"] if data["mode"] == "full" else [])])
    line = f"`{line}`" if study.exact else f"`{line} --seeds {seeds}`"
    if study.experiment is not None and "setting" not in data:
        return f"Made by an earlier version of {line}."
    today, earlier = _today(study, data), _split(as_run(data))
    if earlier != today:
        added = " ".join(option for option in today if option not in earlier)
        return f"Made by an earlier version of {line}. The current version uses `{added}` instead.{_explained(added)}"
    if changed := _changed(study, data):
        return f"Made by an earlier version of {line}. {changed}"
    return f"Made by {line}." if _complete(study, data, seeds) else f"These are only some of the runs of {line}."


def _changed(study: Study, data: Data) -> str:
    """Return the runs that are known to have other options than today's, in words."""
    if study.experiment is None:
        return ""
    changed = {
        label: run["options"] for label, run in data["runs"].items() if other_options(run, study.experiment, label)
    }
    return " ".join(f"The options of `{label}` were `{recorded or 'none'}`." for label, recorded in changed.items())


def as_run(data: Data) -> str:
    """Return the recorded options, with the number of rounds between the evaluations of these runs."""
    first = [
        next((record["round"] for record in curve if "accuracy" in record), inf)
        for run in data.get("runs", {}).values()
        for curve in curves(run)
    ]
    return _evaluated(data.get("setting", ""), lambda stated: min([stated, *first]))


def _today(study: Study, data: Data) -> list[str]:
    """Return the options with which today's study would run, in the mode of these data."""
    if study.experiment is None:
        return []
    rounds = plan(study, study.experiment, data["mode"]).rounds
    common = study.experiment.common
    return _split(_evaluated(common, lambda stated: evaluated_every(stated, rounds)) if rounds else common)


def _evaluated(options: str, interval: Callable[[int], float]) -> str:
    return re.sub(r"(?<=--eval-every )\d+", lambda found: str(interval(int(found[0]))), options)


def _split(options: str) -> list[str]:
    """Split into options with their values."""
    return re.split(r" (?=--)", options) if options else []


def _explained(options: str) -> str:
    """Return a sentence about an option that readers may not know."""
    return " With `single`, every shard has one label only." if ":single" in options else ""


def _complete(study: Study, data: Data, seeds: int) -> bool:
    if study.experiment is None:
        return True
    wanted, runs = plan(study, study.experiment, data["mode"], seeds), data["runs"]
    tried = data.get("tried", {"rates": [*wanted.rates], "server_rates": []})
    return (
        (data.get("rounds"), tried["rates"], tried["server_rates"])
        == (wanted.rounds, [*wanted.rates], [*wanted.server_rates])
        and {*wanted.labels} <= runs.keys()
        and all(len(run["seeds"]) == seeds for run in runs.values())
    )


def _left_out(study: Study, data: Data) -> str:
    runs = study.experiment.runs if study.experiment else ()
    left = [label for label in runs if label not in data["runs"]]
    return f"not run: {', '.join(f'`{label}`' for label in left)}" if left else ""


def draw(study: Study, data: Data, path: Path) -> bool:
    """Draw the curves. Return False if there are none or matplotlib is missing."""
    lines = {label: _lines(study, run) for label, run in data.get("runs", {}).items()}
    if not any(places for seeds in lines.values() for places, _ in seeds):
        return False
    try:
        from matplotlib import rc_context  # late: an extra
        from matplotlib.figure import Figure
    except ImportError:
        return False
    long = len(data["runs"]) > 6  # a longer legend is below the chart
    columns = 3 if max(len(_entitled(label, data)) for label in data["runs"]) < 38 else 2
    # With a fixed salt, equal data give equal files.
    style: dict[Any, Any] = {"svg.hashsalt": "laconic", **dict.fromkeys(COLORED, GRAY)}
    with rc_context(style):
        figure = Figure(figsize=(8, 4.5 + 0.18 * long * -(-len(data["runs"]) // columns)), layout="constrained")
        axes = figure.subplots()
        for label, look in _looks(study, [*data["runs"]]).items():
            _plot(axes, lines[label], label=_entitled(label, data), **look)
        for accuracy in (study.goals or goals(study, data)[:1]) if study.drawn == "accuracy" else ():
            axes.axhline(100 * accuracy, color=GRAY, linewidth=0.9, linestyle=(0, (6, 3)), zorder=1)
            place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "va": "bottom", "fontsize": 8}
            axes.annotate(f"{100 * accuracy:.1f} %", (0.005, 100 * accuracy), **place)
        if study.drawn == "accuracy":
            axes.set(ylabel=f"accuracy, % (mean of {WINDOW} evaluations)")
        else:
            axes.set(ylabel=study.drawn.replace("_", " "), yscale="log" if "norm" in study.drawn else "linear")
        scale: Literal["linear", "log"] = "linear" if study.against == "round" else "log"
        axes.set(xlabel=AXES[study.against], xscale=scale)
        scale_costs(axes.xaxis, scale, axes.get_xlim(), most=10)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if long:
            figure.legend(frameon=False, fontsize=8, loc="outside lower center", ncols=columns)
        else:
            axes.legend(frameon=False, fontsize=8)
        # Without a ground, and with gray letters, the picture is good to read on a white and on a dark page.
        figure.savefig(path, metadata={"Date": None}, transparent=True)
    return True


def _looks(study: Study, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the color, dash and width of each run's line.

    In a comparison with references, variants of a recipe share its color, and our own recipe is strong and on top.
    """
    names = {label: re.split(r"[ ,:]", label)[0] if study.references else label for label in labels}
    ours = {OURS} & {*names.values()} if study.references else set()
    others = [color for color in COLORS if not ours or color != STRONG]
    free = [name for name in dict.fromkeys(names.values()) if name not in ours]
    colors = {name: others[number % len(others)] for number, name in enumerate(free)} | dict.fromkeys(ours, STRONG)
    looks: dict[str, dict[str, Any]] = {}
    for label, name in names.items():
        used = sum(look["color"] == colors[name] for look in looks.values())
        strong = {"linewidth": 2.8, "zorder": 3} if name in ours else {"linewidth": 1.4}
        looks[label] = {"color": colors[name], "linestyle": DASHES[used % len(DASHES)], **strong}
    return looks


def _plot(axes: Any, seeds: Sequence[tuple[list[float], list[float]]], color: str, **look: Any) -> None:
    """Plot the mean over seeds, with a band of one standard deviation."""
    costs, values = ([*zip(*columns, strict=True)] for columns in zip(*seeds, strict=True))
    places, means = [fmean(each) for each in costs], [fmean(each) for each in values]
    axes.plot(places, means, color=color, marker="." if len(places) <= FEW else None, **look)
    if len(seeds) > 1:
        bands = [stdev(each) for each in values]
        low, high = ([m + sign * b for m, b in zip(means, bands, strict=True)] for sign in (-1, 1))
        axes.fill_between(places, low, high, color=color, alpha=0.2, linewidth=0)


def _lines(study: Study, run: Data) -> list[tuple[list[float], list[float]]]:
    """Return the places and values of each seed, at the evaluations at which all seeds have them."""
    drawn = [[record for record in curve if study.drawn in record] for curve in curves(run)]
    rounds = set.intersection(*({record["round"] for record in records} for records in drawn))
    return [_line(study, [record for record in records if record["round"] in rounds]) for records in drawn]


def _line(study: Study, records: Curve) -> tuple[list[float], list[float]]:
    values = [record[study.drawn] for record in records]
    if study.drawn == "accuracy":
        values = [100 * fmean(values[max(0, end - WINDOW) : end]) for end in range(1, len(values) + 1)]
    if study.against == "bytes":
        return [both(record) for record in records], values
    return [record[study.against] for record in records], values
