"""Callbacks: objects that a run notifies of its progress. A callback may also stop the run early."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal

from rich.progress import Progress, TaskID

from laconic.core.counts import counted
from laconic.core.errors import ConfigError, unknown_name
from laconic.run.config import RunConfig
from laconic.run.records import OF_CLIENTS, OTHER_KEYS, Record, metrics_of
from laconic.run.target import lower_is_better
from laconic.run.training import Training

Outcome = Literal["finished", "stopped", "diverged", "failed"]
"""How a run ended: training is complete, the user interrupted it, a value is not finite, or an error was raised."""


@dataclass
class Run:
    """A run in progress, as callbacks see it."""

    training: Training
    config: RunConfig
    """The resolved config: every default is explicit."""
    label: str
    """The run's name in the terminal and in reports."""
    directory: Path | None = None
    """The run directory; None if the run is not written to disk."""
    history: list[Record] = field(default_factory=list)
    """The records of all rounds so far, including those before a resume."""
    stop_reason: str | None = None
    """The reason that a callback passed to `stop`; None if no callback has stopped the run."""
    broken_off: bool = False
    """Whether the run ended in the middle of a round. The state is then inconsistent and is not saved."""

    def stop(self, reason: str) -> None:
        """Stop the run after this round. The model is saved, the outcome is "finished", and `Result.stopped` is `reason`."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """The base class of callbacks. Its methods do nothing; override those that you need.

    An exception in a callback ends the run with the outcome "failed".

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
        """Called before the first round, after all checks. In a resumed run, `run.history` has the earlier rounds."""

    def on_round_end(self, run: Run, record: Record) -> None:
        """Called after each round. `record` is the round's line of metrics.jsonl and the last entry of `run.history`."""

    def on_interrupt(self, run: Run) -> None:
        """Called at Ctrl-C in a run with a directory. The run finishes and saves the current round, then stops."""

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        """Called once at the end, also after an error, for every callback whose `on_run_start` was called."""


class CallbackList(Callback):
    """Several callbacks, called in order."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks = list(callbacks)
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise ConfigError(f"callbacks: {callback!r} is not a laconic.Callback; pass instances, not classes")
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
        """Call every callback. If one raises, later ones get the outcome "failed"; then the first error is raised."""
        first_error: BaseException | None = None
        for callback in self._started:
            try:
                callback.on_run_end(run, outcome)
            except BaseException as error:
                first_error, outcome = first_error or error, "failed"
        if first_error is not None:
            raise first_error


class EachRound(Callback):
    """Calls a function with the record of each round."""

    def __init__(self, function: Callable[[Record], None]) -> None:
        self.function = function

    def on_round_end(self, run: Run, record: Record) -> None:
        self.function(record)


class ProgressBar(Callback):
    """A progress bar over the rounds, in a terminal or a notebook."""

    def __init__(self, *, shown: bool = True) -> None:
        self._bar = Progress(disable=not shown)
        self._task: TaskID | None = None

    def on_run_start(self, run: Run) -> None:
        self._bar.start()
        self._task = self._bar.add_task(run.label, total=run.training.settings.rounds, completed=len(run.history))

    def on_round_end(self, run: Run, record: Record) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=record["round"])

    def on_interrupt(self, run: Run) -> None:
        print("finishing this round, then saving", file=sys.stderr)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        self._bar.stop()


class BestSoFar(Callback):
    """The base of callbacks that compare a metric with its best value so far.

    Args:
        metric: A key of the records, such as "accuracy" or "loss". Rounds without this metric are ignored.
        mode: "max" if larger is better, "min" if smaller is better. Default: as the metric of
            torchmetrics says, or else "min" for losses and errors, by the metric's name, otherwise "max".
        minimum_change: A value counts as an improvement if it is better than the best so far by more than this.
    """

    best: float | None = None
    """The best value so far; None before the first evaluation."""
    best_round: int | None = None
    """Its round."""

    def __init__(
        self, metric: str = "accuracy", mode: Literal["max", "min"] | None = None, minimum_change: float = 0.0
    ) -> None:
        if minimum_change < 0:
            raise ConfigError(f"{self._name}: minimum_change = {minimum_change}: 0 or more is allowed")
        if mode not in (None, "max", "min"):
            raise ConfigError(f"{self._name}: mode = {mode!r}: 'max' or 'min' is allowed")
        self.metric, self.minimum_change = metric, minimum_change
        self._given_mode = mode
        self.mode = mode or ("min" if lower_is_better(metric) else "max")

    @property
    def _name(self) -> str:
        return type(self).__name__

    def on_run_start(self, run: Run) -> None:
        self.best = self.best_round = None
        training = run.training
        lower = lower_is_better(self.metric, training.task.named_metrics())
        self.mode = self._given_mode or ("min" if lower else "max")
        of_clients = training.data.test is None or self.metric in OTHER_KEYS or self.metric.startswith(OF_CLIENTS)
        if training.privacy is not None and of_clients:
            raise ConfigError(
                f"{self._name}: metric = '{self.metric}': with dp_noise the result must not depend on what clients "
                "report; use a metric of the server's test examples"
            )
        for record in run.history:
            self.update(record)

    def on_round_end(self, run: Run, record: Record) -> None:
        measured = metrics_of(record)
        if measured and self.metric not in record:
            raise unknown_name("metric", self.metric, measured, of=self._name)
        self.update(record)

    def update(self, record: Record) -> bool | None:
        """Compare a record with the best one. Returns whether it is better; None if the metric is missing or undefined."""
        value = record.get(self.metric)
        if value is None or math.isnan(value):
            return None
        gain = 0.0 if self.best is None else (value - self.best) * (1 if self.mode == "max" else -1)
        better = self.best is None or gain > self.minimum_change
        if better:
            self.best, self.best_round = value, record["round"]
        return better


class EarlyStopping(BestSoFar):
    """Stops a run when a metric no longer improves.

    Args:
        metric: A key of the records, such as "accuracy" or "loss". Rounds without this metric are ignored.
        patience: The number of consecutive evaluations without an improvement after which the run stops.
        minimum_change: A value counts as an improvement if it is better than the best so far by more than this.
        mode: "max" if larger is better, "min" if smaller is better. Default: by `higher_is_better` of a torchmetrics object;
            for other metrics "min" if the name is that of a loss or an error, otherwise "max".

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
        super().__init__(metric, mode, minimum_change)
        self.patience = patience
        self._evaluations_without_gain = 0

    def on_run_start(self, run: Run) -> None:
        self._evaluations_without_gain = 0
        super().on_run_start(run)

    def on_round_end(self, run: Run, record: Record) -> None:
        super().on_round_end(run, record)
        if self._evaluations_without_gain >= self.patience:
            margin = f" by more than {self.minimum_change:g}" if self.minimum_change else ""
            run.stop(f"{self.metric} has not improved{margin} in {counted(self.patience, 'evaluation')}")

    def update(self, record: Record) -> bool | None:
        better = super().update(record)
        if better is not None:
            self._evaluations_without_gain = 0 if better else self._evaluations_without_gain + 1
        return better


class SaveBest(BestSoFar):
    """Saves the model of the evaluated round with the best metric. `best` and `best_round` tell which one it is.

    `module.load_state_dict(laconic.load_model(path))` loads the model.

    Args:
        metric: A key of the records, such as "accuracy" or "loss".
        path: The file. Default: best.safetensors in the run directory.
        mode: "max" if larger is better, "min" if smaller is better. Default: by `higher_is_better` of a torchmetrics object;
            for other metrics "min" if the name is that of a loss or an error, otherwise "max".
    """

    def __init__(
        self,
        metric: str = "accuracy",
        path: str | PathLike[str] | None = None,
        mode: Literal["max", "min"] | None = None,
    ) -> None:
        super().__init__(metric, mode)
        self.given_path = None if path is None else Path(path)
        self.path: Path | None = self.given_path
        """The file of the current or last run."""

    def on_run_start(self, run: Run) -> None:
        if self.given_path is None and run.directory is None:
            raise ConfigError("SaveBest: pass a path to it, or a directory to the run, as in out='runs/mine'")
        self.path = self.given_path or (run.directory or Path()) / "best.safetensors"
        super().on_run_start(run)
        if not self.path.exists():
            # The model of an earlier round is gone: the best of the rounds to come counts.
            self.best = self.best_round = None

    def on_round_end(self, run: Run, record: Record) -> None:
        super().on_round_end(run, record)
        if self.best_round == record["round"] and self.path is not None:
            run.training.save_model(self.path)
