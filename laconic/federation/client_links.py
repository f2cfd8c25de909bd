"""What the server keeps of each client's links, beyond 16 bytes (design rule 7).

The last packet of a lazy client is small and stays in memory. The mirror of a mirrored one is a whole model, so vectors as
long as the model lie in a file without a name, a row for every client that was ever heard: they cost disk, not memory.
Where clients' states are in a database, all of it is there.
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
    """States by client; what is read is a copy."""

    def __init__(self, layout: Layout) -> None:
        self._size = layout.size
        self._kind = torch.empty(0, dtype=layout.dtype).numpy().dtype
        self._small: dict[int, State] = {}
        self._rows: dict[int, dict[str, int]] = {}
        """Of each client, the rows of its vectors by name."""
        self._free: list[int] = []
        self._used = 0
        self._file: IO[bytes] | None = None

    def __contains__(self, client: int) -> bool:
        return client in self._small

    def __iter__(self) -> Iterator[int]:
        return iter(self._small)

    def __getitem__(self, client: int) -> State:
        vectors = {name: self._read(row) for name, row in self._rows.get(client, {}).items()}
        return self._small[client] | vectors

    def get(self, client: int, default: State | None = None) -> State:
        """What is kept of a client; nothing of one that is not known."""
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
        """Keep nothing of a client any more."""
        self._small.pop(client, None)
        self._free += self._rows.pop(client, {}).values()

    def state_dict(self) -> State:
        """Everything as a flat dict, for a checkpoint."""
        return {f"{client}/{name}": value for client in self._small for name, value in self[client].items()}

    def load_state_dict(self, state: State) -> None:
        """Take everything back from a checkpoint."""
        for client in list(self._small):
            self.forget(client)
        found: dict[int, State] = {}
        for key, value in state.items():
            number, name = key.split("/", 1)
            found.setdefault(int(number), {})[name] = value
        for client, peer in found.items():
            self[client] = peer

    def _is_vector(self, value: Tensor) -> bool:
        return value.is_floating_point() and value.shape == (self._size,)

    def _new_row(self) -> int:
        if self._free:
            return self._free.pop()
        self._used += 1
        return self._used - 1

    def _read(self, row: int) -> Tensor:
        assert self._file is not None
        self._file.seek(row * self._size * self._kind.itemsize)
        content = bytearray(self._file.read(self._size * self._kind.itemsize))
        return torch.from_numpy(np.frombuffer(content, dtype=self._kind))

    def _write(self, row: int, vector: Tensor) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="laconic-peers-")  # noqa: SIM115 - lives as long as the server
        self._file.seek(row * self._size * self._kind.itemsize)
        self._file.write(vector.detach().cpu().numpy().astype(self._kind, copy=False).tobytes())


class DiskClientLinkState:
    """The same in a database, where it is part of every checkpoint as it is."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def __contains__(self, client: int) -> bool:
        return bool(self[client])

    def __iter__(self) -> Iterator[int]:
        return self.database.clients("peer")

    def __getitem__(self, client: int) -> State:
        return self.database.get(("peer", client, 0))

    def get(self, client: int, default: State | None = None) -> State:
        """What is kept of a client; nothing of one that is not known."""
        return self[client] or default or {}

    def __setitem__(self, client: int, state: State) -> None:
        self.database.put(("peer", client, 0), state)

    def forget(self, client: int) -> None:
        """Keep nothing of a client any more."""
        self.database.drop(("peer", client, 0))

    def state_dict(self) -> State:
        """Nothing: it is in the database already."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to do: the database went back to the checkpoint when it was opened."""
