"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import inf

from rich import box
from rich.table import Table

from laconic.cli.options import RANK_BY, RankBy
from laconic.cli.view import duration, size
from laconic.run.driver import Finished
from laconic.run.target import WINDOW
from laconic.run.training import TROUBLES, troubles
from laconic.run.tune import Timing


def ranked(runs: Sequence[Finished], by: RankBy = "bytes") -> list[Finished]:
    """The runs, best first: by cost to reach the target, then by accuracy, then by loss."""

    def order(run: Finished) -> tuple[float, float, float]:
        cost = None if run.reached is None else getattr(run.reached, RANK_BY[by])
        loss = run.result.loss
        return inf if cost is None else cost, -(run.result.accuracy or 0.0), inf if loss is None else loss

    return sorted(runs, key=order)


Column = Callable[[Finished], str]


def outcome(runs: Sequence[Finished], width: int, by: RankBy = "bytes") -> Table:
    """A table of runs, best first. A narrow terminal shows fewer columns."""
    target = next((run.target for run in runs if run.target is not None), None)
    simulated = any(run.simulated_seconds is not None for run in runs)
    narrow = {"loss": width < 100, "gradients": width < 100, "rounds": width < 90, "seconds": simulated and width < 120}
    narrow |= {"spread": width < 120, "its worst tenth": width < 140}
    columns = {name: cell for name, cell in _columns(runs, target, simulated).items() if not narrow.get(name)}
    table = new_table()
    table.caption = "; ".join(_captions(runs, target, simulated)) or None
    if len(runs) > 1:
        table.add_column("", justify="right", no_wrap=True)
    for name in columns:
        text = name == "algorithm"
        table.add_column(name, justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for rank, run in enumerate(ranked(runs, by), 1):
        table.add_row(*([str(rank)] if len(runs) > 1 else []), *(cell(run) for cell in columns.values()))
    return table


def _columns(runs: Sequence[Finished], target: float | None, simulated: bool) -> dict[str, Column]:
    """By column name: the function that formats a run's cell."""
    columns: dict[str, Column] = {
        "algorithm": lambda run: run.label,
        "accuracy": lambda run: _number(run.result.accuracy, 100, ".2f", " %"),
        "loss": lambda run: _number(run.result.loss, 1, ".4f"),
        "bytes up": lambda run: size(run.result.ledger.totals()["bytes_up"]),
        "bytes down": lambda run: size(run.result.ledger.totals()["bytes_down"]),
    }
    columns |= _client_columns(runs)
    if target is not None:
        columns[f"both to {100 * target:g} %"] = lambda run: size(run.reached.bytes) if run.reached else "not reached"
        if simulated:
            columns["time to it"] = lambda run: duration(run.reached.simulated_seconds if run.reached else None)
        columns["rounds"] = lambda run: str(run.reached.rounds) if run.reached else ""
    if simulated:
        columns["time"] = lambda run: duration(run.simulated_seconds)
    for name, title in TROUBLES.items():
        if any(troubles(run.result.history).get(name) for run in runs):
            columns[title] = partial(_count, name)
    columns["gradients"] = lambda run: f"{run.result.ledger.totals()['gradients']:,}"
    columns["seconds"] = lambda run: f"{run.result.seconds:.1f}"
    return columns


def _client_columns(runs: Sequence[Finished]) -> dict[str, Column]:
    """The columns of an evaluation by client: of the accuracy, or else of the loss."""
    measured = {name for run in runs for name in run.result.metrics}
    metric, factor, unit = ("accuracy", 100, " %") if "client_accuracy" in measured else ("loss", 1, "")
    digits = ".2f" if unit else ".4f"
    titles = {
        f"client_{metric}": "client mean",
        f"worst_client_{metric}": "worst tenth",
        f"client_{metric}_spread": "spread",
        f"personal_{metric}": "personal mean",
        f"worst_personal_{metric}": "its worst tenth",
    }

    def cell(name: str, run: Finished) -> str:
        return _number(run.result.metrics.get(name), factor, digits, unit)

    return {title: partial(cell, name) for name, title in titles.items() if name in measured}


def _captions(runs: Sequence[Finished], target: float | None, simulated: bool) -> Iterator[str]:
    if target is not None:
        yield f"both: bytes up and down until the mean of {WINDOW} evaluations reached {100 * target:g} %"
        if any(sum("accuracy" in record for record in run.result.history) < WINDOW for run in runs):
            yield f"a target needs at least {WINDOW} evaluations: lower --eval-every"
    last = [run.result.history[-1] for run in runs if run.result.history]
    if any("clients_evaluated" in record for record in last):
        yield "client mean, worst tenth, spread: over clients, on the examples that each holds out"
    if left_out := max((record.get("clients_left_out", 0) for record in last), default=0):
        yield f"{left_out} clients have too few examples to hold one out and are not evaluated"
    if simulated:
        computing = any(run.config.network.compute for run in runs)
        yield "time: simulated, " + ("messages and gradients" if computing else "messages only")


def _count(trouble: str, run: Finished) -> str:
    return str(troubles(run.result.history).get(trouble, 0))


def _number(value: float | None, factor: float, digits: str, unit: str = "") -> str:
    return "" if value is None else f"{factor * value:{digits}}{unit}"


def timings(measured: Sequence[Timing]) -> Table:
    """The measurements of `tune`, fastest first."""
    table = new_table("strategy", "vmap width", "threads", "seconds per round")
    for timing in measured:
        width = str(timing.numerics.vmap_width) if timing.numerics.strategy == "vmap" else ""
        table.add_row(timing.numerics.strategy, width, str(timing.threads), f"{timing.seconds_per_round:.3g}")
    return table


def new_table(*columns: str) -> Table:
    """An empty table with common formatting. Its first column does not wrap."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table
