"""Which strategy `auto` stands for: by a fixed rule from the model, so that every machine chooses the same."""

from __future__ import annotations

import torch

from laconic.engine.draws import Stochastic
from laconic.engine.gradients import make_gradients
from laconic.engine.numerics import Numerics
from laconic.engine.stacked import can_be_stacked
from laconic.layout import Layout
from laconic.task import Batch, Task

TOLERANCE = 1e-3


def settle(numerics: Numerics, task: Task, layout: Layout, stochastic: Stochastic, batch: Batch) -> Numerics:
    """Models of linear layers only are batched over clients, if that works when it is tried on `batch`; all else loops."""
    if numerics.strategy != "auto":
        return numerics
    loop, vmap, stacked = (
        numerics.model_copy(update={"strategy": strategy, "vmap_width": 2}) for strategy in ("loop", "vmap", "stacked")
    )
    chosen = "loop"
    if can_be_stacked(task.module) and stochastic != "serial":
        # The model's code may do what vmap cannot follow, or mix the examples of a batch.
        if _agree(task, layout, stochastic, batch, loop, vmap):
            chosen = "vmap"
        if task.losses and stochastic == "no" and _agree(task, layout, stochastic, batch, loop, stacked):
            chosen = "stacked"
    return numerics.model_copy(update={"strategy": chosen})


def _agree(task: Task, layout: Layout, stochastic: Stochastic, batch: Batch, first: Numerics, second: Numerics) -> bool:
    """Whether two strategies give the same gradients for two clients with unlike models and data."""
    model, buffers = layout.flatten(task.module), layout.flatten_buffers(task.module)
    models = torch.stack([model, 0.9 * model + 0.01])
    other = tuple(part.flip(0) * 0.5 if part.is_floating_point() else part.flip(0) for part in batch)
    results = []
    for numerics in (first, second):
        try:
            function = make_gradients(task, layout, numerics, stochastic, frozen=False)
            results.append(function(models.clone(), torch.stack([buffers, buffers]), [batch, other], lambda row: row))
        except RuntimeError:
            return False
    (expected, losses), (found, values) = results
    close = (expected - found).abs().amax() <= TOLERANCE * expected.abs().amax()
    return bool(close) and torch.allclose(losses, values, TOLERANCE, TOLERANCE)
