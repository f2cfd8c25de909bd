"""Tables on the terminal: the outcome of runs, and what there is to choose from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Literal

from rich import box
from rich.markup import escape
from rich.table import Table

from laconic import data, models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.recipes import RECIPES
from laconic.cli.view import duration, size
from laconic.run.driver import Finished
from laconic.run.keys import SHORT_NAMES
from laconic.run.target import WINDOW
from laconic.run.training import TROUBLES, troubles
from laconic.run.tune import Trial

RankBy = Literal["bytes", "time", "rounds"]
RANK_BY: dict[RankBy, str] = {"bytes": "bytes", "time": "simulated_seconds", "rounds": "rounds"}
"""What a comparison may be ranked by, and what it is called where a target is reached."""


def ranked(runs: Sequence[Finished], by: RankBy = "bytes") -> list[Finished]:
    """Best first: least of what is ranked by to the target where it was reached, then accuracy, then loss."""

    def order(run: Finished) -> tuple[float, float, float]:
        at = run.reached
        accuracy = run.result.accuracy
        loss = run.result.loss
        cost = None if at is None else getattr(at, RANK_BY[by])
        return (
            float("inf") if cost is None else cost,
            -(accuracy or 0.0),
            float("inf") if loss is None else loss,
        )

    return sorted(runs, key=order)


def outcome(runs: Sequence[Finished], width: int, by: RankBy = "bytes") -> Table:
    """Runs side by side, best first; a narrow terminal gets the columns that matter most."""
    table = new_table()
    target = next((run.target for run in runs if run.target is not None), None)
    simulated = any(run.simulated_seconds is not None for run in runs)
    columns = ["", "algorithm", "accuracy", "loss", "bytes up", "bytes down"]
    caption = []
    if target is not None:
        columns += [f"both to {100 * target:g} %", *(["time to it"] if simulated else []), "rounds"]
        caption += [f"both: bytes up and down until the mean of {WINDOW} evaluations was at {100 * target:g} %"]
        if any(_evaluations(run) < WINDOW for run in runs):
            caption += [f"fewer than {WINDOW} evaluations reach nothing: --eval-every 1 makes more"]
    if simulated:
        columns += ["time"]
        caption += ["time: simulated, of messages" + (" and gradients" if _computing(runs) else " alone")]
    table.caption = "; ".join(caption) or None
    happened = [name for name in TROUBLES if any(troubles(run.result.history).get(name) for run in runs)]
    columns += [TROUBLES[name] for name in happened]
    columns += ["gradients", "seconds"]
    left_out = {"": len(runs) == 1, "loss": width < 100, "gradients": width < 100, "rounds": width < 90}
    left_out |= {"seconds": simulated and width < 120}
    for column in columns:
        if not left_out.get(column):
            name = column == "algorithm"
            table.add_column(column, justify="left" if name else "right", no_wrap=not name, overflow="fold")
    for place, run in enumerate(ranked(runs, by), 1):
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
            to_it = [duration(at.simulated_seconds if at else None)] if simulated else []
            row += [size(at.bytes) if at else "not reached", *to_it, str(at.rounds) if at else ""]
        if simulated:
            row += [duration(run.simulated_seconds)]
        row += [str(troubles(run.result.history).get(name, 0)) for name in happened]
        row += [f"{costs['gradients']:,}", f"{run.result.seconds:.1f}"]
        table.add_row(*(cell for column, cell in zip(columns, row, strict=True) if not left_out.get(column)))
    return table


def _evaluations(run: Finished) -> int:
    return sum("accuracy" in record for record in run.result.history)


def _computing(runs: Sequence[Finished]) -> bool:
    return any(run.config.network.compute for run in runs)


def algorithms() -> Table:
    """Every recipe: what it is, where it stands, its parts and their defaults."""
    table = new_table("algorithm", "what it is, and where", "parts and defaults")
    for name, recipe in RECIPES.items():
        parts = []
        for slot, part in recipe().parts().items():
            values = ", ".join(
                f"{key}={'not set' if value is None else value}" for key, value in part.parameters().items()
            )
            parts.append(f"{slot}: {part.name}" + (f" ({values})" if values else ""))
        table.add_row(name, inspect.getdoc(recipe) or "", "\n".join(parts))
    return table


def algorithm(chosen: Algorithm) -> list[Table]:
    """One algorithm in detail: what each of its parts computes, and every parameter with its value and how it is set."""
    parts = chosen.parts()
    computed = new_table("slot", "part", "what it does")
    computed.title, computed.title_justify = f"{chosen.name}: {inspect.getdoc(RECIPES[chosen.name]) or ''}", "left"
    settings = new_table("parameter", "value", "how to set it")
    settings.caption, settings.caption_justify = f"Formula and advice: docs/algorithms/{chosen.name}.md", "left"
    options = {key: f"--{name.replace('_', '-')}" for name, key in SHORT_NAMES.items()}
    for slot, part in parts.items():
        # The letters of papers mean something beside the code only.
        formula = re.sub(r"\.?\s*\[[A-Z], [^]]*\]", "", (inspect.getdoc(part) or "").partition("\n")[0])
        computed.add_row(slot, part.name, escape(formula))
        for name, value in part.parameters().items():
            key = f"{slot}.{name}"
            shown = "not set" if value is None else escape(str(value))
            settings.add_row(key, shown, options.get(key, f"--set {key}=…"))
    return [computed, settings]


def datasets(width: int) -> Table:
    """Every data set that has a name; a narrow terminal is spared the licenses."""
    columns = ["data set", "what it is", "train / test", "clients", "partition", "license and source"]
    shown = len(columns) if width >= 110 else 4
    table = new_table(*columns[:shown])
    for info in data.datasets():
        row = [
            info.name,
            info.description,
            " / ".join("?" if count is None else f"{count:,}" for count in (info.train_size, info.test_size)),
            f"up to {info.natural_clients} natural" if info.natural_clients else "by partition",
            info.default_partition,
            f"{info.license}; {info.citation}",
        ]
        table.add_row(*row[:shown])
    return table


def known_models() -> Table:
    """Every model that has a name."""
    table = new_table("model", "what it is", "parameters", "settings", "where")
    for info in models.models():
        sizes = ", ".join(f"{name}={default}" for name, default in info.parameters.items())
        table.add_row(info.name, info.description, f"{info.parameter_count:,}", sizes, info.citation)
    return table


def trials(measured: Sequence[Trial]) -> Table:
    """What `tune` has measured, fastest first."""
    table = new_table("strategy", "vmap width", "threads", "seconds a round")
    for trial in measured:
        width = str(trial.numerics.vmap_width) if trial.numerics.strategy == "vmap" else ""
        table.add_row(trial.numerics.strategy, width, str(trial.threads), f"{trial.seconds_per_round:.3g}")
    return table


def new_table(*columns: str) -> Table:
    """An empty table in the house style; its first column is not broken."""
    table = Table(box=box.SIMPLE_HEAD, show_lines=False, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    return table
