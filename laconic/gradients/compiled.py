"""Gradients of plain networks by compiled kernels: one call for each client and step, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import Batch, Task, is_cross_entropy, is_squared_error
from laconic.gradients.base import Gradients, Seed
from laconic.gradients.network import Layer, Shape, layers_of

if TYPE_CHECKING:
    from laconic.gradients.program import Program


def is_plain(task: Task, layout: Layout, batch: Batch) -> bool:
    """Whether the compiled kernels support the model, the loss and the data."""
    return CompiledNetwork(task.module, layout).supports(batch[0]) and _fits(task, batch)


def _fits(task: Task, batch: Batch) -> bool:
    targets = batch[-1]
    if len(batch) != 2 or targets.device.type != "cpu":
        return False
    if is_cross_entropy(task):
        return targets.ndim == 1 and targets.dtype == torch.int64
    return is_squared_error(task) and targets.is_floating_point()


class CompiledNetwork:
    """A network's programs by shape and number of examples. Each thread needs its own."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module, self.layout = module, layout
        self.layers: dict[Shape, list[Layer] | None] = {}
        self.programs: dict[tuple[Shape, int], Program] = {}

    def supports(self, inputs: Tensor) -> bool:
        shape = tuple(inputs.shape[1:])
        if shape not in self.layers:
            self.layers[shape] = layers_of(self.module, shape, self.layout)
        return bool(self.layers[shape]) and inputs.dtype == self.layout.dtype and inputs.device.type == "cpu" and len(inputs) > 0

    def program(self, inputs: Tensor) -> Program:
        """The program for a batch that is supported."""
        from laconic.gradients.program import VECTOR_BYTES, Program

        shape, lanes = tuple(inputs.shape[1:]), VECTOR_BYTES // inputs.element_size()
        key = shape, -(-len(inputs) // lanes)
        if key not in self.programs:
            layers = self.layers[shape]
            assert layers
            self.programs[key] = Program(layers, self.layout, key[1])
        return self.programs[key]


class CompiledGradients(Gradients):
    """One row at a time. A row's result does not depend on other rows, bit for bit. Other batches use `other`."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout, other: Gradients) -> None:
        self.network, self.task, self.other = CompiledNetwork(module, layout), task, other

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        result = torch.empty_like(models)
        losses = models.new_full((len(models),), torch.nan)
        for row, batch in enumerate(batches):
            if batch is None:
                result[row].zero_()
            elif self._supports(batch):
                losses[row] = self._train(models[row], batch, seed, row, result[row], None)
            else:
                alone = slice(row, row + 1)
                result[alone], losses[alone] = self.other(models[alone], buffers[alone], [batch], lambda _, row=row: seed(row))
        return result, losses

    def descend(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed, rate: float
    ) -> Tensor:
        """Moves the models without storing the gradients."""
        losses = models.new_full((len(models),), torch.nan)
        for row, batch in enumerate(batches):
            if batch is not None and self._supports(batch):
                losses[row] = self._train(models[row], batch, seed, row, models[row], rate)
            elif batch is not None:
                alone = slice(row, row + 1)
                losses[alone] = self.other.descend(models[alone], buffers[alone], [batch], lambda _, row=row: seed(row), rate)
        return losses

    def _supports(self, batch: Batch) -> bool:
        return self.network.supports(batch[0]) and _fits(self.task, batch)

    def _train(self, model: Tensor, batch: Batch, seed: Seed, row: int, result: Tensor, rate: float | None) -> float:
        inputs, targets = batch
        program = self.network.program(inputs)
        given = inputs.reshape(-1)
        if program.masks:
            given = torch.cat([given, *_masks(program.masks, inputs, seed(row))])
        scale = 1.0 if rate is None else -rate
        return program.run(program.whole, model, given, targets, len(inputs), result, int(rate is not None), scale)


def _masks(layers: list[tuple[Any, Shape]], like: Tensor, seed: int) -> Iterator[Tensor]:
    """The masks of all dropout layers, as `NamedDraws` draws them, divided by the share that is kept."""
    generator = torch.Generator().manual_seed(seed)
    for module, shape in layers:
        own = (shape[0], 1, 1) if type(module) is nn.Dropout2d else shape
        kept = torch.rand(len(like), *own, generator=generator, dtype=like.dtype) >= module.p
        yield (kept.to(like.dtype) / (1 - module.p)).expand(len(like), *shape).reshape(-1)
