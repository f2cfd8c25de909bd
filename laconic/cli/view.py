"""Progress of runs: a live line in a terminal, otherwise one plain line per evaluation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from laconic.core.counts import counted
from laconic.data.federated import described
from laconic.report.units import size
from laconic.run.callbacks import Callback, Outcome, Run
from laconic.run.records import OF_CLIENTS, Record, metrics_of
from laconic.search.advise import SearchCallback

SHOWN_LABELS = 10
"""The number of class names that are shown. Free text, given as labels by mistake, would fill the screen."""


def short(name: str) -> str:
    """A path to a Python file without its folder. Other names are unchanged.

    >>> short("/home/me/nets.py:build"), short("fashion-mnist")
    ('nets.py:build', 'fashion-mnist')
    """
    return name if ".py" not in name else Path(name).name


class LiveView(Callback):
    """Shows the progress of runs on a console."""

    full_width = False

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress: Progress | None = None
        self.task: TaskID | None = None
        self.shown: dict[str, Any] = {}
        self.rounds, self.first, self.began = 0, 0, time.perf_counter()
        """Of the run: all rounds, those that were done before, and when it began."""

    def on_run_start(self, run: Run) -> None:
        training, config, done = run.training, run.config, len(run.history)
        settings = training.settings
        where = f"{escape(short(config.dataset))} ({config.partition or 'its own clients'})"
        head = f"[bold]{escape(run.label)}[/bold] on {where}"
        counts = f"{settings.participants:,} of {counted(len(training.data), 'client')} per round"
        resumed = f", resuming after round {done}" if done else ""
        if done == settings.rounds:
            resumed = ", already complete"
        model = f"{escape(short(config.model or ''))} with {counted(training.layout.full.size, 'parameter')}"
        if settings.subspace is not None:
            model += f" in a subspace of {training.layout.size:,}"
        kind = described(training.data)
        self.console.print(f"{head}: {counts}, {kind}, {model}{resumed}", highlight=False, soft_wrap=True)
        labels = getattr(training.data, "labels", None)
        if labels:
            named = ", ".join(f"{number} = {label}" for number, label in enumerate(labels[:SHOWN_LABELS]))
            more = f", … up to {len(labels) - 1}" if len(labels) > SHOWN_LABELS else ""
            self.console.print(f"  classes: {escape(named)}{more}", highlight=False, soft_wrap=True)
        if training.data.test is None:
            self.console.print("  no test examples: the loss is the clients' training loss", highlight=False)
        self.begin(settings.rounds, done)

    def begin(self, rounds: int, done: int = 0) -> None:
        """Show the progress bar. Call this directly if another process runs the rounds."""
        self.rounds, self.first, self.began = rounds, done, time.perf_counter()
        self.shown = {}
        bar = [BarColumn(bar_width=20)] if self.console.width >= 110 else []
        columns = [TextColumn("round {task.completed}/{task.total}"), *bar, TextColumn("{task.fields[line]}")]
        self._start(columns, rounds, completed=done, line="starting")

    def _start(self, columns: list[ProgressColumn], rounds: int, completed: int = 0, line: str = "") -> None:
        if self.console.is_terminal:
            columns.append(TimeRemainingColumn(compact=True))
            self.progress = Progress(*columns, console=self.console, transient=True, expand=self.full_width)
            self.progress.start()
            self.task = self.progress.add_task("", total=rounds, completed=completed, line=line)

    def on_round_end(self, run: Run, record: Record) -> None:
        self.show(record)

    def show(self, record: Record) -> None:
        """Show the record of a round."""
        metrics = metrics_of(record)
        # The report has the metrics by client and by class (class_accuracy_0, …). They would fill the line.
        many = (*OF_CLIENTS, *(name[:-1] for name in metrics if name.endswith("_0")))
        self.shown |= {name: value for name, value in metrics.items() if not name.startswith(many)}
        if "collapsed" in record:
            self.console.print(f"  {record['collapsed']}", style="yellow", highlight=False, soft_wrap=True)
        line = self._line(record)
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=record["round"], line=line)
        elif metrics:
            self.console.print(f"  round {record['round']}/{self.rounds}  {line}", highlight=False, soft_wrap=True)

    def _line(self, record: Record) -> str:
        metrics = "  ".join(f"{name.replace('_', ' ')} {_number(name, value)}" for name, value in self.shown.items())
        if "epsilon" in record:
            metrics += f"  epsilon {record['epsilon']:.3g}"
        traffic = f"up {size(record['bytes_up'])}  down {size(record['bytes_down'])}"
        if self.console.is_terminal and self.console.width < 100:
            return f"{metrics}  {traffic}".lstrip()
        rate = (record["round"] - self.first) / max(time.perf_counter() - self.began, 1e-9)
        return f"{metrics}  {traffic}  {rate:.3g} rounds/s".lstrip()

    def on_interrupt(self, run: Run) -> None:
        self.console.print("finishing this round, then saving; Ctrl-C again stops at once", highlight=False)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        self.end()
        if run.stop_reason is not None:
            message = f"  stopped after round {len(run.history)}: {run.stop_reason}"
            self.console.print(message, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Remove the progress bar."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


class SearchView(LiveView, SearchCallback):
    """Shows many short runs: in a terminal one progress bar over the rounds of all, otherwise one line per run."""

    full_width = True

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.label = ""
        self.before = 0
        """The rounds of earlier trials."""

    def on_message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def on_search_start(self, rounds: int) -> None:
        line = TextColumn("{task.fields[line]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        bar = [BarColumn(bar_width=20)] if self.console.width >= 80 else []
        self._start([TextColumn("trial"), line, *bar, TextColumn("{task.percentage:.0f} %")], rounds)

    def on_trial_start(self, label: str, ended: int, own: int) -> None:
        self.label, self.before, self.shown = label, ended - own, {}
        self._show(ended)

    def on_run_start(self, run: Run) -> None:
        self._show(self.before + len(run.history))

    def show(self, record: Record) -> None:
        self.shown |= metrics_of(record)
        self._show(self.before + record["round"])

    def _show(self, done: int) -> None:
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=done, line=self.label)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self.progress is None:
            metrics = "  ".join(f"{name} {_number(name, value)}" for name, value in self.shown.items())
            self.on_message(f"  {self.label}  {metrics if outcome == 'finished' else outcome}")


def _number(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4f}"
