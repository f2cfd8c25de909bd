"""Callbacks that log runs to TensorBoard and MLflow."""

from __future__ import annotations

import logging
import os
from importlib import import_module
from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError
from laconic.run.callbacks import Callback, Outcome, Run
from laconic.run.config import RunConfig
from laconic.run.settings import flat
from laconic.run.training import Record


def numbers(record: Record) -> dict[str, float]:
    """Return the numeric entries of a record, except the round."""
    return {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "round"}


def _extra(tool: str, module: str) -> Any:
    """Import the module of an optional tool."""
    try:
        return import_module(module)
    except ImportError:
        how = f"in the folder of the clone, pip install -e '.[{tool.lower()}]'"
        raise ConfigError(f"{tool} is not installed: {how}") from None


def _directory(tool: str, given: Path | None, run: Run) -> Path:
    directory = given or run.directory
    if directory is None:
        raise ConfigError(f"{tool}: pass a directory to it or to the run, as in out='runs/mine'")
    return directory


class TensorBoard(Callback):
    """Writes TensorBoard event files. `tensorboard --logdir runs` shows all runs below a folder.

    Args:
        directory: The files go to its subfolder `tensorboard`. Defaults to the run directory.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._make = _extra("TensorBoard", "torch.utils.tensorboard").SummaryWriter
        self._given = None if directory is None else Path(directory)
        self._writer: Any = None

    def on_run_start(self, run: Run) -> None:
        """Open the writer. A resumed run hides the events of rounds that it repeats."""
        folder, done = _directory("TensorBoard", self._given, run) / "tensorboard", len(run.history)
        self._writer = self._make(str(folder), purge_step=done + 1 if done else None)
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}\n```", done)

    def on_round_end(self, run: Run, record: Record) -> None:
        """Write one scalar per number of the record."""
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self._writer is not None:
            self._writer.close()


STATUS: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
"""MLflow's status for each outcome."""


class MLflow(Callback):
    """Logs the run to an MLflow store: MLFLOW_TRACKING_URI, or the file mlflow.db beside the directory.

    Args:
        directory: Stores the MLflow run id, so that a resumed run continues it. Defaults to the run directory.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self._mlflow = _extra("MLflow", "mlflow")
        self._error: type[Exception] = self._mlflow.MlflowException
        self._given = None if directory is None else Path(directory)
        self._client: Any = None
        self._run = ""

    @staticmethod
    def store(directory: Path) -> str:
        """Return the URI of a run's store, for `mlflow ui --backend-store-uri`."""
        beside = f"sqlite:///{(directory.parent / 'mlflow.db').resolve()}"
        return os.environ.get("MLFLOW_TRACKING_URI") or beside

    def on_run_start(self, run: Run) -> None:
        """Create the MLflow run, or continue it if the store has it."""
        self._run = ""
        directory = _directory("MLflow", self._given, run)
        store = self.store(directory)
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            self._client = self._mlflow.MlflowClient(tracking_uri=store)
            id_file = directory / "mlflow_run"
            self._run = self._existing(id_file) or self._new(id_file, run.label, run.config)
        except self._error as error:
            raise ConfigError(f"MLflow: '{store}' cannot be used: {error}") from None

    def _existing(self, id_file: Path) -> str | None:
        """Return the stored run id; None if there is none or the store does not have that run."""
        run = id_file.read_text().strip() if id_file.exists() else ""
        if not run:
            return None
        try:
            self._client.update_run(run, status="RUNNING")
        except self._error as error:
            if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None
        return run

    def _new(self, id_file: Path, label: str, config: RunConfig) -> str:
        experiment = self._client.get_experiment_by_name("laconic")
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment("laconic")
        run: str = self._client.create_run(experiment_id, run_name=label).info.run_id
        id_file.parent.mkdir(parents=True, exist_ok=True)
        id_file.write_text(f"{run}\n")
        for key, value in flat(config.model_dump(exclude_none=True)).items():
            self._client.log_param(run, key, value)
        return run

    def on_round_end(self, run: Run, record: Record) -> None:
        """Log all numbers of the record."""
        metrics = [
            self._mlflow.entities.Metric(name, value, 0, record["round"]) for name, value in numbers(record).items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self._run:
            self._client.set_terminated(self._run, STATUS[outcome])


def trackers(*, tensorboard: bool, mlflow: bool) -> list[Callback]:
    """Return the callbacks of the selected tools."""
    return [*([TensorBoard()] if tensorboard else []), *([MLflow()] if mlflow else [])]
