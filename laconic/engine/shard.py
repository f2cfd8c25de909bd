"""A worker's side of the Ray engine: a shard of the clients, with their data and their states.

What a call changes in the shard's store is one transaction, committed before the replies leave. A worker that is killed has
either done a call's work or never heard of it; the next one on the same store goes on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from laconic.core.errors import ConfigError
from laconic.engine.client_spec import ClientSpec
from laconic.federation.database import SHARD, Database
from laconic.federation.disk_store import DiskStore
from laconic.federation.messages import Instruction, Reply

_BESIDE = ("", "-wal", "-shm", "-journal")
"""What SQLite puts beside a file."""


class Shard:
    """Plain calls, and nothing of Ray's: `engine/ray_engine.py` makes it an actor, which may serve one run after another."""

    def open(
        self,
        spec: ClientSpec,
        path: Path,
        *,
        threads: int,
        operator_threads: int,
        cache: int,
        fresh: bool,
    ) -> None:
        """Start with the states in the file at `path`; with `fresh`, with none."""
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"ray.folder = '{path.parent}': {error.strerror}; choose another") from None
        self._database = Database(cache, SHARD)
        self._database.open(path)
        if fresh:
            # Not by removing the file: a worker of an earlier run may still have it.
            self._database.clear()
        # A training loop of a person's own runs with all the operator threads that it would have without workers.
        torch.set_num_threads(operator_threads)
        self._engine = spec.engine(DiskStore(self._database), threads)
        assert spec.prepared.batch is not None
        self._engine.warm_up(spec.prepared.batch)

    def run(self, instructions: Sequence[Instruction]) -> list[Reply]:
        """The replies of some of its clients, whose new states are in the store by then."""
        try:
            replies = list(self._engine.run(instructions))
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise
        return replies

    def flush(self) -> None:
        """Let all that was answered up to now survive a power cut, too."""
        self._database.flush()

    def close(self, remove: bool) -> None:
        """End this run, and leave nothing behind if nobody will come back."""
        self._engine.close()
        self._database.close()
        del self._engine, self._database
        if remove:
            self._remove()
            with suppress(OSError):  # others may still be there, or faster
                self._path.parent.rmdir()

    def _remove(self) -> None:
        for suffix in _BESIDE:
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
