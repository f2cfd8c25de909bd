"""The clients of a federation as the server sees them: their number, their sizes, and the shape of their examples."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low

import torch
from torch import Tensor

from laconic.core.errors import DataError
from laconic.data.federated import ClientData, Examples, Indices, Kind
from laconic.flower.plan import shape_of


class Population:
    """A `ClientData` without examples, which are on the nodes."""

    def __init__(self, clients: int, like: ClientData | None) -> None:
        self._clients = clients
        self.test: Examples | None = None if like is None else like.test
        self.kind: Kind = "classification" if like is None else like.kind
        self.classes = None if like is None else like.classes
        self.input_shape = () if like is None else like.input_shape
        self.shape = None if like is None else shape_of(like)
        self._typical = 1
        """The median of the reported sizes."""
        self.reported: dict[int, int] = {}
        """The number of examples that each node has reported."""
        self.revision = 0
        """Incremented whenever the sizes change."""

    def update(self, sizes: Mapping[int, int]) -> None:
        """Store the sizes that nodes have reported."""
        if sizes != self.reported:
            self.reported, self.revision = dict(sizes), self.revision + 1
            self._typical = median_low(sizes.values())

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        """The size that the client's node has reported. If it never connected, the median size of the others."""
        return self.reported.get(client, self._typical)

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Raise `DataError`: the server has no examples."""
        raise DataError("the examples of clients are on their nodes")
