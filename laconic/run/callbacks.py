"""Callbacks: what is told about a run while it goes on, and may end it early."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.progress import Progress

from laconic.core.errors import ConfigError, unknown_name
from laconic.run.config import RunConfig
from laconic.run.training import Record, Training, metrics_of

Outcome = Literal["finished", "stopped", "diverged", "failed"]
"""How a run has ended: training is over, a person has stopped it, its numbers are not finite, or there was an error."""


@dataclass
class Run:
    """A run while it goes on, as callbacks see it."""

    training: Training
    config: RunConfig
    """With every choice spelled out."""
    label: str
    """What the run is called on screens and in reports."""
    directory: Path | None = None
    """Where the run is written, if it is."""
    history: list[Record] = field(default_factory=list)
    """The records of all rounds so far, those before a resume included."""
    stop_reason: str | None = None
    """Why a callback has ended the run; None if none has."""
    broken_off: bool = False
    """Whether the run ended in the middle of a round, which leaves nothing that can be saved."""

    def stop(self, reason: str) -> None:
        """End the run after this round. The model is saved, the outcome is "finished", and the result has the reason."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """The base class of callbacks. Its methods do nothing; override those that you need.

    An exception in a callback ends the run, with the outcome "failed".

    >>> import laconic
    >>> class Budget(laconic.Callback):
    ...     def on_round_end(self, run, record):
    ...         if record["bytes_up"] > 30_000:
    ...             run.stop("30 kB were sent")
    >>> result = laconic.simulate("fed_avg", "logistic", "digits", rounds=9, participants=5, callbacks=[Budget()])
    >>> len(result.history), result.stopped
    (3, '30 kB were sent')
    """

    def on_run_start(self, run: Run) -> None:
        """Everything is checked, and the first round is next. `run.history` has the rounds of a run that is resumed."""

    def on_round_end(self, run: Run, record: Record) -> None:
        """A round is over. `record` is its line of metrics.jsonl, also the last of `run.history`."""

    def on_interrupt(self, run: Run) -> None:
        """Ctrl-C was pressed in a run with a directory: the round is finished and saved, then the run stops."""

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        """The run is over. This is called once for every callback whose `on_run_start` was called, whatever happened."""


class CallbackList(Callback):
    """Several callbacks, called in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks: {callback!r} is no laconic.Callback; give objects, not classes")
        self._started: list[Callback] = []

    def on_run_start(self, run: Run) -> None:
        self._started = []
        for callback in self.callbacks:
            self._started.append(callback)
            callback.on_run_start(run)

    def on_round_end(self, run: Run, record: Record) -> None:
        for callback in self.callbacks:
            callback.on_round_end(run, record)

    def on_interrupt(self, run: Run) -> None:
        for callback in self.callbacks:
            callback.on_interrupt(run)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        """All are called. If one of them fails, those after it are told "failed", and the first error is raised."""
        first: BaseException | None = None
        for callback in self._started:
            try:
                callback.on_run_end(run, outcome)
            except BaseException as error:
                first, outcome = first or error, "failed"
        if first is not None:
            raise first


class EachRound(Callback):
    """Calls a function with the record of each round."""

    def __init__(self, function: Callable[[Record], None]) -> None:
        self.function = function

    def on_round_end(self, run: Run, record: Record) -> None:
        self.function(record)


class ProgressBar(Callback):
    """A bar over the rounds, on a terminal or in a notebook."""

    def __init__(self, *, shown: bool = True) -> None:
        self._bar = Progress(disable=not shown)

    def on_run_start(self, run: Run) -> None:
        self._bar.start()
        self._task = self._bar.add_task(run.label, total=run.training.settings.rounds, completed=len(run.history))

    def on_round_end(self, run: Run, record: Record) -> None:
        self._bar.update(self._task, completed=record["round"])

    def on_interrupt(self, run: Run) -> None:
        print("finishing this round, then saving", file=sys.stderr)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        self._bar.stop()


class EarlyStopping(Callback):
    """Ends a run whose metric no longer improves.

    Args:
        metric: A key of the records, such as "accuracy" or "loss". Rounds without it are not counted.
        patience: The number of evaluations in a row without an improvement after which the run ends.
        minimum_change: What the best value so far must be exceeded by to count as an improvement.
        mode: "max" if a larger value is better, "min" if a smaller one is. By default "max" for accuracy, else "min".

    >>> import laconic
    >>> patient = laconic.EarlyStopping("accuracy", patience=2, minimum_change=0.5)
    >>> result = laconic.simulate("fed_avg", "logistic", "digits", rounds=50, eval_every=1, callbacks=[patient])
    >>> len(result.history), result.stopped
    (3, 'accuracy has not improved by more than 0.5 in 2 evaluations')
    """

    def __init__(
        self,
        metric: str = "accuracy",
        patience: int = 5,
        minimum_change: float = 0.0,
        mode: Literal["max", "min"] | None = None,
    ) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping: patience = {patience}: 1 or more is allowed")
        if minimum_change < 0:
            raise ConfigError(f"EarlyStopping: minimum_change = {minimum_change}: 0 or more is allowed")
        if mode not in (None, "max", "min"):
            raise ConfigError(f"EarlyStopping: mode = {mode!r}: 'max' or 'min' is allowed")
        self.metric, self.patience, self.minimum_change = metric, patience, minimum_change
        self.mode = mode or ("max" if metric.endswith("accuracy") else "min")
        self._best: float | None = None
        self._without = 0

    def on_run_start(self, run: Run) -> None:
        self._best, self._without = None, 0
        for record in run.history:
            self._count(record)

    def on_round_end(self, run: Run, record: Record) -> None:
        measured = metrics_of(record)
        if measured and self.metric not in record:
            raise unknown_name("metric", self.metric, measured, of="EarlyStopping")
        self._count(record)
        if self._without >= self.patience:
            more = f" by more than {self.minimum_change:g}" if self.minimum_change else ""
            run.stop(f"{self.metric} has not improved{more} in {self.patience} evaluations")

    def _count(self, record: Record) -> None:
        value = record.get(self.metric)
        if value is None:
            return
        gain = 0.0 if self._best is None else (value - self._best) * (1 if self.mode == "max" else -1)
        if self._best is None or gain > self.minimum_change:
            self._best, self._without = value, 0
        else:
            self._without += 1
