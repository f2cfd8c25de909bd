"""Resolution of the strategy `auto`, by a fixed rule on the model, so that every machine chooses the same strategy."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from laconic.core.devices import one_operator_thread
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.task import Batch, Task
from laconic.gradients.compiled import is_plain
from laconic.gradients.named_rng import Stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.stacked import can_be_stacked
from laconic.gradients.strategies import make_gradients

TOLERANCE, CLOSE = 1e-3, 1e-5
MOST_PARAMETERS = 2_000_000
"""Larger models are not faster in batches, and a matrix of many of them takes too much memory."""


@one_operator_thread()  # as in the engines: with more threads, a client's bits may depend on the others
def resolve_numerics(numerics: Numerics, task: Task, layout: Layout, stochastic: Stochastic, batch: Batch) -> Numerics:
    """Replace the strategy `auto`, and refuse `compiled` for networks that are not plain.

    Each choice needs a trial on `batch` that agrees with the strategy `loop`. Plain networks use compiled kernels. Other
    small models whose parameters are all in linear, embedding and GRU layers are batched over clients. All other models, and
    all models in bfloat16, use `loop`.
    """
    if numerics.strategy == "compiled" and not is_plain(task, layout, batch):
        raise ConfigError(
            "numerics.strategy = 'compiled': only for sequences of Conv2d, Linear, ReLU, pooling and dropout with "
            "cross-entropy or squared error; try 'auto' or 'loop'"
        )
    if numerics.strategy != "auto":
        return numerics
    strategy = "loop"
    if numerics.dtype == "bfloat16":
        # The last bits of bfloat16 are too coarse for a comparison of strategies.
        return numerics.model_copy(update={"strategy": strategy})
    if is_plain(task, layout, batch) and _StrategyCheck(task, layout, stochastic, batch).agrees("compiled", CLOSE):
        return numerics.model_copy(update={"strategy": "compiled"})
    if can_be_stacked(task.module) and stochastic != "serial" and layout.size <= MOST_PARAMETERS:
        # Trials, since a model may mix the examples of a batch, or decide by their values, which vmap does not support.
        check = _StrategyCheck(task, layout, stochastic, batch)
        simple = task.losses and stochastic == "no" and batch[0].device.type == "cpu"
        if simple and (check.runs_without_values() or check.agrees("vmap")) and check.agrees("stacked"):
            strategy = "stacked"
        elif check.agrees("vmap"):
            strategy = "vmap"
    return numerics.model_copy(update={"strategy": strategy})


class _StrategyCheck:
    """The gradients of two clients with different models and data."""

    def __init__(self, task: Task, layout: Layout, stochastic: Stochastic, batch: Batch) -> None:
        self.task, self.layout, self.stochastic = task, layout, stochastic
        other = tuple(part.flip(0) * 0.5 if part.is_floating_point() else part.flip(0) for part in batch)
        self.batches = [batch, other]
        model = layout.flatten(task.module)
        self.models = torch.stack([model, 0.9 * model + 0.01])
        self.expected = self._gradients("loop", 2)

    def _gradients(self, strategy: Literal["loop", "compiled", "vmap", "stacked"], rows: int) -> tuple[Tensor, Tensor]:
        numerics = Numerics(strategy=strategy, vmap_width=2)
        function = make_gradients(self.task, self.layout, numerics, self.stochastic, frozen=False)
        buffers = self.models.new_empty(rows, 0)
        return function(self.models[:rows].clone(), buffers, self.batches[:rows], lambda row: row)

    def runs_without_values(self) -> bool:
        """Whether the losses can be computed on torch's device `meta`, where tensors have a shape but no values.

        This is faster than a trial of vmap, for which torch loads its compiler. It fails if the model makes tensors itself.
        """
        assert self.task.losses is not None
        module = copy.deepcopy(self.task.module).to("meta")
        try:
            self.task.losses(module, tuple(part.to("meta") for part in self.batches[0]))
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def agrees(self, strategy: Literal["compiled", "vmap", "stacked"], tolerance: float = TOLERANCE) -> bool:
        """Whether a strategy agrees with `loop`, and a client's gradient does not depend on the other, bit for bit."""
        try:
            (both, losses), (alone, _) = self._gradients(strategy, 2), self._gradients(strategy, 1)
        except RuntimeError:
            return False
        expected, expected_losses = self.expected
        close = bool((expected - both).abs().amax() <= tolerance * expected.abs().amax())
        losses_close = torch.allclose(losses, expected_losses, tolerance, tolerance)
        return close and losses_close and torch.equal(both[0], alone[0])
