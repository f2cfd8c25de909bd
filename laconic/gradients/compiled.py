"""Gradients of plain networks by compiled kernels: one call for each client and step, without the interpreter lock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import Batch, Task, is_cross_entropy, is_squared_error
from laconic.gradients.base import Gradients, Seed
from laconic.gradients.network import Layer, Program, Shape, layers_of


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
        from laconic.gradients.kernels import VECTOR_BYTES

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

    def _train(
        self, model: Tensor, batch: Batch, seed: Seed, row: int, result: Tensor, rate: float | None
    ) -> float:
        from laconic.gradients import kernels

        program = self.network.program(batch[0])
        number = program.dtype.type
        masks = draw_masks(program, len(batch[0]), seed, row)
        return kernels.train(
            program.program, program.table, program.constants, model.numpy(), program.values, program.gradients,
            program.rows, batch[0].reshape(-1).numpy(), batch[1].reshape(-1).numpy(), masks, len(batch[0]), program.lanes,
            result.numpy(), int(rate is not None), number(1 if rate is None else -rate),
        )


def draw_masks(program: Program, count: int, seed: Seed, row: int):
    """The masks of all dropout layers, as `NamedDraws` draws them, divided by the share that is kept."""
    if not program.masks:
        return program.constants[:0]
    generator = torch.Generator().manual_seed(seed(row))
    masks = []
    for module, shape in program.masks:
        own = (shape[0], 1, 1) if type(module) is nn.Dropout2d else shape
        kept = torch.rand(count, *own, generator=generator, dtype=torch.from_numpy(program.constants).dtype) >= module.p
        masks.append((kept.to(torch.float64) / (1 - module.p)).to(torch.from_numpy(program.constants).dtype).expand(count, *shape).reshape(-1))
    return torch.cat(masks).numpy()
