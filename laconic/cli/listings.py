"""The commands algorithms, datasets and models."""

from __future__ import annotations

import inspect
import re

from rich.markup import escape
from rich.table import Table

from laconic import data, models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.recipes import RECIPES, Recipe, make
from laconic.cli.console import stdout
from laconic.core.part import stated_sensitivity
from laconic.report.tables import new_table
from laconic.run.config import load_config
from laconic.run.keys import SHORT_NAMES
from laconic.run.labels import split_label

_VENUE_AND_YEAR = r"(?: [A-Z]+[A-Za-z ]*)? (?P<year>\d{4})"
CITATION = rf"(?P<author>[A-Z]\w+)(?: et al\.|(?:, [A-Z]\w+)* and [A-Z]\w+),{_VENUE_AND_YEAR}|FedBNLACA's paper"
"""The paper in the docstring of a recipe, such as Li and Li, ICML 2023."""


def list_algorithms(name: str | None) -> None:
    """Print all algorithms, or one in detail."""
    if name is None:
        stdout.print(_algorithms())
    else:
        stdout.print(*_algorithm(load_config(None, split_label(name)).build_algorithm()), sep="\n")


def _algorithms() -> Table:
    """One line per algorithm, which fits 100 columns. A narrower terminal has no room for the parts."""
    usual = {slot: part.name for slot, part in make("fed_avg").parts().items()}
    rows = [("algorithm", "paper", "what it does", "parts other than fed_avg's")]
    for name, recipe in RECIPES.items():
        parts = ", ".join(part.name for slot, part in recipe().parts().items() if part.name != usual[slot])
        rows.append((name, *_described(recipe), parts))
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    shown = 4 if stdout.width >= sum(widths) + 3 else 3
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name, width in zip(rows[0][:shown], widths, strict=False):
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for row in rows[1:]:
        table.add_row(*map(escape, row[:shown]))
    narrow = f"With parts from {sum(widths) + 3} columns on. " if shown < 4 else ""
    table.caption, table.caption_justify = f"{narrow}In detail: laconic algorithms NAME", "left"
    return table


def _described(recipe: Recipe) -> tuple[str, str]:
    """The paper of a recipe, as first author and year, and the first words of its docstring, up to a colon or stop."""
    text = " ".join((inspect.getdoc(recipe) or "").split())
    what = re.split(r"[:;.](?: |$)", text)[0].replace("`", "")
    found = re.search(CITATION, text)
    if found is None:
        return "Laconic" if "laconic" in recipe.__name__ else "", what
    return f"{found['author']} {found['year']}" if found["author"] else "FedBNLACA", what


def _algorithm(chosen: Algorithm) -> list[Table]:
    """One algorithm in detail: its parts with their formulas, and its parameters with their values and options."""
    parts = chosen.parts()
    formulas = new_table("slot", "part", "what it does")
    formulas.title, formulas.title_justify = escape(f"{chosen.name}: {_paragraphs(RECIPES[chosen.name])}"), "left"
    stated = ", ".join(f"{slot}: {stated_sensitivity(part)}" for slot, part in parts.items())
    formulas.caption, formulas.caption_justify = f"Sensitivity, for --dp-noise: {stated}", "left"
    settings = new_table("parameter", "value", "how to set it")
    settings.caption, settings.caption_justify = f"Formulas and advice: docs/algorithms/{chosen.name}.md", "left"
    options = {key: f"--{name.replace('_', '-')}" for name, key in SHORT_NAMES.items()}
    for slot, part in parts.items():
        # Without references such as [G, equation (7)], whose letters are explained only in the documentation.
        formula = re.sub(r"\.?\s*\[[A-Z], [^]]*\]", "", (inspect.getdoc(part) or "").partition("\n")[0])
        formulas.add_row(slot, part.name, escape(formula))
        for name, value in part.parameters().items():
            key = f"{slot}.{name}"
            settings.add_row(
                key, "not set" if value is None else escape(str(value)), options.get(key, f"--set {key}=…")
            )
    settings.add_row("weighting", chosen.weighting, "--weighting")
    return [formulas, settings]


def _paragraphs(recipe: Recipe) -> str:
    """The docstring of a recipe, one line per paragraph: a terminal wraps them at its own width."""
    return "\n\n".join(" ".join(text.split()) for text in (inspect.getdoc(recipe) or "").split("\n\n"))


def list_datasets() -> None:
    """Print all data sets. A narrow terminal shows fewer columns."""
    columns = ["data set", "description", "train / test", "clients", "partition", "license and source"]
    shown = len(columns) if stdout.width >= 110 else 4
    table = new_table(*columns[:shown])
    for info in data.datasets():
        row = [
            info.name,
            info.description,
            " / ".join(f"{count:,}" for count in (info.train_size, info.test_size) if count is not None),
            f"up to {info.natural_clients:,} natural" if info.natural_clients else "by partition",
            info.default_partition,
            f"{info.license}; {info.citation}",
        ]
        table.add_row(*row[:shown])
    stdout.print(table)


def list_models() -> None:
    """Print all models. A narrow terminal shows fewer columns."""
    columns = ["model", "description", "parameters", "settings", "source"]
    shown = len(columns) if stdout.width >= 110 else 4
    table = new_table(*columns[:shown])
    for info in models.models():
        sizes = ", ".join(f"{name}={default}" for name, default in info.parameters.items())
        row = [info.name, info.description, f"{info.parameter_count:,}", sizes, info.citation]
        table.add_row(*row[:shown])
    stdout.print(table)
