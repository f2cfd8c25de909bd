"""Tables on the terminal: the outcome of runs, and what there is to choose from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from rich import box
from rich.table import Table

from laconic import data, models
from laconic.cli.view import size
from laconic.engine.tune import Trial
from laconic.recipes import RECIPES
from laconic.run.driver import Finished
from laconic.run.target import WINDOW


def ranked(runs: Sequence[Finished]) -> list[Finished]:
    """Best first: fewest bytes to the target where it was reached, then accuracy, then loss."""

    def order(run: Finished) -> tuple[float, float, float]:
        at = run.reached
        accuracy = run.result.accuracy
        loss = run.result.loss
        return (at.bytes if at else float("inf"), -(accuracy or 0.0), float("inf") if loss is None else loss)

    return sorted(runs, key=order)


def outcome(runs: Sequence[Finished], width: int) -> Table:
    """Runs side by side, best first; a narrow terminal gets the columns that matter most."""
    table = _table()
    target = next((run.target for run in runs if run.target is not None), None)
    columns = ["", "algorithm", "accuracy", "loss", "bytes up", "bytes down"]
    if target is not None:
        columns += [f"both to {100 * target:g} %", "rounds"]
        table.caption = f"both: bytes up and down until the mean of {WINDOW} evaluations was at {100 * target:g} %"
    columns += ["gradients", "seconds"]
    left_out = {"": len(runs) == 1, "loss": width < 100, "gradients": width < 100, "rounds": width < 90}
    for column in columns:
        if not left_out.get(column):
            name = column == "algorithm"
            table.add_column(column, justify="left" if name else "right", no_wrap=not name, overflow="fold")
    for place, run in enumerate(ranked(runs), 1):
        costs, at = run.result.ledger.totals(), run.reached
        accuracy, loss = run.result.accuracy, run.result.loss
        row = [
            str(place),
            run.label,
            "" if accuracy is None else f"{100 * accuracy:.2f} %",
            "" if loss is None else f"{loss:.4f}",
            size(costs["bytes_up"]),
            size(costs["bytes_down"]),
        ]
        if target is not None:
            row += [size(at.bytes), str(at.rounds)] if at else ["not reached", ""]
        row += [f"{costs['gradients']:,}", f"{run.result.seconds:.1f}"]
        table.add_row(*(cell for column, cell in zip(columns, row, strict=True) if not left_out.get(column)))
    return table


def algorithms() -> Table:
    """Every recipe: what it is, where it stands, its parts and their defaults."""
    table = _table("algorithm", "what it is, and where", "parts and defaults")
    for name, recipe in RECIPES.items():
        parts = []
        for slot, part in recipe().parts().items():
            values = ", ".join(f"{key}={value}" for key, value in part.parameters().items() if value is not None)
            parts.append(f"{slot}: {part.name}" + (f" ({values})" if values else ""))
        table.add_row(name, inspect.getdoc(recipe) or "", "\n".join(parts))
    return table


def datasets(width: int) -> Table:
    """Every data set that has a name; a narrow terminal is spared the licences."""
    columns = ["data set", "what it is", "train / test", "clients", "partition", "licence and source"]
    shown = len(columns) if width >= 110 else 4
    table = _table(*columns[:shown])
    for info in data.datasets():
        row = [
            info.name,
            info.description,
            " / ".join("?" if count is None else f"{count:,}" for count in (info.train_size, info.test_size)),
            f"up to {info.natural_clients} natural" if info.natural_clients else "by partition",
            info.default_partition,
            f"{info.licence}; {info.citation}",
        ]
        table.add_row(*row[:shown])
    return table


def known_models() -> Table:
    """Every model that has a name."""
    table = _table("model", "what it is", "parameters", "settings", "where")
    for info in models.models():
        sizes = ", ".join(f"{name}={default}" for name, default in info.parameters.items())
        table.add_row(info.name, info.description, f"{info.parameter_count:,}", sizes, info.citation)
    return table


def trials(measured: Sequence[Trial]) -> Table:
    """What `tune` has measured, fastest first."""
    table = _table("strategy", "vmap width", "threads", "seconds a round")
    for trial in measured:
        width = str(trial.numerics.vmap_width) if trial.numerics.strategy == "vmap" else ""
        table.add_row(trial.numerics.strategy, width, str(trial.threads), f"{trial.seconds_per_round:.3g}")
    return table


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table
