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


def ranked(runs: Sequence[Finished]) -> list[Finished]:
    """Best first: fewest bytes to the target where it was reached, then accuracy, then loss."""

    def order(run: Finished) -> tuple[float, float, float]:
        at = run.reached
        accuracy = run.result.accuracy
        loss = run.result.loss
        return (at.bytes if at else float("inf"), -(accuracy or 0.0), float("inf") if loss is None else loss)

    return sorted(runs, key=order)


def outcome(runs: Sequence[Finished]) -> Table:
    """Runs side by side, best first."""
    table = _table()
    target = next((run.target for run in runs if run.target is not None), None)
    columns = ["", "algorithm", "accuracy", "loss", "bytes up", "bytes down"]
    if target is not None:
        columns += [f"bytes to {100 * target:g} %", "rounds to it"]
    for column in [*columns, "gradients", "seconds"]:
        table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=column != "algorithm")
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
        table.add_row(*row, f"{costs['gradients']:,}", f"{run.result.seconds:.1f}")
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


def datasets() -> Table:
    """Every data set that has a name."""
    table = _table("data set", "what it is", "train / test", "clients", "default partition", "licence")
    for info in data.datasets():
        table.add_row(
            info.name,
            info.description,
            " / ".join("?" if count is None else f"{count:,}" for count in (info.train_size, info.test_size)),
            f"{info.natural_clients} natural" if info.natural_clients else "by partition",
            info.default_partition,
            info.licence,
        )
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
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
