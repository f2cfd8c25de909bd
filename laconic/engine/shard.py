"""Workers, and the worker side of the Ray engine: a shard of the clients, with their data and states.

All changes of one call to the shard's store are one transaction, committed before the replies leave. If a worker is killed,
each call has either been committed or left no trace. A new worker continues from the same store.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from laconic.core.errors import ConfigError
from laconic.engine.inline import ClientSpec
from laconic.federation.database import SHARD, Database
from laconic.federation.disk_store import DiskStore
from laconic.federation.messages import Instruction, Reply
from laconic.federation.store import ClientStore

_SUFFIXES = ("", "-wal", "-shm", "-journal")
"""The suffixes of SQLite's files."""


class Worker:
    """Runs clients in a process of its own, with the code of the inline engine."""

    def __init__(self, spec: ClientSpec, store: ClientStore, *, threads: int, operator_threads: int) -> None:
        # A user's own training loop may use as many torch threads as without workers.
        torch.set_num_threads(operator_threads)
        self._engine = spec.engine(store, threads)
        assert spec.prepared.batch is not None
        self._engine.warm_up(spec.prepared.batch)

    def run(self, instructions: Sequence[Instruction]) -> list[Reply]:
        """Run instructions and return the replies."""
        return list(self._engine.run(instructions))


class Shard(Worker):
    """A shard of the clients in one run, independent of Ray. The actor in `ray_actors.py` has one for each of its runs.

    It begins with the states in the file at `path`, or with none if `fresh`. With `restore` the states first return to the
    checkpoint of that round. A store without that checkpoint stays as it is; its clients then find that the server is
    behind, and start over.
    """

    def __init__(
        self,
        spec: ClientSpec,
        path: Path,
        *,
        threads: int,
        operator_threads: int,
        cache: int,
        fresh: bool,
        restore: int | None = None,
    ) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"ray.folder = '{path.parent}': {error.strerror}; choose another") from None
        self._database = Database(cache, SHARD)
        self._database.open(path)
        if fresh:
            # Clear the file instead of deleting it: a worker of an earlier run may still have it open.
            self._database.clear()
        elif restore is not None and restore in self._database.marks:
            self._database.restore(restore)
            self._database.commit()
        super().__init__(spec, DiskStore(self._database), threads=threads, operator_threads=operator_threads)

    def run(self, instructions: Sequence[Instruction]) -> list[Reply]:
        """Run instructions, commit the clients' new states, and return the replies."""
        try:
            replies = super().run(instructions)
            self._database.commit()
        except BaseException:
            self._database.rollback()
            raise
        return replies

    def flush(self, round: int) -> None:
        """Make all states survive a power failure, as part of the checkpoint of that round."""
        self._database.flush(round)

    def close(self, remove: bool) -> None:
        """End the run, and delete the store if `remove`."""
        self._engine.close()
        self._database.close()
        if remove:
            for suffix in _SUFFIXES:
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            with suppress(OSError):  # another worker may still use the folder, or have deleted it
                self._path.parent.rmdir()
