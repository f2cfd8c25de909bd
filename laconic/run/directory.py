"""A run on disk: config.toml, metrics.jsonl, model.safetensors, and checkpoint.safetensors or checkpoint.sqlite.

Whatever must be whole is written beside its place and moved there, so a process that is killed at any moment leaves a
directory that can be resumed.
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

# A checkpoint is due when the work since the last one is worth this many times what a checkpoint costs.
CHECKPOINT_SHARE = 20
CHECKPOINT_SECONDS = 1.0
FORMAT = 2
"""The version of the checkpoint format. A file of another version is refused."""
SHOWN_CLIENTS = 100
"""How many clients' labels a report shows."""


class RunDirectory(Callback):
    """The files of one run. As a callback it writes them while the run goes on.

    Args:
        path: The directory.
        resume: Go on with the run that is there, if there is one; without this only a new directory is allowed.
        every_round: Save a checkpoint before the first round and after every one, and not only when it is worth its time.
    """

    def __init__(self, path: Path, *, resume: bool = False, every_round: bool = False) -> None:
        self.path, self.every_round = path, every_round
        self._resume = resume
        self._written = time.perf_counter()
        self._cost = 0.0
        self._lock: int | None = None
        self.saved = 0
        """The round up to which everything is durable."""

    @property
    def config(self) -> Path:
        """The full resolved config: running it again gives the same model."""
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
        """An empty file, where the run has left the finite numbers."""
        return self.path / "diverged"

    @property
    def label_counts(self) -> Path:
        """Which labels the first clients have."""
        return self.path / "label_counts.json"

    @property
    def checkpoint(self) -> Path:
        """Where to continue."""
        return self.path / "checkpoint.safetensors"

    @property
    def database(self) -> Path:
        """Where to continue, if clients' states are on disk: one file for them and for the checkpoint."""
        return self.path / "checkpoint.sqlite"

    def exists(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def tells(self) -> bool:
        """Whether there is something to show: rounds, or that it diverged in the first."""
        return self.metrics.exists() or self.diverged.exists()

    def check_new(self) -> None:
        """Refuse a place where something is already."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"out = '{self.path}': is a file; a directory is needed")
        if self.path.exists() and (not self.path.is_dir() or any(not _unfinished(p) for p in self.path.iterdir())):
            raise ConfigError(
                f"out = '{self.path}': exists already; continue it with --resume, or choose another --out"
            )

    def on_run_start(self, run: Run) -> None:
        """Start a run, or resume one: `run.history` then has its rounds up to the checkpoint."""
        training, config = run.training, run.config.to_toml()
        begun = self._resume and self.exists()
        if not begun:
            self.check_new()
            self.path.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        if begun:
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
        """Save what is whole: the checkpoint, and the model of a finished run."""
        try:
            if outcome == "diverged":
                self.diverged.touch()
            if not run.broken_off:
                self.save_checkpoint(run.training)
            if outcome == "finished":
                self.save_model(run.training)
                self.diverged.unlink(missing_ok=True)
                for name, value in run.training.figures().items():
                    title = (
                        f"{run.config.dataset}, {run.config.partition or 'natural'}, round {run.training.server.round}"
                    )
                    self.save_matrix(name, value, title)
        finally:
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _take_lock(self) -> None:
        """One process for one run: each of two would overwrite what the other has written."""
        self._lock = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"out = '{self.path}': another process is at work there") from None
        except OSError:
            pass  # a file system that has no locks

    def create(self, training: Training, config: str) -> None:
        """Start a new run; an old one is never overwritten."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        self._tidy()
        write_atomically(self.config, config.encode())
        training.keep_in(self.path)
        if training.database is not None:
            training.database.open(self.database)

    def resume(self, training: Training, config: str) -> list[Record]:
        """Put a training back to the last checkpoint; returns the records up to there."""
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
        # More rounds than at first may have been asked for: the config stays the one that gives this model.
        write_atomically(self.config, config.encode())
        if state is not None and training.clients_keep_state:
            # Before any client hears of the new incarnation: the next start must not take the same one.
            self.save_checkpoint(training)
        return history

    def _load(self, training: Training) -> StateDict | None:
        if training.database is not None:
            training.database.open(self.database)
            found = training.database.load()
        else:
            found = load_tensors(self.checkpoint) if self.checkpoint.exists() else None
        return None if found is None else {**found[0], **found[1]}

    def _tidy(self) -> None:
        for left in filter(_unfinished, self.path.iterdir()):
            left.unlink(missing_ok=True)

    def append(self, record: Record) -> None:
        """Enter a round."""
        with self.metrics.open("ab") as file:
            file.write(_line(record))

    def amend(self, record: Record) -> None:
        """Put a round's record in the place of the one that was entered for it last."""
        lines = self.metrics.read_bytes().splitlines(keepends=True)
        write_atomically(self.metrics, b"".join([*lines[:-1], _line(record)]))

    def checkpoint_due(self) -> bool:
        """Whether enough work would be lost to be worth a checkpoint."""
        return time.perf_counter() - self._written > max(CHECKPOINT_SECONDS, CHECKPOINT_SHARE * self._cost)

    def save_checkpoint(self, training: Training) -> None:
        """Make everything up to now durable."""
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
        self._written = time.perf_counter()
        self._cost = self._written - started

    def save_model(self, training: Training) -> None:
        """The trained model as a state dict, frozen parameters included, for anything that reads safetensors."""
        numbers = {"sha256": training.model_sha256(), "round": training.server.round}
        save_tensors(self.model, training.trained().state_dict(), numbers)

    def save_label_counts(self, counts: np.ndarray) -> None:
        """Which client has how many examples of which class, for the report."""
        write_atomically(self.label_counts, json.dumps(counts.tolist()).encode())

    def save_matrix(self, name: str, matrix: np.ndarray, title: str) -> None:
        """A matrix as a table, and as a picture where pictures can be drawn."""
        lines = (",".join(f"{value:.6f}" for value in row) for row in matrix.tolist())
        write_atomically(self.path / f"{name}.csv", "".join(f"{line}\n" for line in lines).encode())
        picture = heat_map(matrix, title)
        if picture is not None:
            write_atomically(self.path / f"{name}.png", picture)


def read_metrics(path: Path) -> list[Record]:
    """The records of a metrics file; a last line that was cut off in the middle is left out."""
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
    """Tensors and plain numbers in one file, atomically."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain[name] = tensor.detach().cpu().contiguous()
        # The format has no shared memory: a state that a round left as it was is committed and pending at once.
        place = plain[name].untyped_storage().data_ptr()
        if place in seen:
            plain[name] = plain[name].clone()
        seen.add(place)
    # One entry: safetensors writes several in any order, and equal checkpoints are equal files.
    write_atomically(path, save(plain, {"laconic": json.dumps({"format": FORMAT, "plain": numbers})}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_tensors`."""
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
    """The whole file or none of it, even when the power fails."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _unfinished(path: Path) -> bool:
    """Whether a file is what `write_atomically` leaves when it is killed."""
    return path.name.startswith(".") and path.suffix[1:].isdigit()


def plain(value: Any) -> Any:
    """A number that JSON does not have becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def _line(record: Record) -> bytes:
    return json.dumps(plain(record), allow_nan=False).encode() + b"\n"
