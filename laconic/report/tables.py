"""The table of finished runs, for terminals and notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from math import inf, isnan
from statistics import stdev
from typing import Literal

from rich import box, markup
from rich.table import Table

from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.report.units import TIES_UP, duration, size, with_deviation
from laconic.run.collapse import AT_CHANCE, at_chance
from laconic.run.directory import RunDirectory
from laconic.run.driver import Finished
from laconic.run.records import OF_CLIENTS, TROUBLES, troubles
from laconic.run.seeds import over_seeds
from laconic.run.target import COSTS, WINDOW, Target, lower_is_better

STATE = "state"
"""The column of runs that collapsed or diverged."""
LEAST_WIDTHS = {"loss": 100, "gradients": 100, "rounds": 90, "spread": 120, "its worst tenth": 140}
"""The narrowest terminal that shows a column."""
SPARE = (
    *("seconds", "loss", "spread", "personal mean", "its worst tenth", "rounds"),
    *("client mean", "bytes up", "bytes down", "worst tenth"),
)
"""The columns that a narrow terminal leaves out, the least important first, so that names and units are whole."""
CLIENT_COLUMNS = ("client mean", "worst tenth", "spread", "personal mean", "its worst tenth")
Value = Callable[[Finished], float | None]
Format = Callable[[float], str]


def new_table(*columns: str) -> Table:
    """An empty table with common formatting. Its first column does not wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table


def ranked(runs: Sequence[Finished], by: str = "bytes") -> list[list[Finished]]:
    """The runs of each label, which differ in their seeds. The best label is first.

    Labels are ordered by the mean cost to reach the target, or by the metric `by`; then by the target's metric, by
    accuracy and by loss. Those that collapsed are last.
    """
    labels = dict.fromkeys(run.label for run in runs)
    target = _target(runs)
    metrics = [*([] if by in COSTS else [by]), *([] if target is None else [target.metric]), "accuracy", "loss"]

    def cost(run: Finished) -> float | None:
        return getattr(run.reached, COSTS[by]) if by in COSTS and run.reached is not None else None

    def order(group: list[Finished]) -> list[float]:
        value = over_seeds([cost(run) for run in group])
        collapsed = any(map(_collapse, group))
        return [collapsed, inf if value is None else value, *(_badness(name, group) for name in metrics)]

    return sorted(([run for run in runs if run.label == label] for label in labels), key=order)


def _badness(metric: str, group: Sequence[Finished]) -> float:
    """The mean of a metric over seeds, with the sign that sorts the best value first."""
    value = over_seeds([_metric(metric, run) for run in group])
    lower = lower_is_better(metric, group[0].result.task.named_metrics())
    return inf if value is None else value if lower else -value


def _target(runs: Sequence[Finished]) -> Target | None:
    return next((run.target for run in runs if run.target is not None), None)


@dataclass(frozen=True)
class Column:
    """A number of each run, and how it is written."""

    value: Value
    format: Format
    missing: str = ""
    """What is written if a run does not have the number."""

    def cell(self, group: Sequence[Finished]) -> str:
        """The number of one run, or mean and standard deviation over seeds."""
        values = [self.value(run) for run in group]
        average = over_seeds(values)
        if average is None:
            lacking = values.count(None)
            # Some seeds may have reached a target.
            some = self.missing and lacking < len(values)
            return f"{self.missing} ({lacking} of {len(values)})" if some else self.missing
        spread = over_seeds(values, stdev, least=2)
        return self.format(average) if spread is None else with_deviation(average, spread, self.format)


@dataclass(frozen=True)
class OutcomeTable:
    """The outcome of runs as text, best first."""

    columns: list[str]
    rows: list[list[str]]
    captions: list[str]

    def rich(self) -> Table:
        """The table for a terminal."""
        table = new_table()
        table.caption = "; ".join(self.captions) or None
        for name in self.columns:
            side: Literal["left", "right"] = "left" if name in ("algorithm", STATE) else "right"
            color = "yellow" if name == STATE else None
            table.add_column(name, justify=side, no_wrap=name != "algorithm", overflow="fold", style=color)
        for row in self.rows:
            table.add_row(*map(markup.escape, row))
        return table

    def html(self) -> str:
        """The table for a notebook."""
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        captions = "".join(f"<p>{escape(caption)}</p>" for caption in self.captions)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{captions}"


def outcome(
    runs: Sequence[Finished], width: int | None = None, by: str = "bytes", failed: Mapping[str, str] | None = None
) -> OutcomeTable:
    """A table of runs, best first. A narrow terminal shows fewer columns.

    Args:
        runs: The finished runs.
        width: The width of the terminal. Default: all columns.
        by: The cost or metric that runs are ranked by.
        failed: The errors of diverged runs by label. They are the last rows.
    """
    width = 10_000 if width is None else width
    target = _target(runs)
    simulated = any(run.simulated_seconds is not None for run in runs)
    columns = _shown(_columns(runs, target, simulated), width, simulated) if runs else {}
    groups, failures = ranked(runs, by), failed or {}
    states = [*map(_state, groups), *map(_failure, failures.values())]
    labels = [*(group[0].label for group in groups), *failures]
    optional = ("gradients", "seconds", "loss", *reversed(_other_metrics(runs)), *SPARE)
    ranking = {by, "" if target is None else target.metric}
    for name in optional:
        if _width(columns, groups, labels, states) > width and name not in ranking:
            columns.pop(name, None)
    rows = [[group[0].label, *(column.cell(group) for column in columns.values())] for group in groups]
    rows += [[label, *[""] * len(columns)] for label in failures]
    names, rows = _framed(["algorithm", *columns], rows, states, len(groups))
    return OutcomeTable(names, rows, [*_captions(runs, target, simulated, columns)])


def _framed(
    names: list[str], rows: list[list[str]], states: Sequence[str], finished: int
) -> tuple[list[str], list[list[str]]]:
    """Put ranks before and states after the columns, where there are any."""
    if any(states):
        names, rows = [*names, STATE], [[*row, state] for row, state in zip(rows, states, strict=True)]
    if len(rows) > 1:
        ranks = [str(place + 1) if place < finished else "" for place in range(len(rows))]
        names, rows = ["", *names], [[rank, *row] for rank, row in zip(ranks, rows, strict=True)]
    return names, rows


def _collapse(run: Finished) -> int | None:
    """The round in which a run collapsed."""
    return next((record["round"] for record in run.result.history if "collapsed" in record), None)


def _state(group: Sequence[Finished]) -> str:
    """What went wrong with the runs of a label; empty if nothing did."""
    collapsed = [number for run in group if (number := _collapse(run)) is not None]
    if collapsed:
        return f"{len(collapsed)} of {len(group)} collapsed" if len(group) > 1 else f"collapsed in round {collapsed[0]}"
    failed = sum(map(_never_learned, group))
    some = f"{failed} of {len(group)} " if failed < len(group) else ""
    return f"{some}{AT_CHANCE}" if failed else ""


def _never_learned(run: Finished) -> bool:
    path = RunDirectory(run.directory).label_counts
    accuracies = [record["accuracy"] for record in run.result.history if "accuracy" in record]
    try:
        return at_chance(accuracies, json.loads(path.read_text()) if path.exists() else [])
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"'{path}': not a table of label counts: {error}") from None


def _failure(error: str) -> str:
    number = re.search(r"\bround (\d+)", error)
    return f"diverged in round {number[1]}" if number else "diverged"


def _width(
    columns: Mapping[str, Column], groups: Sequence[list[Finished]], labels: Sequence[str], states: Sequence[str]
) -> int:
    """The width of a table in a terminal. Labels wrap, so they need no more than their first 20 characters."""
    label = min(20, max(map(len, labels), default=0))
    cells = [[name, *map(column.cell, groups)] for name, column in columns.items()]
    cells += [[*states]] if any(states) else []
    return 8 + label + sum(3 + max(map(len, texts)) for texts in cells)


def _columns(runs: Sequence[Finished], target: Target | None, simulated: bool) -> dict[str, Column]:
    """The columns by name."""
    measured = {name for run in runs for name in run.result.metrics}
    columns = {
        name: Column(partial(_metric, name), _percent if name == "accuracy" else "{:.4f}".format)
        for name in ["accuracy", "loss", *_other_metrics(runs)]
        if name in measured
    }
    columns |= {
        "bytes up": Column(lambda run: run.result.ledger.totals()["bytes_up"], size),
        "bytes down": Column(lambda run: run.result.ledger.totals()["bytes_down"], size),
    }
    columns |= _client_columns(runs)
    if target is not None:
        columns[f"both to {target}"] = Column(partial(_to_target, "bytes"), size, "not reached")
        if simulated:
            columns["time to it"] = Column(partial(_to_target, "simulated_seconds"), duration)
        columns["rounds"] = Column(partial(_to_target, "rounds"), lambda rounds: f"{TIES_UP * rounds:.0f}")
    if simulated:
        columns["time"] = Column(lambda run: run.simulated_seconds, duration)
    for name, title in TROUBLES.items():
        if name != "collapsed" and any(troubles(run.result.history).get(name) for run in runs):
            columns[title] = Column(partial(_count, name), "{:.0f}".format)
    columns["gradients"] = Column(lambda run: run.result.ledger.totals()["gradients"], "{:,.0f}".format)
    columns["seconds"] = Column(lambda run: run.result.seconds, "{:.1f}".format)
    return columns


def _shown(columns: Mapping[str, Column], width: int, simulated: bool) -> dict[str, Column]:
    """The columns that a terminal of this width shows."""
    least = LEAST_WIDTHS | ({"seconds": 120} if simulated else {})
    return {name: column for name, column in columns.items() if width >= least.get(name, 0)}


def _other_metrics(runs: Sequence[Finished]) -> list[str]:
    """Further metrics of the common test examples, without vectors, which have a number for each class."""
    names = dict.fromkeys(name for run in runs for name in run.result.metrics if not name.startswith(OF_CLIENTS))
    for usual in ("accuracy", "loss"):
        names.pop(usual, None)
    vectors = {vector for run in runs for vector in run.result.task.named_metrics()} - names.keys()
    return [name for name in names if not any(re.fullmatch(rf"{re.escape(vector)}_\d+", name) for vector in vectors)]


def _client_columns(runs: Sequence[Finished]) -> dict[str, Column]:
    """The columns of an evaluation by client: of the accuracy, or else of the loss."""
    measured = {name for run in runs for name in run.result.metrics}
    metric: str = "accuracy" if "client_accuracy" in measured else "loss"
    names = (
        *(f"client_{metric}", f"worst_client_{metric}", f"client_{metric}_spread"),
        *(f"personal_{metric}", f"worst_personal_{metric}"),
    )
    titles = dict(zip(names, CLIENT_COLUMNS, strict=True))
    text: Format = _percent if metric == "accuracy" else "{:.4f}".format
    return {title: Column(partial(_metric, name), text) for name, title in titles.items() if name in measured}


def _metric(name: str, run: Finished) -> float | None:
    value = run.result.metrics.get(name)
    return None if value is None or isnan(value) else value


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _to_target(cost: str, run: Finished) -> float | None:
    return None if run.reached is None else getattr(run.reached, cost)


def _count(trouble: str, run: Finished) -> int:
    return troubles(run.result.history).get(trouble, 0)


def _client_captions(runs: Sequence[Finished], columns: Iterable[str]) -> Iterator[str]:
    last = [run.result.history[-1] for run in runs if run.result.history]
    if shown := [name for name in columns if name in CLIENT_COLUMNS]:
        yield f"{', '.join(shown)}: over clients, on the examples that each holds out"
    if left_out := max((record.get("clients_left_out", 0) for record in last), default=0):
        yield f"not evaluated, with too few examples to hold one out: {counted(left_out, 'client')}"


def _captions(
    runs: Sequence[Finished], target: Target | None, simulated: bool, columns: Iterable[str]
) -> Iterator[str]:
    if target is not None:
        yield f"both: bytes up and down until the mean of {WINDOW} evaluations reached {target}"
        if any(sum(target.metric in record for record in run.result.history) < WINDOW for run in runs):
            yield f"a target needs at least {WINDOW} evaluations: run more rounds, or evaluate more often (eval_every)"
    yield from _client_captions(runs, columns)
    if simulated:
        computing = any(run.config.network.compute for run in runs)
        yield "time: simulated, " + ("messages and gradients" if computing else "messages only")
    seeds = len({run.config.seed for run in runs if run.label == runs[0].label}) if runs else 0
    if seeds > 1:
        yield f"mean ± standard deviation over {seeds} seeds"
