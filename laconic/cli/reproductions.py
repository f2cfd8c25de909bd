"""The command that runs the papers' tables and figures again."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from laconic.cli.tables import new_table
from laconic.cli.view import LiveView, duration
from laconic.core.errors import ConfigError
from laconic.reproduce.catalog import REPRODUCTIONS, find
from laconic.reproduce.document import render, save
from laconic.reproduce.runner import Data, Skipped, collect
from laconic.reproduce.study import Mode, Reproduction, Study
from laconic.reproduce.tables import BRACKETS, about, grid, verdicts
from laconic.run.loop import Interrupted

stderr = Console(stderr=True)
stdout = Console() if Console().is_terminal else Console(width=160)

ALL = "all"


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="See --list; one of its studies by its name on the page; or all."),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="What there is.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only check that it works: digits, a few rounds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As the paper did it, for many hours.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Where the runs are; finished ones are not run again.")] = Path(
        "runs/reproduce"
    ),
    docs: Annotated[
        Path | None,
        typer.Option("--docs", help="Where data, figures and the page go; docs in a checkout, else beside the runs."),
    ] = None,
    page: Annotated[bool, typer.Option("--render", help="Only write the page from the data that are there.")] = False,
) -> None:
    """Run a table or figure of a paper: its numbers beside ours, and which of its claims hold."""
    if show:
        stdout.print(_list())
        return
    place = docs or (Path("docs") if Path("docs/data").is_dir() else runs)
    if page:
        stdout.print(f"The page is {render(place)}", highlight=False, soft_wrap=True)
        return
    if quick and full:
        raise ConfigError("--quick and --full: only one of the two is allowed")
    wanted = [*REPRODUCTIONS] if names == [ALL] else names or []
    if not wanted:
        raise ConfigError(f"name what to reproduce (laconic reproduce --list): {', '.join([*REPRODUCTIONS, ALL])}")
    # Every name is looked up before the first one runs.
    for name, reproduction in [(name, find(name)) for name in wanted]:
        _reproduce(name, reproduction, "quick" if quick else "full" if full else "short", runs, place, seeds)


def _reproduce(name: str, reproduction: Reproduction, mode: Mode, runs: Path, docs: Path, seeds: int | None) -> None:
    started = time.perf_counter()
    stdout.print(f"[bold]{name}[/bold]  {escape(reproduction.what)}", highlight=False, soft_wrap=True)
    stdout.print(f"{reproduction.paper}.", highlight=False, soft_wrap=True, markup=False)
    with tempfile.TemporaryDirectory() as aside:
        for key, study in reproduction.studies.items():
            stdout.print(f"\n[bold]{escape(study.title)}[/bold]", highlight=False, soft_wrap=True)
            try:
                data = collect(key, study, mode, Path(aside) if mode == "quick" else runs, LiveView(stderr), seeds)
            except Skipped as reason:
                stdout.print(f"skipped: {reason}", highlight=False, soft_wrap=True, markup=False)
                continue
            except Interrupted as stop:
                stop.again = shlex.join(["laconic", *sys.argv[1:]])
                raise
            _show(study, data)
            if mode != "quick":
                for path in save(key, study, data, docs):
                    stdout.print(f"written: {path}", highlight=False, soft_wrap=True)
    stdout.print(f"\n{name} took {duration(time.perf_counter() - started)}\n", highlight=False)


def _show(study: Study, data: Data) -> None:
    found = grid(study, data)
    shown = new_table(*found.head)
    for row in found.rows:
        shown.add_row(*map(escape, row))
    stdout.print(shown)
    stdout.print(
        about(study, data) + (f" {BRACKETS}" if study.paper else ""), highlight=False, soft_wrap=True, markup=False
    )
    if data["mode"] == "quick":
        stdout.print("On a tiny setting only the way is tried; its numbers say nothing of the paper.", highlight=False)
        return
    colors = {True: "green", False: "red", None: "dim"}
    for claim, verdict in verdicts(study, data):
        word = f"[{colors[verdict.holds]}]{verdict.word}[/]"
        stdout.print(f"  {word}: {escape(claim.text)} ({escape(verdict.evidence)})", highlight=False, soft_wrap=True)


def _list() -> object:
    shown = new_table("name", "what", "paper", "studies", "left to --full")
    for name, reproduction in REPRODUCTIONS.items():
        left = [_left_out(study) for study in reproduction.studies.values()]
        shown.add_row(
            name,
            reproduction.what,
            reproduction.paper.partition(". ")[0],
            str(len(reproduction.studies)),
            "; ".join(dict.fromkeys(filter(None, left))) or "seeds only",
        )
    return shown


def _left_out(study: Study) -> str:
    short, experiment = study.short, study.experiment
    if short is None or experiment is None:
        return ""
    if short.left_out:
        return "whole studies"
    fewer = short.rounds is not None and short.rounds < experiment.rounds
    said = [f"rounds {(short.rounds or 0) + 1} to {experiment.rounds}"] if fewer else []
    said += ["some settings"] if short.labels else []
    said += ["most rates"] if short.rates else []
    return ", ".join(said)
