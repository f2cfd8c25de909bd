"""Callbacks that log runs to TensorBoard, MLflow, and Weights & Biases; callbacks by the command line's options."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints
from uuid import uuid4

from laconic.core.errors import ConfigError, missing_extra
from laconic.core.spelling import convert, parse
from laconic.run.callbacks import BestSoFar, Callback, EarlyStopping, Outcome, Run, SaveBest
from laconic.run.config import RunConfig
from laconic.run.records import Record
from laconic.run.settings import flat


def numbers(record: Record) -> dict[str, float]:
    """Return the numeric entries of a record, except the round."""
    return {key: float(value) for key, value in record.items() if isinstance(value, int | float) and key != "round"}


def _extra(tool: str, module: str) -> Any:
    """Import the module of an optional tool."""
    try:
        return import_module(module)
    except ImportError:
        raise missing_extra(f"{tool} is not installed", tool.lower()) from None


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


class WandB(Callback):
    """Logs the run to Weights & Biases. With `mode="offline"`, or WANDB_MODE=offline, `wandb sync` uploads it later.

    Args:
        project: The project.
        directory: Stores the files and the run's id, so that a resumed run continues it. Defaults to the run directory.
        options: Other arguments of `wandb.init`, such as mode, entity or tags.
    """

    def __init__(self, project: str = "laconic", directory: str | Path | None = None, **options: Any) -> None:
        self._wandb = _extra("WandB", "wandb")
        self._given = None if directory is None else Path(directory)
        self._options = {"project": project, **options}
        self._run: Any = None

    def on_run_start(self, run: Run) -> None:
        """Start the run of Weights & Biases, or continue it."""
        self._run = None
        directory = _directory("WandB", self._given, run)
        directory.mkdir(parents=True, exist_ok=True)
        id_file = directory / "wandb_run"
        if not id_file.exists():
            id_file.write_text(f"{uuid4().hex}\n")
        own = {"dir": str(directory), "id": id_file.read_text().strip(), "resume": "allow", "name": run.label}
        config = flat(run.config.model_dump(exclude_none=True))
        try:
            self._run = self._wandb.init(config=config, **own | self._options)
        except self._wandb.Error as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"WandB: {line}; log in with `wandb login`, or set WANDB_MODE=offline") from None

    def on_round_end(self, run: Run, record: Record) -> None:
        """Log all numbers of the record."""
        self._run.log(numbers(record), step=record["round"])

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if outcome == "finished" else 1)


def chosen_callbacks(
    *,
    early_stopping: str | None = None,
    save_best: str | None = None,
    tensorboard: bool = False,
    mlflow: bool = False,
    wandb: bool = False,
) -> list[Callback]:
    """The callbacks that options of the command line select."""
    spelled = {EarlyStopping: early_stopping, SaveBest: save_best}
    tools: dict[Callable[[], Callback], bool] = {TensorBoard: tensorboard, MLflow: mlflow, WandB: wandb}
    named = [_spelled(callback, text) for callback, text in spelled.items() if text is not None]
    return [*named, *(tool() for tool, wanted in tools.items() if wanted)]


def _spelled(callback: type[BestSoFar], text: str) -> Callback:
    """A callback from text such as `accuracy:patience=3`: a metric, and arguments by name."""
    kinds = get_type_hints(callback.__init__)
    del kinds["return"]
    try:
        metric, positional, keywords = parse(text)
        if positional or "metric" in keywords:
            raise ValueError("arguments need names")
        for key in keywords:
            if key not in kinds:
                raise ValueError(f"'{key}' is not an argument")
        return callback(metric, **{key: convert(value, kinds[key]) for key, value in keywords.items()})
    except ValueError as error:
        allowed = ", ".join(f"{key}=…" for key in kinds if key != "metric")
        raise ConfigError(f"{callback.__name__}: '{text}': {error}; write METRIC:{allowed}") from None
