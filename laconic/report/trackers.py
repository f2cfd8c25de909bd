"""Runs in other people's tools while they go on: TensorBoard's event files, and an MLflow store; local files only."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laconic.errors import ConfigError
from laconic.report.gather import flat
from laconic.run.config import RunConfig
from laconic.run.driver import Watcher
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

    def finish(self) -> None:
        """See `Watcher`."""
        for watcher in self.watchers:
            watcher.finish()


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

    def finish(self) -> None:
        """See `Watcher`."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """A run of an MLflow store, the file mlflow.db beside the run's directory."""

    def __init__(self, directory: Path) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError("--mlflow needs MLflow: in the folder of the clone, pip install -e '.[mlflow]'") from None
        self._client_of: Any = MlflowClient
        self._directory = directory
        self._client: Any = None
        self._run = ""

    @property
    def store(self) -> str:
        """Where the store is; `mlflow ui --backend-store-uri` takes it."""
        return f"sqlite:///{(self._directory.parent / 'mlflow.db').resolve()}"

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """A run that goes on is the same run of the store."""
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        self._client = self._client_of(tracking_uri=self.store)
        known = self._directory / "mlflow_run"
        if known.exists():
            self._run = known.read_text().strip()
            return
        experiment = self._client.get_experiment_by_name("laconic")
        number = experiment.experiment_id if experiment else self._client.create_experiment("laconic")
        self._run = self._client.create_run(number, run_name=label).info.run_id
        known.write_text(f"{self._run}\n")
        for key, value in flat(config.model_dump(exclude_none=True)).items():
            self._client.log_param(self._run, key, value)

    def update(self, record: Record) -> None:
        """All numbers of the record, at its round."""
        from mlflow.entities import Metric

        metrics = [Metric(name, value, 0, record["round"]) for name, value in numbers(record).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def stopping(self) -> None:
        """See `Watcher`."""

    def finish(self) -> None:
        """See `Watcher`."""
        if self._run:
            self._client.set_terminated(self._run)


def tracked(view: Watcher, directory: Path, *, tensorboard: bool, mlflow: bool) -> Watcher:
    """The view, and beside it the tools that were asked for."""
    more: Sequence[Watcher] = [
        *([TensorBoard(directory)] if tensorboard else []),
        *([MLflow(directory)] if mlflow else []),
    ]
    return Several(view, *more) if more else view
