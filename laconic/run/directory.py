"""A run on disk: config.toml, metrics.jsonl, model.safetensors, and the files of `laconic.run.checkpoints`.

Files are replaced atomically, so a process that is killed at any moment leaves a directory that can be resumed.
"""

from __future__ import annotations

import csv
import fcntl
import io
import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from laconic.core.errors import ConfigError, DataError
from laconic.core.state_dict import checksum, section
from laconic.data.federated import FederatedData
from laconic.run.callbacks import Callback, Outcome, Run
from laconic.run.checkpoints import Checkpoints
from laconic.run.config import RunConfig, stored_config
from laconic.run.files import check_regular, is_unfinished, load_tensors, naming, write_atomically
from laconic.run.heat_map import heat_map
from laconic.run.records import Record
from laconic.run.resume import check_fingerprints, check_rounds
from laconic.run.training import Training

PATIENCE = 60.0
"""Seconds that a server started by Flower waits for a stopped one, which ends with its round."""
CHECKPOINT_RATIO = 20
"""A checkpoint is due when the time since the last one exceeds the time to write one by this factor."""
CHECKPOINT_SECONDS = 1.0
"""The shortest time between two checkpoints."""
SHOWN_CLIENTS = 100
"""The number of clients whose label counts are stored for the report, and of names of clients and of classes."""
LONGEST_NAME = 100
"""The number of characters of such a name that are stored."""
_SEAL = b"# checksum: "


class RunDirectory(Callback):
    """The files of one run, as a callback that writes them during the run.

    Args:
        path: The directory.
        resume: Whether to continue an existing run. If False, the directory must be new or empty.
        every_round: Save a checkpoint before the first round and after every round, instead of only from time to time.
        from_round: Continue from the checkpoint of this round instead of the last one. Later rounds are discarded.
    """

    def __init__(
        self, path: Path, *, resume: bool = False, every_round: bool = False, from_round: int | None = None
    ) -> None:
        self.path, self.every_round = path, every_round
        self.config = path / "config.toml"
        """The resolved config: running it again gives the same model."""
        self.metrics = path / "metrics.jsonl"
        """One line per round."""
        self.model = path / "model.safetensors"
        """The trained model."""
        self.diverged = path / "diverged"
        """An empty file that marks a run whose training diverged."""
        self.label_counts = path / "label_counts.json"
        """The number of examples per class of the first clients."""
        self.names = path / "names.json"
        """The names of the first clients and of the classes, if the data has names."""
        self.client_values = path / "client_metrics.csv"
        """The metrics of each client at the last evaluation, with `client_eval`."""
        self._resume, self._from_round = resume, from_round
        # A server that saves every round is started by Flower.
        self.checkpoints = Checkpoints(path, "from-round=" if every_round else "--resume --from-round ")
        self.checkpoint = self.checkpoints.file
        """The state to resume from, unless `store="disk"`."""
        self._last_save = self._save_seconds = 0.0
        self._lock: int | None = None

    @property
    def saved(self) -> int:
        """The round of the last durable checkpoint."""
        return self.checkpoints.last or 0

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def has_results(self) -> bool:
        """Whether there is something to report: at least one round, or a run that diverged in its first round."""
        return self.metrics.exists() or self.diverged.exists()

    def check_new(self) -> None:
        """Refuse a path that is a file or a directory with content."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"out = '{self.path}': is a file; a directory is needed")
        if self.path.exists() and not all(map(is_unfinished, self.path.iterdir())):
            raise ConfigError(
                f"out = '{self.path}': exists already; continue it with --resume (in Python: resume=True), or choose "
                "another directory"
            )

    def on_run_start(self, run: Run) -> None:
        """Create the directory, or resume from its checkpoint; `run.history` then has the rounds up to the checkpoint."""
        training, config = run.training, run.config.to_toml()
        self._last_save = time.perf_counter()
        resumes = self._resume and self.exists()
        if not resumes:
            if self._from_round is not None:
                raise ConfigError(f"from_round = {self._from_round}: there is no run in '{self.path}'")
            self.check_new()
            self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if resumes:
            run.history = self.resume(training, config)
        else:
            self.create(training, config)
        if self.every_round and self.checkpoints.last is None:
            self.save_checkpoint(training)
        clients = training.data
        if isinstance(clients, FederatedData) and clients.kind == "classification" and not self.label_counts.exists():
            self.save_label_counts(clients.label_counts()[:SHOWN_CLIENTS])
            self.save_names({"clients": clients.client_names or (), "classes": clients.labels or ()})

    def on_round_end(self, run: Run, record: Record) -> None:
        self.append(record)
        if self.every_round or self.checkpoint_due():
            self.save_checkpoint(run.training)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        """Save the checkpoint, unless the run ended in the middle of a round, and the model of a finished run."""
        try:
            if outcome == "diverged":
                self.diverged.touch()
            if not run.broken_off and self.checkpoints.last != run.training.server.round:
                self.save_checkpoint(run.training)
            if outcome == "finished":
                run.training.save_model(self.model)
                self.diverged.unlink(missing_ok=True)
                config, last = run.config, run.training.server.round
                for name, matrix in run.training.figures().items():
                    self.save_matrix(name, matrix, f"{config.dataset}, {config.partition or 'natural'}, round {last}")
                if values := run.training.client_values():
                    self.save_client_values(values, getattr(run.training.data, "client_names", None))
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _take_lock(self) -> None:
        """Lock the directory: two processes would overwrite each other's files."""
        self._lock = os.open(self.path, os.O_RDONLY)
        patience = time.monotonic() + (PATIENCE if self.every_round else 0)
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > patience:
                    raise ConfigError(f"out = '{self.path}': another process is writing to this run") from None
                time.sleep(0.2)
            except OSError:
                return  # the file system has no locks

    def create(self, training: Training, config: str) -> None:
        """Create the files of a new run. An existing run is never overwritten."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        self._tidy()
        self._write_config(config)
        training.keep_in(self.path)
        if training.database is not None:
            training.database.open(self.checkpoints.database)

    def resume(self, training: Training, config: str) -> list[Record]:
        """Load the last checkpoint into `training`, or that of `from_round`; returns the records up to it."""
        training.keep_in(self.path)
        state = self.checkpoints.load(training, self._from_round)
        done = 0
        if state is not None:
            check_fingerprints(section(state, "fingerprint"), training.fingerprints())
            training.load_state_dict(state)
            done = training.server.round
        check_rounds(training.settings.rounds, done, self.path)
        history = read_metrics(self.metrics, done)
        if [record["round"] for record in history] != list(range(1, done + 1)):
            raise ConfigError(f"'{self.metrics}' does not match the checkpoint of round {done}: it was changed by hand")
        self._tidy()
        if state is not None:
            self.checkpoints.adopt(training, done)
        if self._from_round is not None:
            self.model.unlink(missing_ok=True)
        write_atomically(self.metrics, b"".join(_line(record) for record in history))
        # The number of rounds may have changed, and the stored config must reproduce the final model.
        self._write_config(config)
        if state is not None and training.clients_keep_state:
            # The new incarnation number must be durable before any client receives it, so that no later start reuses it.
            self.save_checkpoint(training)
        return history

    def _write_config(self, config: str) -> None:
        write_atomically(self.config, config.encode() + _seal(config.encode()))

    def check_config(self) -> None:
        """Refuse to resume with a config that has changed since the run was started."""
        content = self.config.read_bytes()
        text = content[: content.rfind(_SEAL)]
        if content != text + _seal(text):
            raise DataError(
                f"'{self.config}' was changed or is damaged; use it for a new run: laconic run {self.config}"
            )

    def stored_config(self) -> RunConfig:
        """The config that the run was started with. Code that it names is not loaded."""
        self.check_config()
        return stored_config(self.config)

    def _tidy(self) -> None:
        for leftover in filter(is_unfinished, self.path.iterdir()):
            leftover.unlink(missing_ok=True)

    def append(self, record: Record) -> None:
        """Append a record to the metrics file."""
        with naming(self.metrics), self.metrics.open("ab") as file:
            file.write(_line(record))

    def amend(self, record: Record) -> None:
        """Replace the last record of the metrics file."""
        lines = self.metrics.read_bytes().splitlines(keepends=True)
        write_atomically(self.metrics, b"".join([*lines[:-1], _line(record)]))

    def checkpoint_due(self) -> bool:
        """Whether enough time has passed since the last checkpoint, relative to the time that it takes to write one."""
        return time.perf_counter() - self._last_save > max(CHECKPOINT_SECONDS, CHECKPOINT_RATIO * self._save_seconds)

    def save_checkpoint(self, training: Training) -> None:
        """Write a checkpoint to disk, and flush the metrics file."""
        started = time.perf_counter()
        with naming(self.metrics), self.metrics.open("ab") as file:
            os.fsync(file.fileno())
        self.checkpoints.save(training)
        training.saved()
        self._last_save = time.perf_counter()
        self._save_seconds = self._last_save - started

    def save_label_counts(self, counts: np.ndarray) -> None:
        """Write the number of examples per client and class, for the report."""
        write_atomically(self.label_counts, json.dumps(counts.tolist()).encode())

    def save_names(self, names: dict[str, Sequence[str]]) -> None:
        """Write the names of clients and classes for the report, if there are any."""
        if any(names.values()):
            shown = {key: [name[:LONGEST_NAME] for name in each[:SHOWN_CLIENTS]] for key, each in names.items()}
            # The name of a file may have bytes that are not UTF-8; Python reads them as characters without an encoding.
            write_atomically(self.names, json.dumps(shown, ensure_ascii=False).encode(errors="backslashreplace"))

    def save_client_values(self, values: dict[str, list[float]], names: Sequence[str] | None) -> None:
        """Write the metrics of each client as CSV: number, name if clients have names, and metrics."""
        columns = {name: [f"{value:.10g}" for value in column] for name, column in values.items()}
        if names is not None:
            clients = columns.pop("client")
            columns = {"client": clients, "name": [names[int(client)] for client in clients]} | columns
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
        write_atomically(self.client_values, table.getvalue().encode(errors="backslashreplace"))

    def save_matrix(self, name: str, matrix: np.ndarray, title: str) -> None:
        """Write a matrix as CSV, and as a PNG heat map if matplotlib is installed."""
        lines = (",".join(f"{value:.6f}" for value in row) for row in matrix.tolist())
        write_atomically(self.path / f"{name}.csv", "".join(f"{line}\n" for line in lines).encode())
        picture = heat_map(matrix, title)
        if picture is not None:
            write_atomically(self.path / f"{name}.png", picture)


def load_model(path: str | Path) -> dict[str, Tensor]:
    """The state dict of a trained model. A file that has changed since it was written raises `DataError`.

    Args:
        path: A run directory, or its `model.safetensors`, which may have been moved.
    """
    path = Path(path)
    if path.is_dir():
        path = RunDirectory(path).model
    if not path.exists():
        raise DataError(f"'{path}' is missing: a run writes it at its end")
    tensors, numbers = load_tensors(path)
    if "sha256" not in numbers:
        raise DataError(f"'{path}' is not a model, but a checkpoint")
    return tensors


def read_metrics(path: Path, rounds: int | None = None) -> list[Record]:
    """The records of a metrics file, up to an incomplete last line, or those of the first `rounds` rounds."""
    if not path.exists():
        return []
    check_regular(path)
    lines = path.read_bytes().splitlines(keepends=True)
    records: list[Record] = []
    for number, line in enumerate(lines[:rounds], 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isinstance(record.get("round"), int):
            records.append(record)
        elif number < len(lines) or line.endswith(b"\n"):
            raise DataError(f"'{path}' is damaged: line {number} is not the record of a round")
    return records


def _seal(config: bytes) -> bytes:
    return _SEAL + b"%016x\n" % checksum(config)


def plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def _line(record: Record) -> bytes:
    return json.dumps(plain(record), allow_nan=False).encode() + b"\n"
