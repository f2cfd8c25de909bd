"""Plain networks by compiled kernels: a call computes one client's gradient, without the interpreter lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import IGNORED, Batch, Task, is_cross_entropy, is_squared_error
from laconic.gradients.base import Gradients, Seed
from laconic.gradients.network import Layer, Shape, layers_of

if TYPE_CHECKING:
    from laconic.gradients.program import Program

SLICE = 128
"""Examples that pass through a network together. More would need more memory, and their values would leave the cache."""


def is_plain(task: Task, layout: Layout, batch: Batch) -> bool:
    """Whether the compiled kernels support the model, the loss and the data."""
    return _fits(task, batch) and CompiledNetwork(task.module, layout).supports(batch[0])


def _fits(task: Task, batch: Batch) -> bool:
    targets = batch[-1]
    if len(batch) != 2 or targets.device.type != "cpu":
        return False
    if is_cross_entropy(task):
        return targets.ndim == 1 and targets.dtype == torch.int64
    return is_squared_error(task) and targets.dtype == batch[0].dtype and targets.ndim <= 2


class CompiledNetwork:
    """A network's programs, by the shape and number of its examples. Each thread needs its own."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.module, self.layout = module, layout
        self.layers: dict[Shape, list[Layer] | None] = {}
        self.programs: dict[tuple[Shape, int], Program] = {}

    def supports(self, inputs: Tensor) -> bool:
        """Whether the kernels support the network for these inputs."""
        if inputs.dtype != self.layout.dtype or inputs.device.type != "cpu" or inputs.ndim < 2 or not inputs.shape[0]:
            return False
        shape = tuple(inputs.shape[1:])
        if shape not in self.layers:
            self.layers[shape] = layers_of(self.module, shape, self.layout)
        return bool(self.layers[shape])

    def program(self, inputs: Tensor) -> Program:
        """The program for inputs that are supported."""
        from laconic.gradients.emitter import VECTOR_BYTES
        from laconic.gradients.program import Program

        shape = tuple(inputs.shape[1:])
        blocks = -(-inputs.shape[0] * inputs.element_size() // VECTOR_BYTES)
        if (shape, blocks) not in self.programs:
            self.programs[shape, blocks] = Program(self.layers[shape] or [], self.layout, blocks)
        return self.programs[shape, blocks]


class CompiledGradients(Gradients):
    """One row at a time. A row's result does not depend on other rows, bit for bit.

    Batches that the kernels do not support use `other`.
    """

    joins_steps = True

    def __init__(self, module: nn.Module, task: Task, layout: Layout, other: Gradients) -> None:
        self.network, self.task, self.other = CompiledNetwork(module, layout), task, other

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        result, losses = torch.empty_like(models), [torch.nan] * len(models)
        for row, batch in enumerate(batches):
            if batch is None:
                result[row] = 0
            else:
                losses[row] = self._compute(models, buffers, row, batch, seed, result, None)
        return result, torch.tensor(losses, dtype=models.dtype)

    def descend(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed, rate: float
    ) -> Tensor:
        """Moves the models without storing the gradients."""
        return self.descend_steps(models, buffers, [batches], [seed], [rate])[0]

    def descend_steps(
        self,
        models: Tensor,
        buffers: Tensor,
        steps: Sequence[Sequence[Batch | None]],
        seeds: Sequence[Seed],
        rates: Sequence[float],
    ) -> list[Tensor]:
        """All steps of one row before those of the next, so that its model stays in the cache."""
        losses = [[torch.nan] * len(models) for _ in steps]
        for row in range(len(models)):
            for batches, seed, rate, own in zip(steps, seeds, rates, losses, strict=True):
                batch = batches[row]
                if batch is not None:
                    own[row] = self._compute(models, buffers, row, batch, seed, models, rate)
        return list(torch.tensor(losses, dtype=models.dtype))

    def _compute(
        self, models: Tensor, buffers: Tensor, row: int, batch: Batch, seed: Seed, result: Tensor, rate: float | None
    ) -> float:
        """Write the gradient of a row to `result`, or move its model by it. Returns the loss."""
        if _fits(self.task, batch) and self.network.supports(batch[0]):
            return self._train(models[row], batch, lambda: seed(row), result[row], rate)
        alone = models[row : row + 1], buffers[row : row + 1], [batch], lambda _: seed(row)
        if rate is not None:
            return float(self.other.descend(*alone, rate))
        result[row : row + 1], loss = self.other(*alone)
        return float(loss)

    def _train(self, model: Tensor, batch: Batch, seed: Any, result: Tensor, rate: float | None) -> float:
        """Write the gradient to `result`, or move the model by it. Returns the loss."""
        inputs, targets = batch
        count = inputs.shape[0]
        if rate is not None and count > SLICE:  # all slices need the same model
            gradient = torch.empty_like(model)
            loss = self._train(model, batch, seed, gradient, None)
            model.sub_(gradient, alpha=rate)
            return loss
        program = self.network.program(inputs if count <= SLICE else inputs[:SLICE])
        masks = list(_masks(program.masks, inputs, seed())) if program.masks else []
        if count <= SLICE:
            scale = 1.0 if rate is None else -rate
            return program.train(model, _joined(inputs, masks), targets, result, rate is not None, scale)
        total, loss = max(1, _counted(targets)), 0.0
        for start in range(0, count, SLICE):
            part = slice(start, start + SLICE)
            program, share = self.network.program(inputs[part]), _counted(targets[part]) / total
            given = _joined(inputs[part], [mask[part] for mask in masks])
            own = program.train(model, given, targets[part], result, start > 0, share)
            loss += share * own if share else 0.0  # the loss of no targets is NaN
        return loss


def _joined(inputs: Tensor, masks: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in (inputs, *masks)]) if masks else inputs.reshape(-1)


def _counted(targets: Tensor) -> int:
    """The number of targets that count."""
    return targets.numel() if targets.is_floating_point() else int((targets != IGNORED).sum())


def _masks(layers: list[tuple[Any, Shape]], like: Tensor, seed: int) -> Iterator[Tensor]:
    """The masks of all dropout layers, as `NamedDraws` draws them, divided by the share that is kept."""
    generator = torch.Generator().manual_seed(seed)
    for module, shape in layers:
        own = (shape[0], 1, 1) if type(module) is nn.Dropout2d else shape
        kept = torch.rand(len(like), *own, generator=generator, dtype=like.dtype) >= module.p
        yield (kept.to(like.dtype) / (1 - module.p)).expand(len(like), *shape)


class CompiledOutputs:
    """The outputs of a plain network in evaluation mode, on any thread. Later changes of the module have no effect."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.layout = module, Layout.of(module)
        self.model = self.layout.flatten(module)
        self._local = threading.local()

    def __call__(self, inputs: Tensor) -> Tensor | None:
        """None if the kernels do not support the network."""
        if not hasattr(self._local, "network"):
            self._local.network = CompiledNetwork(self.module, self.layout)
        network: CompiledNetwork = self._local.network
        if not network.supports(inputs):
            return None
        parts = torch.split(inputs, SLICE)
        return torch.cat([network.program(part).outputs(self.model, part.reshape(-1), len(part)) for part in parts])
