"""Gradients in a subspace: of z, where w = base + P z."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.subspace import Subspace
from laconic.core.task import Batch
from laconic.gradients.base import Gradients, Seed


class SubspaceGradients(Gradients):
    """P^T g(base + P z) for every row z, with the gradients g of any strategy."""

    def __init__(self, inner: Gradients, subspace: Subspace) -> None:
        self.inner, self.subspace = inner, subspace

    def at(self, layout: Layout) -> Gradients:
        return SubspaceGradients(self.inner, layout) if isinstance(layout, Subspace) else self

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        gradients, losses = self.inner(self.subspace.expand(models), buffers, batches, seed)
        return self.subspace.project(gradients), losses
