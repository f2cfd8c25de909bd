"""The data of some clients, addressed by global client id, for one worker or node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from laconic.data.federated import AugmentedData, ClientData, FederatedData, Indices
from laconic.data.generated import GeneratedData
from laconic.data.lazy import LazyData


class OwnData:
    """The clients of `data` within a larger population. Accessing any other client raises KeyError.

    Args:
        population: Number of clients of the whole federation.
        local_index: Maps the global id of each client here to its index in `data`.
    """

    def __init__(self, data: ClientData, population: int, local_index: Mapping[int, int]) -> None:
        self._part, self._population, self._local_index = data, population, local_index
        self.kind, self.classes, self.input_shape, self.test = data.kind, data.classes, data.input_shape, data.test
        self.augmented: Callable[[int, Indices, torch.dtype, int], tuple[Tensor, ...]]
        """Only if `data` is augmented: see `AugmentedData`."""
        if isinstance(data, AugmentedData):
            self._augments, self.augmented = data, self._augmented

    def __len__(self) -> int:
        return self._population

    def size(self, client: int) -> int:
        """Number of examples of a client."""
        return self._part.size(self._local_index[client])

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """A client's examples at `positions`."""
        return self._part.batch(self._local_index[client], positions, dtype)

    def _augmented(self, client: int, positions: Indices, dtype: torch.dtype, seed: int) -> tuple[Tensor, ...]:
        return self._augments.augmented(self._local_index[client], positions, dtype, seed)


def part_of(data: ClientData, clients: Sequence[int]) -> ClientData:
    """Return data with the examples of some clients only, to send to the process that trains them."""
    if isinstance(data, GeneratedData):
        return data.without_cache()
    local_index = {client: position for position, client in enumerate(clients)}
    if isinstance(data, LazyData):
        return OwnData(data.part(clients).without_test(), len(data), local_index)
    if not isinstance(data, FederatedData):
        return data
    if len(clients) == len(data):
        return replace(data, test=None)
    wanted = np.concatenate([data.clients[client] for client in clients])
    kept, positions = np.unique(wanted, return_inverse=True)
    split = np.split(positions.astype(np.int64), np.cumsum([data.size(client) for client in clients])[:-1])
    index = torch.from_numpy(kept)
    part = replace(data, examples=data.examples.rows(index), clients=split, test=None, client_names=None)
    return OwnData(part, len(data), local_index)
