"""Callbacks that show runs in other tools while they go on: TensorBoard and MLflow."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError
from laconic.run.callbacks import Callback, Outcome, Run
from laconic.run.config import RunConfig
from laconic.run.settings import flat
from laconic.run.training import Record


def numbers(record: Record) -> dict[str, float]:
    """Those entries of a record that are numbers."""
    return {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "round"}


def _directory(tool: str, given: Path | None, run: Run) -> Path:
    directory = given or run.directory
    if directory is None:
        raise ConfigError(f"{tool}: give it a directory, or give the run one, as in out='runs/mine'")
    return directory


class TensorBoard(Callback):
    """Writes TensorBoard's event files: `tensorboard --logdir runs` shows all runs below a folder.

    Args:
        directory: The files are in `tensorboard` below it; the run's own directory by default.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError(
                "TensorBoard is not installed: in the folder of the clone, pip install -e '.[tensorboard]'"
            ) from None
        self._make: Any = SummaryWriter
        self._given = None if directory is None else Path(directory)
        self._writer: Any = None

    def on_run_start(self, run: Run) -> None:
        """A run that is resumed hides what was written of rounds that are run again."""
        folder, done = _directory("TensorBoard", self._given, run) / "tensorboard", len(run.history)
        self._writer = self._make(str(folder), purge_step=done + 1 if done else None)
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}\n```", done)

    def on_round_end(self, run: Run, record: Record) -> None:
        """Write one scalar for each number of the record, at its round."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self._writer is not None:
            self._writer.close()


STATUS: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
"""How a run has ended, in MLflow's words."""


class MLflow(Callback):
    """Enters the run in an MLflow store: MLFLOW_TRACKING_URI, or the file mlflow.db beside the directory.

    Args:
        directory: Where the number of the run in the store is kept; the run's own directory by default.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        try:
            from mlflow.exceptions import MlflowException
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError(
                "MLflow is not installed: in the folder of the clone, pip install -e '.[mlflow]'"
            ) from None
        self._client_of: Any = MlflowClient
        self._error: type[Exception] = MlflowException
        self._given = None if directory is None else Path(directory)
        self._client: Any = None
        self._run = ""

    @staticmethod
    def store(directory: Path) -> str:
        """Where the store of a run is; `mlflow ui --backend-store-uri` takes it."""
        beside = f"sqlite:///{(directory.parent / 'mlflow.db').resolve()}"
        return os.environ.get("MLFLOW_TRACKING_URI") or beside

    def on_run_start(self, run: Run) -> None:
        """A run that is resumed is the same run of the store, if the store has it."""
        self._run = ""
        directory = _directory("MLflow", self._given, run)
        store = self.store(directory)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            self._client = self._client_of(tracking_uri=store)
            known = directory / "mlflow_run"
            self._run = self._known(known) or self._new(known, run.label, run.config)
        except self._error as error:
            raise ConfigError(f"MLflow: '{store}' cannot be used: {error}") from None

    def _known(self, known: Path) -> str | None:
        """The run's number in the store, as it was noted; None if it was noted for another store."""
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

    def _new(self, known: Path, label: str, config: RunConfig) -> str:
        experiment = self._client.get_experiment_by_name("laconic")
        number = experiment.experiment_id if experiment else self._client.create_experiment("laconic")
        run: str = self._client.create_run(number, run_name=label).info.run_id
        known.parent.mkdir(parents=True, exist_ok=True)
        known.write_text(f"{run}\n")
        for key, value in flat(config.model_dump(exclude_none=True)).items():
            self._client.log_param(run, key, value)
        return run

    def on_round_end(self, run: Run, record: Record) -> None:
        """Log all numbers of the record, at its round."""
        from mlflow.entities import Metric

        metrics = [Metric(name, value, 0, record["round"]) for name, value in numbers(record).items()]
        self._client.log_batch(self._run, metrics=metrics)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self._run:
            self._client.set_terminated(self._run, STATUS[outcome])


def trackers(*, tensorboard: bool, mlflow: bool) -> list[Callback]:
    """The tools that were asked for."""
    return [*([TensorBoard()] if tensorboard else []), *([MLflow()] if mlflow else [])]
