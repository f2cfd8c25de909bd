"""Runs in other people's tools while they go on: TensorBoard's event files, and an MLflow store."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError
from laconic.run.config import RunConfig
from laconic.run.driver import Outcome, Watcher
from laconic.run.settings import flat
from laconic.run.simulation import Simulation
from laconic.run.training import Record


class Several:
    """Watchers that see the same run."""

    def __init__(self, *watchers: Watcher) -> None:
        self.watchers = watchers

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.start(label, config, simulation, done)

    def update(self, record: Record) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.update(record)

    def stopping(self) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.stopping()

    def finish(self, outcome: Outcome) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.finish(outcome)


def numbers(record: Record) -> dict[str, float]:
    """What of a record is a number."""
    return {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "round"}


class TensorBoard:
    """Event files in the run's directory: `tensorboard --logdir runs` shows all runs below."""

    def __init__(self, directory: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "--tensorboard needs TensorBoard: in the folder of the clone, pip install -e '.[tensorboard]'"
            ) from None
        self._make: Any = SummaryWriter
        self._directory = directory / "tensorboard"
        self._writer: Any = None

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """A run that goes on hides what was written of rounds that are run again."""
        self._writer = self._make(str(self._directory), purge_step=done + 1 if done else None)
        self._writer.add_text("config", f"```toml\n{config.to_toml()}\n```", done)

    def update(self, record: Record) -> None:
        """One scalar for each number of the record, at its round."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def stopping(self) -> None:
        """See `Watcher`."""

    def finish(self, outcome: Outcome) -> None:
        """See `Watcher`."""
        if self._writer is not None:
            self._writer.close()


STATUS: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
"""How a run has ended, in MLflow's words."""


class MLflow:
    """A run of an MLflow store: MLFLOW_TRACKING_URI, or the file mlflow.db beside the run's directory."""

    def __init__(self, directory: Path) -> None:
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError("--mlflow needs MLflow: in the folder of the clone, pip install -e '.[mlflow]'") from None
        self._client_of: Any = MlflowClient
        self._error: type[Exception] = MlflowException
        self._directory = directory
        self._client: Any = None
        self._run = ""

    @property
    def store(self) -> str:
        """Where the store is; `mlflow ui --backend-store-uri` takes it."""
        beside = f"sqlite:///{(self._directory.parent / 'mlflow.db').resolve()}"
        return os.environ.get("MLFLOW_TRACKING_URI") or beside

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """A run that goes on is the same run of the store, where the store has it."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            self._client = self._client_of(tracking_uri=self.store)
            self._run = self._known() or self._new(label, config)
        except self._error as error:
            raise ConfigError(f"--mlflow: '{self.store}' cannot be used: {error}") from None

    def _known(self) -> str | None:
        """The run that this directory is in the store; it was entered into another one if this one does not have it."""
        known = self._directory / "mlflow_run"
        run = known.read_text().strip() if known.exists() else ""
        if not run:
            return None
        try:
            self._client.update_run(run, status="RUNNING")
        except self._error as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run

    def _new(self, label: str, config: RunConfig) -> str:
        experiment = self._client.get_experiment_by_name("laconic")
        number = experiment.experiment_id if experiment else self._client.create_experiment("laconic")
        run: str = self._client.create_run(number, run_name=label).info.run_id
        (self._directory / "mlflow_run").write_text(f"{run}\n")
        for key, value in flat(config.model_dump(exclude_none=True)).items():
            self._client.log_param(run, key, value)
        return run

    def update(self, record: Record) -> None:
        """All numbers of the record, at its round."""
        from mlflow.entities import Metric

        metrics = [Metric(name, value, 0, record["round"]) for name, value in numbers(record).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def stopping(self) -> None:
        """See `Watcher`."""

    def finish(self, outcome: Outcome) -> None:
        """See `Watcher`."""
        if self._run:
            self._client.set_terminated(self._run, STATUS[outcome])


def tracked(view: Watcher, directory: Path, *, tensorboard: bool, mlflow: bool) -> Watcher:
    """The view, and beside it the tools that were asked for."""
    more: Sequence[Watcher] = [
        *([TensorBoard(directory)] if tensorboard else []),
        *([MLflow(directory)] if mlflow else []),
    ]
    return Several(view, *more) if more else view
