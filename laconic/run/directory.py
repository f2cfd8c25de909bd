"""A run on disk: config.toml, metrics.jsonl, model.safetensors, and checkpoint.safetensors or checkpoint.sqlite.

Whatever must be whole is written beside its place and moved there, so a process that is killed at any moment leaves a
directory that can be resumed.
"""

from __future__ import annotations

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
from laconic.run.heat_map import heat_map
from laconic.run.training import Record, Training

# A checkpoint is due when the work since the last one is worth this many times what a checkpoint costs.
CHECKPOINT_SHARE = 20
CHECKPOINT_SECONDS = 1.0
FORMAT = 1
"""The version of the checkpoint format. A file of another version is refused."""


class RunDirectory:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._written = time.perf_counter()
        self._cost = 0.0
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

    def create(self, training: Training, config: str) -> None:
        """Begin a new run; an old one is never overwritten."""
        self.check_new()
        self.path.mkdir(parents=True, exist_ok=True)
        self._tidy()
        write_atomically(self.config, config.encode())
        training.keep_in(self.path)
        if training.database is not None:
            training.database.open(self.database)

    def resume(self, training: Training, config: str) -> list[Record]:
        """Put a training back to the last checkpoint; returns the records up to there."""
        done = 0
        training.keep_in(self.path)
        found = self._load(training)
        if found is not None:
            training.restore(*found)
            done = self.saved = training.server.round
        if done > training.settings.rounds:
            raise ConfigError(f"resume: rounds = {training.settings.rounds}, but '{self.path}' has done {done} already")
        history = [record for record in read_metrics(self.metrics) if record["round"] <= done]
        if [record["round"] for record in history] != list(range(1, done + 1)):
            raise ConfigError(f"'{self.metrics}' does not match the checkpoint of round {done}: it was changed by hand")
        self._tidy()
        write_atomically(self.metrics, b"".join(_line(record) for record in history))
        # More rounds than at first may have been asked for: the config stays the one that gives this model.
        write_atomically(self.config, config.encode())
        if found is not None and training.incarnations:
            # Before any client hears of the new incarnation: the next start must not take the same one.
            self.save_checkpoint(training)
        return history

    def _load(self, training: Training) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if training.database is not None:
            training.database.open(self.database)
            return training.database.load()
        return load_tensors(self.checkpoint) if self.checkpoint.exists() else None

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
        if training.database is not None:
            training.database.save(*training.snapshot())
        else:
            save_tensors(self.checkpoint, *training.snapshot())
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

    def save_similarity(self, similarity: np.ndarray, title: str) -> None:
        """How alike the clients' gradients are: a table, and a picture where pictures can be drawn."""
        lines = (",".join(f"{value:.6f}" for value in row) for row in similarity.tolist())
        write_atomically(self.path / "gradient_similarity.csv", "".join(f"{line}\n" for line in lines).encode())
        picture = heat_map(similarity, title)
        if picture is not None:
            write_atomically(self.path / "gradient_similarity.png", picture)


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
    write_atomically(path, save(plain, {"laconic": json.dumps(numbers), "format": str(FORMAT)}))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The inverse of `save_tensors`."""
    try:
        with safe_open(path, "pt") as file:
            version = file.metadata()["format"]
            if version != str(FORMAT):
                raise DataError(
                    f"'{path}' has checkpoint format {version}; this version of Laconic reads format {FORMAT}"
                )
            numbers = json.loads(file.metadata()["laconic"])
            return {name: file.get_tensor(name) for name in file.keys()}, numbers  # noqa: SIM118 - not a dict
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
