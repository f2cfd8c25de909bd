"""The server's copy of each client's link state.

Small tensors, such as the last packet of a lazy client, stay in memory. Vectors of the model's size, such as the mirror of a
mirrored downlink, are rows of anonymous temporary files that are mapped into memory: they cost disk space, and the system
writes them there when it needs the memory. With `store = "disk"` all link states are in the database.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.federation.database import Database

_FILE_BYTES = 1 << 26
"""The size of a file of rows; larger if a single row is larger. A process can map only some ten thousand files."""
_ALIGNMENT = 64


class MappedRows:
    """Vectors of one size in temporary files. Reading a row does not copy it."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size, self._dtype = size, torch.empty(0, dtype=dtype).numpy().dtype
        self._stride = -(-size * self._dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._rows_per_file = max(1, _FILE_BYTES // max(1, self._stride))
        self._maps: list[mmap.mmap] = []
        self._free: list[int] = []

    def new(self) -> int:
        """The number of a row that is not in use."""
        if not self._free:
            first = len(self._maps) * self._rows_per_file
            self._maps.append(_mapped_file(max(1, self._rows_per_file * self._stride)))
            self._free = list(range(first + self._rows_per_file - 1, first - 1, -1))
        return self._free.pop()

    def free(self, row: int) -> None:
        """Give a row back. Its content stays until the row is written again."""
        self._free.append(row)

    def __getitem__(self, row: int) -> Tensor:
        """A row as a tensor that shares its memory."""
        file, number = divmod(row, self._rows_per_file)
        return torch.from_numpy(np.frombuffer(self._maps[file], self._dtype, self._size, number * self._stride))

    def __setitem__(self, row: int, vector: Tensor) -> None:
        target = self[row]
        if target.data_ptr() != vector.data_ptr():
            target.copy_(vector)


def _mapped_file(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile(prefix="laconic-links-") as file:
        # Reserves the space: writing to a mapped file on a full disk would kill the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


class ClientLinkState:
    """Link states by client. The vectors of a state share the memory of the rows: writing to them changes the state."""

    def __init__(self, layout: Layout) -> None:
        self._size = layout.size
        self._vectors = MappedRows(layout.size, layout.dtype)
        self._small: dict[int, State] = {}
        self._rows: dict[int, dict[str, int]] = {}
        """The rows of each client's vectors, by name."""

    def __contains__(self, client: int) -> bool:
        return client in self._small

    def __iter__(self) -> Iterator[int]:
        return iter(self._small)

    def __getitem__(self, client: int) -> State:
        vectors = {name: self._vectors[row] for name, row in self._rows.get(client, {}).items()}
        return self._small[client] | vectors

    def get(self, client: int, default: State | None = None) -> State:
        """The state of a client, or `default` (empty) if there is none."""
        return self[client] if client in self._small else default or {}

    def __setitem__(self, client: int, state: State) -> None:
        vectors = {name: value for name, value in state.items() if self._is_vector(value)}
        before = self._rows.pop(client, {})
        for name in before.keys() - vectors.keys():
            self._vectors.free(before[name])
        rows = {name: before[name] if name in before else self._vectors.new() for name in vectors}
        for name, row in rows.items():
            self._vectors[row] = vectors[name]
        if rows:
            self._rows[client] = rows
        self._small[client] = {name: value for name, value in state.items() if name not in vectors}

    def forget(self, client: int) -> None:
        """Delete a client's state."""
        self._small.pop(client, None)
        for row in self._rows.pop(client, {}).values():
            self._vectors.free(row)

    def state_dict(self) -> State:
        """All states as a flat dict of tensors. Vectors are copied."""
        return {
            f"{client}/{name}": value.clone() if self._is_vector(value) else value
            for client in self._small
            for name, value in self[client].items()
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        for client in list(self._small):
            self.forget(client)
        states: dict[int, State] = {}
        for key, value in state.items():
            client_id, name = key.split("/", 1)
            states.setdefault(int(client_id), {})[name] = value
        for client, client_state in states.items():
            self[client] = client_state

    def _is_vector(self, value: Tensor) -> bool:
        return value.is_floating_point() and value.shape == (self._size,)


class DiskClientLinkState:
    """Link states by client in a database. Every commit of the database includes them.

    As in `ClientLinkState`, writing to a vector changes the state of one client only: the database's cache keeps the tensors
    that it is given, so they are copied. Clients often start with one and the same vector, the initial model.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def __contains__(self, client: int) -> bool:
        return bool(self[client])

    def __iter__(self) -> Iterator[int]:
        return self.database.clients("peer")

    def __getitem__(self, client: int) -> State:
        return self.database.get(("peer", client, 0))

    def get(self, client: int, default: State | None = None) -> State:
        """The state of a client, or `default` (empty) if there is none."""
        return self[client] or default or {}

    def __setitem__(self, client: int, state: State) -> None:
        before = self[client]
        own = {name: value if value is before.get(name) else value.clone() for name, value in state.items()}
        self.database.put(("peer", client, 0), own)

    def forget(self, client: int) -> None:
        """Delete a client's state."""
        self.database.drop(("peer", client, 0))

    def state_dict(self) -> State:
        """Empty: the database has the states."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Does nothing: opening the database rolls it back to the last checkpoint."""
