"""The checkpoints of a run: the last one, and earlier ones to return to after a round that turned out to be poisoned.

Client states in memory are part of the checkpoint, `checkpoint.safetensors`, and the two checkpoints before it are in
`previous/`. With `store="disk"` states and checkpoint are one file, `checkpoint.sqlite`, which also has the states of the
checkpoint before.
"""

from __future__ import annotations

import os
from pathlib import Path

from laconic.core.errors import ConfigError, DataError
from laconic.core.state_dict import StateDict, split
from laconic.run.files import SECRET, load_tensors, naming, save_tensors, write_atomically
from laconic.run.training import Training

KEPT = 2
"""The number of earlier checkpoints in `previous/`."""
UNKNOWN_RESTARTS = 4096
"""More restarts of a server than there can have been since a checkpoint, if the last checkpoint cannot be read."""


class Checkpoints:
    """The checkpoints in a run directory."""

    def __init__(self, folder: Path, spelling: str) -> None:
        self.file = folder / "checkpoint.safetensors"
        """The last checkpoint, unless `store="disk"`."""
        self.database = folder / "checkpoint.sqlite"
        """The last checkpoint and the client states with `store="disk"`."""
        self.previous = folder / "previous"
        self._spelling = spelling
        """How to ask for an earlier checkpoint."""
        self._loaded = self.file
        self.last: int | None = None
        """The round of the last checkpoint; None if there is none yet."""

    def save(self, training: Training) -> None:
        """Write the training's state durably. The checkpoint before becomes an earlier one."""
        done = training.server.round
        tensors, plain = split(training.state_dict())
        if training.database is not None:
            training.database.save(tensors, plain, done)
        else:
            if self.last is not None and self.last != done:
                self._set_aside(self.last)
            save_tensors(self.file, tensors, plain, SECRET)
            self._remove_earlier(done)
        self.last = done

    def _set_aside(self, round: int) -> None:
        """Keep the last checkpoint in `previous/` as well, before it is replaced."""
        kept = self.previous / f"round-{round}.safetensors"
        with naming(kept):
            self.previous.mkdir(exist_ok=True)
            kept.unlink(missing_ok=True)
            try:
                os.link(self.file, kept)
            except OSError:  # the file system has no links
                write_atomically(kept, self.file.read_bytes(), SECRET)

    def earlier(self) -> dict[int, Path]:
        """The files in `previous/` by round, the latest first."""
        files = {path.stem.removeprefix("round-"): path for path in self.previous.glob("round-*.safetensors")}
        return {int(round): files[round] for round in sorted(filter(str.isdecimal, files), key=int, reverse=True)}

    def _remove_earlier(self, last: int) -> None:
        """Remove the files in `previous/` that are not among the `KEPT` checkpoints before round `last`."""
        earlier = self.earlier()
        kept = [round for round in earlier if round < last][:KEPT]
        for round, path in earlier.items():
            if round not in kept:
                path.unlink(missing_ok=True)

    def load(self, training: Training, from_round: int | None) -> StateDict | None:
        """The state of the last checkpoint, or of the one of `from_round`; None if there is none yet.

        A database returns to that round, but does not commit it before `adopt`.
        """
        try:
            self._check_present(training)
            if training.database is not None:
                training.database.open(self.database)
            if from_round is None:
                return self._read(training, None)
            incarnation = self._last_incarnation(training)
            state = self._read(training, from_round)
        except DataError as error:
            kept = [round for round in self.rounds(training) if round != from_round and self._readable(training, round)]
            hint = f"; continue with another checkpoint: {self._spelling}{kept[0]}" if kept else ""
            raise DataError(f"{error}{hint}") from error
        if state is not None:
            # A client compares this number with that of the last instruction, which may be of a later round.
            state["incarnation"] = state["incarnation"] + UNKNOWN_RESTARTS if incarnation is None else incarnation
        return state

    def _check_present(self, training: Training) -> None:
        """Refuse to begin again if a database, or the file of a finished run, has gone."""
        path, folder = self.file if training.database is None else self.database, self.file.parent
        known = "model.safetensors" if training.database is None else "metrics.jsonl"
        lost = not path.exists() or not path.stat().st_size
        if lost and (folder / known).exists() and not self.earlier():
            raise DataError(f"'{path}' is missing or empty; to begin again, use another directory")

    def rounds(self, training: Training) -> list[int]:
        """The rounds of all checkpoints, the latest first, unless they cannot be read."""
        if training.database is not None:
            return training.database.marks[::-1]
        return [*([] if (last := self._round_of(self.file)) is None else [last]), *self.earlier()]

    def _read(self, training: Training, from_round: int | None) -> StateDict | None:
        if from_round is not None and from_round not in self.rounds(training):
            kept = " and ".join(map(str, self.rounds(training))) or "none"
            raise ConfigError(f"from_round = {from_round}: no such checkpoint; there are those of rounds: {kept}")
        if training.database is not None:
            if from_round is not None:
                training.database.restore(from_round)
            checkpoint = training.database.load()
        else:
            self._loaded = self.file if from_round is None else self.earlier().get(from_round, self.file)
            if not self._loaded.exists() and self.earlier():
                raise DataError(f"'{self._loaded}' is missing")
            checkpoint = load_tensors(self._loaded) if self._loaded.exists() else None
        if checkpoint is None:
            return None
        state = {**checkpoint[0], **checkpoint[1]}
        if not {"server/round", "incarnation"} <= state.keys():
            raise DataError(f"'{self.database if training.database is not None else self._loaded}' is not a checkpoint")
        return state

    def _readable(self, training: Training, round: int) -> bool:
        try:
            return self._read(training, round) is not None
        except DataError:
            return False

    def _round_of(self, path: Path) -> int | None:
        try:
            return int(load_tensors(path)[0]["server/round"])
        except (DataError, KeyError):
            return None

    def _last_incarnation(self, training: Training) -> int | None:
        """The incarnation number of the last checkpoint; None if it cannot be read."""
        try:
            state = self._read(training, None)
        except DataError:
            return None
        return None if state is None else state["incarnation"]

    def adopt(self, training: Training, round: int) -> None:
        """Make the checkpoint that was loaded, of that round, the last one. Later ones are removed."""
        if training.database is not None:
            training.database.commit()
        elif self._loaded != self.file:
            write_atomically(self.file, self._loaded.read_bytes(), SECRET)
        self._remove_earlier(round)
        self.last = round
