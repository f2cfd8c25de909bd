"""The command reproduce."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import torch
from rich.markup import escape

from laconic.cli.console import say, stderr, stdout
from laconic.cli.view import LiveView
from laconic.core.counts import counted
from laconic.core.errors import ConfigError, Interrupted
from laconic.report.tables import new_table
from laconic.report.units import duration
from laconic.reproduce.catalog import PAPERS, REPRODUCTIONS, find
from laconic.reproduce.document import draw_figures, load, render, save
from laconic.reproduce.plans import Data
from laconic.reproduce.progress import PAGE
from laconic.reproduce.queue import Queue, lower_priority
from laconic.reproduce.runner import ONLY_FULL, Skipped, collect
from laconic.reproduce.study import Mode, Reproduction, Study
from laconic.reproduce.tables import BRACKETS, about, grids, verdicts

ALL = "all"


def reproduce(
    names: list[str] | None,
    show: bool,
    quick: bool,
    full: bool,
    seeds: int | None,
    runs: Path,
    docs: Path | None,
    page: bool,
    hours: float | None,
    workers: int | None,
) -> None:
    """Reproduce tables and figures of papers."""
    if show:
        stdout.print(_list())
        return
    output = docs or (Path("docs") if Path("docs/data").is_dir() else runs)
    if page:
        say(f"written: {', '.join(map(str, [*draw_figures(output), *render(output)]))}")
        return
    mode = _mode(quick, full)
    found = _found(names or [])
    if hours is not None:
        _run_queue(found, mode, seeds or 1, runs, output, hours, workers)
        return
    if workers is not None:
        raise ConfigError("--workers: only with --hours")
    for name, reproduction in found.items():
        _reproduce(name, reproduction, mode, runs, output, seeds)


def _mode(quick: bool, full: bool) -> Mode:
    if quick and full:
        raise ConfigError("--quick and --full: only one of the two is allowed")
    return "quick" if quick else "full" if full else "short"


def _found(names: list[str]) -> dict[str, Reproduction]:
    """Look up every name before the first study runs."""
    wanted = [*REPRODUCTIONS] if names == [ALL] else names
    if not wanted:
        raise ConfigError(f"name what to reproduce (laconic reproduce --list): {', '.join([*REPRODUCTIONS, ALL])}")
    return {name: find(name) for name in wanted}


def _run_queue(
    found: Mapping[str, Reproduction],
    mode: Mode,
    seeds: int,
    runs: Path,
    docs: Path,
    hours: float,
    workers: int | None,
) -> None:
    """Run what is missing, until it is complete or the time is over."""
    if mode == "quick":
        raise ConfigError("--quick and --hours: only one of the two is allowed")
    studies = {name: study for reproduction in found.values() for name, study in reproduction.studies.items()}
    queue = Queue(studies, mode, seeds, runs, docs)
    say(f"{counted(len(queue.jobs), 'job')}; progress: {runs / PAGE}", stderr)
    for name, reason in queue.skipped.items():
        say(f"skipped: {name}: {reason}", stderr)
    if left_out := sum(reason == ONLY_FULL for reason in queue.skipped.values()):
        say(
            f"to run these {counted(left_out, 'study')} too: {shlex.join(['laconic', *sys.argv[1:], '--full'])}", stderr
        )
    count = workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    if count == 1:
        lower_priority()  # the jobs run in this process
    complete = queue.run(count, time.time() + 3600 * hours)
    say("complete" if complete else f"stopped; continue with: {shlex.join(['laconic', *sys.argv[1:]])}")


def _reproduce(name: str, reproduction: Reproduction, mode: Mode, runs: Path, docs: Path, seeds: int | None) -> None:
    started = time.perf_counter()
    stdout.print(f"[bold]{name}[/bold]  {escape(reproduction.what)}", highlight=False, soft_wrap=True)
    say(f"{reproduction.paper}.")
    with tempfile.TemporaryDirectory() as temporary:
        for key, study in reproduction.studies.items():
            stdout.print(f"\n[bold]{escape(study.title)}[/bold]", highlight=False, soft_wrap=True)
            try:
                data = collect(key, study, mode, Path(temporary) if mode == "quick" else runs, LiveView(stderr), seeds)
            except Skipped as reason:
                say(f"skipped: {reason}")
                continue
            except Interrupted as stop:
                stop.again = shlex.join(["laconic", *sys.argv[1:]])
                raise
            _show(study, data, docs)
            if mode != "quick":
                for path in save(key, study, data, docs):
                    say(f"written: {path}")
    say(f"\n{name} took {duration(time.perf_counter() - started)}\n")


def _show(study: Study, data: Data, docs: Path) -> None:
    for cells in grids(study, data):
        if cells.title:
            say(cells.title)
        table = new_table(*cells.head)
        for row in cells.rows:
            table.add_row(*map(escape, row))
        if cells.rows:
            stdout.print(table)
        if cells.note:
            say(cells.note)
    say(about(study, data) + (f" {BRACKETS}" if study.paper else ""))
    if data["mode"] == "quick":
        say("This only checks that the study runs; its numbers say nothing about the paper.")
        return
    colors = {"holds": "green", "fails": "red", "undecided": "yellow", "one seed": "yellow", "not judged": "dim"}
    for text, verdict in verdicts(study, data, load(study.beside, docs) if study.beside else None).items():
        word = f"[{colors[verdict.kind]}]{verdict.word}[/]"
        stdout.print(f"  {word}: {escape(text)} ({escape(verdict.evidence)})", highlight=False, soft_wrap=True)


def _list() -> object:
    table = new_table("name", "what", "the short form runs")
    papers = {name: paper for paper, names in PAPERS.items() for name in names}
    for paper, names in groupby(REPRODUCTIONS, lambda name: papers.get(name, "Laconic")):
        table.add_row(f"[bold]{escape(paper)}[/]")
        for name in names:
            reproduction = REPRODUCTIONS[name]
            table.add_row(name, reproduction.what, _shortened([*reproduction.studies.values()]))
        table.add_row()
    table.caption_justify = "left"
    table.caption = "The short form, the default, takes minutes to an hour. --full runs everything, with all seeds."
    return table


def _shortened(studies: Sequence[Study]) -> str:
    """What the short form of a reproduction runs, in words."""
    included = [study for study in studies if study.short is None or not study.short.left_out]
    if not included:
        return "nothing: only --full runs it"
    words = [f"{len(included)} of {len(studies)} studies"] if len(included) < len(studies) else []
    extents: dict[str, dict[int, list[int]]] = {}
    for study in included:
        for what, shortened, total in _extents(study):
            extents.setdefault(what, {}).setdefault(total, []).append(shortened)
    for what, totals in extents.items():
        counts = [f"{' to '.join(map(str, sorted({min(n), max(n)})))} of {total}" for total, n in totals.items()]
        words.append(f"{' and '.join(counts)} {what}")
    everything = "everything, one seed" if any(study.seeds > 1 for study in studies) else "everything"
    return (", ".join(words) or everything) + ", on a GPU" * all(study.needs_gpu for study in included)


def _extents(study: Study) -> Iterator[tuple[str, int, int]]:
    """What is shortened of a study, to how many, and of how many."""
    short, experiment = study.short, study.experiment
    if study.trials and study.trials["short"] < study.trials["full"]:
        yield "trials", study.trials["short"], study.trials["full"]
    if short is None or experiment is None:
        return
    if short.rounds is not None and short.rounds < experiment.rounds:
        yield "rounds", short.rounds, experiment.rounds
    if short.labels and len(short.labels) < len(experiment.runs):
        yield "settings", len(short.labels), len(experiment.runs)
    if short.rates and len(short.rates) < len(experiment.rates):
        yield "learning rates", len(short.rates), len(experiment.rates)
