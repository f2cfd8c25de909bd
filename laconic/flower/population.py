"""All clients, as the server of a federation knows them: how many, how large, and what their examples look like."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from laconic.core.errors import DataError
from laconic.data.federated import ClientData, Examples, Indices, Kind
from laconic.flower.plan import Shape


class Population:
    """A `ClientData` without the clients' examples: those are on the nodes."""

    def __init__(self, clients: int, like: ClientData | None) -> None:
        self._clients = clients
        self.test: Examples | None = None if like is None else like.test
        self.kind: Kind = "classification" if like is None else like.kind
        self.classes = None if like is None else like.classes
        self.input_shape = () if like is None else like.input_shape
        self.shape = None if like is None else Shape(kind=like.kind, classes=like.classes, input_shape=like.input_shape)
        self.sizes: dict[int, int] = {}
        """The number of examples that each node has reported."""
        self.revision = 0
        """Changes whenever the sizes do."""

    def update(self, sizes: Mapping[int, int]) -> None:
        """Take over the sizes that nodes have reported."""
        if sizes != self.sizes:
            self.sizes, self.revision = dict(sizes), self.revision + 1

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        """As the client's node has said; as large as the others are on average where it was never here."""
        known = self.sizes.values()
        return self.sizes.get(client) or max(1, sum(known) // max(1, len(known)))

    def batch(self, client: int, positions: Indices, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """There are none here."""
        raise DataError("the examples of clients are on their nodes")
