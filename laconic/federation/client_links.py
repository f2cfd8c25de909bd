"""The server's copy of each client's link state.

Small tensors, such as the last packet of a lazy client, stay in memory. Vectors of the model's size, such as the mirror of a
mirrored downlink, are rows of an anonymous temporary file: they cost disk space, not memory. With `store = "disk"` all link
states are in the database.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

import numpy as np
import torch
from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.federation.database import Database


class ClientLinkState:
    """Link states by client. Reading a state returns a copy of its vectors."""

    def __init__(self, layout: Layout) -> None:
        self._size = layout.size
        self._dtype = torch.empty(0, dtype=layout.dtype).numpy().dtype
        self._small: dict[int, State] = {}
        self._rows: dict[int, dict[str, int]] = {}
        """The rows of each client's vectors, by name."""
        self._free: list[int] = []
        self._row_count = 0
        self._file: IO[bytes] | None = None

    def __contains__(self, client: int) -> bool:
        return client in self._small

    def __iter__(self) -> Iterator[int]:
        return iter(self._small)

    def __getitem__(self, client: int) -> State:
        vectors = {name: self._read(row) for name, row in self._rows.get(client, {}).items()}
        return self._small[client] | vectors

    def get(self, client: int, default: State | None = None) -> State:
        """The state of a client, or `default` (empty) if there is none."""
        return self[client] if client in self._small else default or {}

    def __setitem__(self, client: int, state: State) -> None:
        vectors = {name: value for name, value in state.items() if self._is_vector(value)}
        before = self._rows.pop(client, {})
        self._free += [row for name, row in before.items() if name not in vectors]
        rows = {name: before[name] if name in before else self._new_row() for name in vectors}
        for name, row in rows.items():
            self._write(row, vectors[name])
        if rows:
            self._rows[client] = rows
        self._small[client] = {name: value for name, value in state.items() if name not in vectors}

    def forget(self, client: int) -> None:
        """Delete a client's state."""
        self._small.pop(client, None)
        self._free += self._rows.pop(client, {}).values()

    def state_dict(self) -> State:
        """All states as a flat dict of tensors."""
        return {f"{client}/{name}": value for client in self._small for name, value in self[client].items()}

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

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._row_count += 1
        return self._row_count - 1

    def _read(self, row: int) -> Tensor:
        assert self._file is not None
        self._file.seek(row * self._size * self._dtype.itemsize)
        content = bytearray(self._file.read(self._size * self._dtype.itemsize))
        return torch.from_numpy(np.frombuffer(content, dtype=self._dtype))

    def _write(self, row: int, vector: Tensor) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="laconic-peers-")  # noqa: SIM115 - lives as long as the server
        self._file.seek(row * self._size * self._dtype.itemsize)
        self._file.write(vector.detach().cpu().numpy().astype(self._dtype, copy=False).tobytes())


class DiskClientLinkState:
    """Link states by client in a database. Every commit of the database includes them."""

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
        self.database.put(("peer", client, 0), state)

    def forget(self, client: int) -> None:
        """Delete a client's state."""
        self.database.drop(("peer", client, 0))

    def state_dict(self) -> State:
        """Empty: the database has the states."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Does nothing: opening the database rolls it back to the last checkpoint."""
