"""Some clients' examples under the numbers that the clients have among all: what a worker or a node holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from laconic.data.federated import ClientData, Examples, FederatedData, GeneratedData, Indices, Kind


class OwnData:
    """A part of a population; whoever is not in it must not be asked for."""

    def __init__(self, data: ClientData, population: int, places: Mapping[int, int]) -> None:
        self._part, self._population, self._places = data, population, places
        """`places`: of each client that is here, its number in `data`."""

    @property
    def kind(self) -> Kind:
        """See `ClientData`."""
        return self._part.kind

    @property
    def classes(self) -> int | None:
        """See `ClientData`."""
        return self._part.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """See `ClientData`."""
        return self._part.input_shape

    @property
    def test(self) -> Examples | None:
        """What is held out here."""
        return self._part.test

    def __len__(self) -> int:
        return self._population

    def size(self, client: int) -> int:
        """See `ClientData`."""
        return self._part.size(self._places[client])

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """See `ClientData`."""
        return self._part.batch(self._places[client], positions, dtype)


def part_of(data: ClientData, clients: Sequence[int]) -> ClientData:
    """The data of some clients, without what the others hold, to be sent to where it is used."""
    if isinstance(data, GeneratedData):
        return data.unmade()
    if not isinstance(data, FederatedData):
        return data
    held = np.concatenate([data.clients[client] for client in clients])
    kept, places = np.unique(held, return_inverse=True)
    split = np.split(places.astype(np.int64), np.cumsum([data.size(client) for client in clients])[:-1])
    index = torch.from_numpy(kept)
    pool = data.examples
    examples = replace(pool, inputs=pool.inputs[index], targets=pool.targets[index])
    part = replace(data, examples=examples, clients=split, test=None)
    return OwnData(part, len(data), {client: place for place, client in enumerate(clients)})
