"""Plain networks by compiled kernels: a call computes one client's gradient, without the interpreter lock."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import IGNORED, Batch, Task, is_cross_entropy, is_squared_error
from laconic.gradients.base import Gradients, Seed
from laconic.gradients.network import Layer, Shape, layers_of

SLICE = 128
"""Examples that pass through a network together. More would need more memory, and their values would leave the cache."""


class NetworkProgram(Protocol):
    """What is used of `laconic.gradients.program.Program` here. Its module loads Numba, so it is imported late."""

    masks: list[tuple[Any, Shape]]

    def train(
        self,
        model: Tensor,
        inputs: Tensor,
        targets: Tensor,
        result: Tensor,
        adds: bool,
        counts: Sequence[int],
        scales: Sequence[float],
    ) -> list[float]:
        """Write the gradients of batches, or move by them. Returns the losses."""

    def outputs(self, model: Tensor, inputs: Tensor, count: int) -> Tensor:
        """The outputs of the network."""


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
        self.programs: dict[tuple[Shape, int], NetworkProgram] = {}

    def supports(self, inputs: Tensor) -> bool:
        """Whether the kernels support the network for these inputs."""
        if inputs.dtype != self.layout.dtype or inputs.device.type != "cpu" or inputs.ndim < 2 or not inputs.shape[0]:
            return False
        shape = tuple(inputs.shape[1:])
        if shape not in self.layers:
            self.layers[shape] = layers_of(self.module, shape, self.layout)
        return bool(self.layers[shape])

    def program(self, inputs: Tensor) -> NetworkProgram:
        """The program for inputs that are supported."""
        from laconic.gradients.emitter import VECTOR_BYTES  # late: Numba is slow to load
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
            elif self._fits(batch):
                losses[row] = self._gradient(models[row], batch, partial(seed, row), result[row])
            else:
                alone = models[row : row + 1], buffers[row : row + 1], [batch], lambda _, row=row: seed(row)
                result[row : row + 1], loss = self.other(*alone)
                losses[row] = float(loss)
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
        """All steps of one row before those of the next, in one call where the batches have the same size."""
        losses = np.full((len(steps), len(models)), np.nan)
        for row in range(len(models)):
            taken = [(number, batch) for number, step in enumerate(steps) if (batch := step[row]) is not None]
            for _, group in itertools.groupby(taken, lambda one: [tensor.shape for tensor in one[1]]):
                numbers, batches = zip(*group, strict=True)
                program = self._program(batches[0])
                own_seeds: list[Callable[[], int]] = [partial(seeds[number], row) for number in numbers]
                own = own_seeds, [rates[number] for number in numbers]
                if program is None:
                    found = [self._step(models, buffers, row, *step) for step in zip(batches, *own, strict=True)]
                else:
                    found = _move(program, models[row], batches, *own)
                losses[numbers, row] = found
        return list(torch.from_numpy(losses).to(models.dtype))

    def _fits(self, batch: Batch) -> bool:
        return _fits(self.task, batch) and self.network.supports(batch[0])

    def _program(self, batch: Batch) -> NetworkProgram | None:
        """The program for a batch that passes through the network in one slice."""
        small = batch[0].shape[0] <= SLICE and self._fits(batch)
        return self.network.program(batch[0]) if small else None

    def _step(
        self, models: Tensor, buffers: Tensor, row: int, batch: Batch, seed: Callable[[], int], rate: float
    ) -> float:
        """A step of one row by its whole gradient, or by `other`. Returns the loss."""
        if self._fits(batch):
            gradient = torch.empty_like(models[row])
            loss = self._gradient(models[row], batch, seed, gradient)
            models[row].sub_(gradient, alpha=rate)
            return loss
        alone = models[row : row + 1], buffers[row : row + 1], [batch], lambda _: seed()
        return float(self.other.descend(*alone, rate))

    def _gradient(self, model: Tensor, batch: Batch, seed: Callable[[], int], result: Tensor) -> float:
        """Write the gradient to `result`, slice by slice. Returns the loss."""
        inputs, targets = batch
        layers = self.network.program(inputs[:SLICE]).masks
        masks = list(_masks(layers, inputs, seed())) if layers else []
        total, loss = max(1, _counted(targets)), 0.0
        for start in range(0, len(inputs), SLICE):
            part = slice(start, start + SLICE)
            share = _counted(targets[part]) / total
            given = _joined([tensor[part] for tensor in (inputs, *masks)])
            sizes = [len(targets[part])], [share]
            (own,) = self.network.program(inputs[part]).train(model, given, targets[part], result, start > 0, *sizes)
            loss += share * own if share else 0.0  # the loss of no targets is NaN
        return loss


def _move(
    program: NetworkProgram, model: Tensor, batches: Sequence[Batch], seeds: list[Callable[[], int]], rates: list[float]
) -> list[float]:
    """One step on each batch. Returns the losses."""
    if program.masks and len(batches) > 1:  # the masks of all batches would take much memory
        steps = zip(batches, seeds, rates, strict=True)
        return [loss for batch, seed, rate in steps for loss in _move(program, model, [batch], [seed], [rate])]
    inputs, targets = ([batch[index] for batch in batches] for index in (0, 1))
    masks = _masks(program.masks, inputs[0], seeds[0]()) if program.masks else ()
    sizes = [target.shape[0] for target in targets], [-rate for rate in rates]
    return program.train(model, _joined([*inputs, *masks]), _joined(targets), model, True, *sizes)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The entries of all tensors in one vector, without a copy if they are adjacent parts of one tensor."""
    first, size = parts[0], sum(part.numel() for part in parts)
    end = first.data_ptr()
    for part in parts:
        if part.data_ptr() != end or not part.is_contiguous():
            return torch.cat([part.reshape(-1) for part in parts])
        end += part.numel() * part.element_size()
    storage = first.untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():
        return torch.cat([part.reshape(-1) for part in parts])
    return first.as_strided((size,), (1,))


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
