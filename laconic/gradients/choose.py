"""Which strategy `auto` stands for: by a fixed rule from the model, so that every machine chooses the same."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.task import Batch, Task
from laconic.gradients.named_rng import Stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.stacked import can_be_stacked
from laconic.gradients.strategies import make_gradients

TOLERANCE = 1e-3
MOST_PARAMETERS = 2_000_000
"""Larger models gain nothing by company, and a matrix of many of them would fill the memory."""


def settle(numerics: Numerics, task: Task, layout: Layout, stochastic: Stochastic, batch: Batch) -> Numerics:
    """Small models of linear layers only are batched over clients, if that works when tried on `batch`; all else loops."""
    if numerics.strategy != "auto":
        return numerics
    chosen = "loop"
    if can_be_stacked(task.module) and stochastic != "serial" and layout.size <= MOST_PARAMETERS:
        # The model's code may do what vmap cannot follow, such as to decide by what it sees, or mix the examples of a batch.
        clients = _TwoClients(task, layout, stochastic, batch)
        if clients.agrees("vmap"):
            simple = task.losses and stochastic == "no" and batch[0].device.type == "cpu"
            chosen = "stacked" if simple and clients.agrees("stacked") else "vmap"
    return numerics.model_copy(update={"strategy": chosen})


class _TwoClients:
    """Gradients of two clients with unlike models and data."""

    def __init__(self, task: Task, layout: Layout, stochastic: Stochastic, batch: Batch) -> None:
        self.task, self.layout, self.stochastic = task, layout, stochastic
        other = tuple(part.flip(0) * 0.5 if part.is_floating_point() else part.flip(0) for part in batch)
        self.batches = [batch, other]
        model = layout.flatten(task.module)
        self.models = torch.stack([model, 0.9 * model + 0.01])
        self.expected = self._gradients("loop", 2)

    def _gradients(self, strategy: Literal["loop", "vmap", "stacked"], rows: int) -> tuple[Tensor, Tensor]:
        """Of the first rows."""
        numerics = Numerics(strategy=strategy, vmap_width=2)
        function = make_gradients(self.task, self.layout, numerics, self.stochastic, frozen=False)
        buffers = self.models.new_empty(rows, 0)
        return function(self.models[:rows].clone(), buffers, self.batches[:rows], lambda row: row)

    def agrees(self, strategy: Literal["vmap", "stacked"]) -> bool:
        """Whether a strategy gives what a loop gives, and gives a client the same to the bit when it is alone."""
        try:
            (found, losses), (alone, _) = self._gradients(strategy, 2), self._gradients(strategy, 1)
        except RuntimeError:
            return False
        expected, values = self.expected
        close = (expected - found).abs().amax() <= TOLERANCE * expected.abs().amax()
        return bool(close) and torch.allclose(losses, values, TOLERANCE, TOLERANCE) and torch.equal(found[0], alone[0])
