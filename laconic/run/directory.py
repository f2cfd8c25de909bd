"""A run on disk: config.toml, metrics.jsonl, model.safetensors, and checkpoint.safetensors or checkpoint.sqlite.

Files are replaced atomically, so a process that is killed at any moment leaves a directory that can be resumed.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from laconic.core.errors import ConfigError, DataError
from laconic.core.part import section
from laconic.core.state_dict import StateDict, split
from laconic.data.federated import FederatedData
from laconic.run.callbacks import Callback, Outcome, Run
from laconic.run.heat_map import heat_map
from laconic.run.resume import check_fingerprints, check_rounds
from laconic.run.training import Record, Training

CHECKPOINT_RATIO = 20
"""A checkpoint is due when the time since the last one exceeds the time to write one by this factor."""
CHECKPOINT_SECONDS = 1.0
"""The shortest time between two checkpoints."""
FORMAT = 2
"""The version of the checkpoint format. Files of another version are refused."""
SHOWN_CLIENTS = 100
"""The number of clients whose label counts are stored for the report."""


class RunDirectory(Callback):
    """The files of one run, as a callback that writes them during the run.

    Args:
        path: The directory.
        resume: Whether to continue an existing run. If False, the directory must be new or empty.
        every_round: Save a checkpoint before the first round and after every round, instead of only from time to time.
    """

    def __init__(self, path: Path, *, resume: bool = False, every_round: bool = False) -> None:
        self.path, self.every_round = path, every_round
        self._resume = resume
        self._last_save = time.perf_counter()
        self._save_seconds = 0.0
        self._lock: int | None = None
        self.saved = 0
        """The round of the last durable checkpoint."""

    @property
    def config(self) -> Path:
        """The resolved config: running it again gives the same model."""
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        """One line per round."""
        return self.path / "metrics.jsonl"

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / "model.safetensors"

    @property
    def diverged(self) -> Path:
        """An empty file that marks a run whose training diverged."""
        return self.path / "diverged"

    @property
    def label_counts(self) -> Path:
        """The number of examples per class of the first clients."""
        return self.path / "label_counts.json"

    @property
    def checkpoint(self) -> Path:
        """The state to resume from."""
        return self.path / "checkpoint.safetensors"

    @property
    def database(self) -> Path:
        """The state to resume from with `store="disk"`: one file for the checkpoint and the client states."""
        return self.path / "checkpoint.sqlite"

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
        if self.path.exists() and not all(map(_unfinished, self.path.iterdir())):
            raise ConfigError(
                f"out = '{self.path}': exists already; continue it with --resume, or choose another --out"
            )

    def on_run_start(self, run: Run) -> None:
        """Create the directory, or resume from its checkpoint; `run.history` then has the rounds up to the checkpoint."""
        training, config = run.training, run.config.to_toml()
        resumes = self._resume and self.exists()
        if not resumes:
            self.check_new()
            self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if resumes:
            run.history = self.resume(training, config)
        else:
            self.create(training, config)
        if self.every_round and not self.checkpoint.exists():
            self.save_checkpoint(training)
        clients = training.data
        if isinstance(clients, FederatedData) and clients.kind == "classification" and not self.label_counts.exists():
            self.save_label_counts(clients.label_counts()[:SHOWN_CLIENTS])

    def on_round_end(self, run: Run, record: Record) -> None:
        self.append(record)
        if self.every_round or self.checkpoint_due():
            self.save_checkpoint(run.training)

    def on_run_end(self, run: Run, outcome: Outcome) -> None:
        """Save the checkpoint, unless the run ended in the middle of a round, and the model of a finished run."""
        try:
            if outcome == "diverged":
                self.diverged.touch()
            if not run.broken_off:
                self.save_checkpoint(run.training)
            if outcome == "finished":
                self.save_model(run.training)
                self.diverged.unlink(missing_ok=True)
                config, last = run.config, run.training.server.round
                for name, matrix in run.training.figures().items():
                    self.save_matrix(name, matrix, f"{config.dataset}, {config.partition or 'natural'}, round {last}")
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _take_lock(self) -> None:
        """Lock the directory: two processes would overwrite each other's files."""
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"out = '{self.path}': another process is writing to this run") from None
        except OSError:
            pass  # the file system has no locks

    def create(self, training: Training, config: str) -> None:
        """Create the files of a new run. An existing run is never overwritten."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        self._tidy()
        write_atomically(self.config, config.encode())
        training.keep_in(self.path)
        if training.database is not None:
            training.database.open(self.database)

    def resume(self, training: Training, config: str) -> list[Record]:
        """Load the last checkpoint into `training`; returns the records up to it."""
        training.keep_in(self.path)
        state = self._load(training)
        done = 0
        if state is not None:
            check_fingerprints(section(state, "fingerprint"), training.fingerprints())
            training.load_state_dict(state)
            done = self.saved = training.server.round
        check_rounds(training.settings.rounds, done, self.path)
        history = [record for record in read_metrics(self.metrics) if record["round"] <= done]
        if [record["round"] for record in history] != list(range(1, done + 1)):
            raise ConfigError(f"'{self.metrics}' does not match the checkpoint of round {done}: it was changed by hand")
        self._tidy()
        write_atomically(self.metrics, b"".join(_line(record) for record in history))
        # The number of rounds may have changed, and the stored config must reproduce the final model.
        write_atomically(self.config, config.encode())
        if state is not None and training.clients_keep_state:
            # The new incarnation number must be durable before any client receives it, so that no later start reuses it.
            self.save_checkpoint(training)
        return history

    def _load(self, training: Training) -> StateDict | None:
        if training.database is not None:
            training.database.open(self.database)
            checkpoint = training.database.load()
        else:
            checkpoint = load_tensors(self.checkpoint) if self.checkpoint.exists() else None
        return None if checkpoint is None else {**checkpoint[0], **checkpoint[1]}

    def _tidy(self) -> None:
        for leftover in filter(_unfinished, self.path.iterdir()):
            leftover.unlink(missing_ok=True)

    def append(self, record: Record) -> None:
        """Append a record to the metrics file."""
        with self.metrics.open("ab") as file:
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
        with self.metrics.open("ab") as file:
            os.fsync(file.fileno())
        state = split(training.state_dict())
        if training.database is not None:
            training.database.save(*state)
        else:
            save_tensors(self.checkpoint, *state)
        training.saved()
        self.saved = training.server.round
        self._last_save = time.perf_counter()
        self._save_seconds = self._last_save - started

    def save_model(self, training: Training) -> None:
        """Write the trained model's state dict, including frozen parameters, as a safetensors file."""
        numbers = {"sha256": training.model_sha256(), "round": training.server.round}
        save_tensors(self.model, training.trained().state_dict(), numbers)

    def save_label_counts(self, counts: np.ndarray) -> None:
        """Write the number of examples per client and class, for the report."""
        write_atomically(self.label_counts, json.dumps(counts.tolist()).encode())

    def save_matrix(self, name: str, matrix: np.ndarray, title: str) -> None:
        """Write a matrix as CSV, and as a PNG heat map if matplotlib is installed."""
        lines = (",".join(f"{value:.6f}" for value in row) for row in matrix.tolist())
        write_atomically(self.path / f"{name}.csv", "".join(f"{line}\n" for line in lines).encode())
        picture = heat_map(matrix, title)
        if picture is not None:
            write_atomically(self.path / f"{name}.png", picture)


def read_metrics(path: Path) -> list[Record]:
    """The records of a metrics file, up to an incomplete last line."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


def save_tensors(path: Path, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Write tensors and plain values to one safetensors file, atomically."""
    contiguous: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        contiguous[name] = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory, such as a state that is both committed and pending.
        address = contiguous[name].untyped_storage().data_ptr()
        if address in seen:
            contiguous[name] = contiguous[name].clone()
        seen.add(address)
    # A single metadata entry, because safetensors does not order them, and equal checkpoints must be equal files.
    write_atomically(path, save(contiguous, {"laconic": json.dumps({"format": FORMAT, "plain": numbers})}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and plain values that `save_tensors` wrote."""
    try:
        with safe_open(path, "pt") as file:
            content = json.loads(file.metadata()["laconic"])
            version = content.get("format")
            if version != FORMAT:
                raise DataError(
                    f"'{path}' has checkpoint format {version}; this version of Laconic reads format {FORMAT}"
                )
            return {name: file.get_tensor(name) for name in file.keys()}, content["plain"]  # noqa: SIM118 - not a dict
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"'{path}' is damaged: {error}") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, also in a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unfinished(path: Path) -> bool:
    """Whether the file is a leftover of a `write_atomically` that was killed."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def plain(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have, by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    return [plain(entry) for entry in value] if isinstance(value, list) else value


def _line(record: Record) -> bytes:
    return json.dumps(plain(record), allow_nan=False).encode() + b"\n"
