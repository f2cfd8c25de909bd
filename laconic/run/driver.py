"""Runs a config in a directory: starts it, resumes it, or reads the finished run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from laconic.core.errors import LaconicError
from laconic.data.federated import ClientData
from laconic.run.callbacks import Callback
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.loop import run_training
from laconic.run.records import TROUBLES, Record, troubles
from laconic.run.resume import with_changes
from laconic.run.target import Reached, Target, reached
from laconic.run.training import Diverged, Result


@dataclass(frozen=True)
class Finished:
    """A finished run."""

    label: str
    config: RunConfig
    result: Result
    directory: Path
    target: Target | None = None

    @property
    def reached(self) -> Reached | None:
        """The costs to reach the target; None if there is no target or the run did not reach it."""
        return None if self.target is None else reached(self.result.history, self.target)

    @property
    def simulated_seconds(self) -> float | None:
        """The simulated duration of the run; None without a simulated network."""
        seconds: float | None = self.result.history[-1].get("simulated_seconds")
        return seconds

    def summary(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        result, at = self.result, self.reached
        return {
            **result.metrics,
            "algorithm": self.config.algorithm,
            "label": self.label,
            "dataset": self.config.dataset,
            "model": self.config.model,
            "rounds": len(result.history),
            "stopped": result.stopped,
            "accuracy": result.accuracy,
            "loss": result.loss,
            **result.ledger.totals(),
            "seconds": round(result.seconds, 3),
            "simulated_seconds": self.simulated_seconds,
            **dict.fromkeys(TROUBLES, 0),
            **troubles(result.history),
            "collapse_reason": result.collapsed,
            "epsilon": result.history[-1].get("epsilon"),
            "model_sha256": result.model_sha256,
            "run_dir": str(self.directory),
            "target": self.target and self.target.value,
            "target_metric": self.target and self.target.metric,
            "rounds_to_target": at and at.rounds,
            "bytes_to_target": at and at.bytes,
            "seconds_to_target": at and at.seconds,
            "simulated_seconds_to_target": at and at.simulated_seconds,
        }


def run_config(
    config: RunConfig,
    directory: Path,
    callbacks: Iterable[Callback] = (),
    *,
    resume: bool = False,
    from_round: int | None = None,
    label: str | None = None,
    target: Target | None = None,
    data: ClientData | None = None,
    more: bool = False,
) -> Finished:
    """Run a config to its end in a directory. Nothing is written before all checks have passed.

    Args:
        config: The config.
        directory: The run directory.
        callbacks: Objects that are notified of the run's progress.
        resume: Whether to continue the run in the directory, if there is one. See `with_changes`.
        from_round: Continue from the checkpoint of this round instead of the last one.
        label: The run's name in the terminal and in reports. Default: the algorithm's title.
        target: The target for the summary.
        data: Data that is already loaded, instead of the config's data set.
        more: Whether other runs follow. See `laconic.run.loop.run`.
    """
    folder = RunDirectory(directory, resume=resume, from_round=from_round)
    if resume and folder.exists():
        folder.check_config()
        config = with_changes(config, load_config(folder.config, {}), directory)
    simulation = config.build(data)
    try:
        target = target and target.checked(simulation.metric_names(), simulation.task.named_metrics())
    except BaseException:
        simulation.close()
        raise
    label = label or simulation.algorithm.title
    result = run_training(simulation, config, folder, callbacks, label=label, more=more)
    return Finished(label, config.resolved(simulation), result, directory, target)


class RunRecords(NamedTuple):
    """The rounds of a run that finished or diverged."""

    records: list[Record]
    """One record per round, at most `config.rounds`."""
    diverged: bool


def started_with(config: RunConfig, directory: Path) -> bool:
    """Whether the run in a directory was started with these settings. True if there is no run."""
    folder = RunDirectory(directory)
    if not folder.exists():
        return True
    try:
        with_changes(config, folder.stored_config(), directory)
    except LaconicError:
        return False
    return True


def run_or_resume(
    config: RunConfig,
    directory: Path,
    callbacks: Iterable[Callback] = (),
    label: str | None = None,
    data: ClientData | None = None,
) -> RunRecords:
    """Run a config unless its directory has the result. An interrupted or shorter run is resumed, a diverged one is not."""
    folder = RunDirectory(directory)
    records = read_metrics(folder.metrics)
    diverged = folder.diverged.exists()
    if not diverged and not (folder.model.exists() and len(records) >= config.rounds):
        wanted = load_config(None, {"rounds": max(config.rounds, len(records))}) if folder.exists() else config
        try:
            run_config(wanted, directory, callbacks, resume=folder.exists(), label=label, data=data, more=True)
        except Diverged:
            diverged = True
        records = read_metrics(folder.metrics)
    return RunRecords([record for record in records if record["round"] <= config.rounds], diverged)
