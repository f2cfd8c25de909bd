"""Gradients of a chunk of clients in one call: `G = gradients(W, batches)`.

The strategies agree up to rounding. `CompiledGradients` computes plain networks by compiled kernels. `LoopGradients`
computes one row at a time by an ordinary backward pass with channels-last images. `StackedGradients` batches the rows of
models whose parameters are all in linear, embedding and GRU layers. `VmapGradients` batches the rows of all models that
torch.vmap supports. Each object owns a copy of the module, so each thread needs its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from laconic.core.devices import to_device
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.randomness import GLOBAL_GENERATORS
from laconic.core.subspace import Subspace
from laconic.core.task import Batch, Task
from laconic.gradients.base import Gradients, Seed, by_batch_size
from laconic.gradients.compiled import CompiledGradients
from laconic.gradients.named_rng import NamedDraws, Stochastic, forked
from laconic.gradients.numerics import Numerics
from laconic.gradients.stacked import StackedGradients, can_be_stacked
from laconic.gradients.subspace import SubspaceGradients


def check_numerics(task: Task, numerics: Numerics, stochastic: Stochastic, frozen: bool) -> None:
    """Refuse numerics with which results would depend on threads, chunks or other clients."""
    module = task.module
    norms = _batch_norms(module)
    if numerics.strategy == "stacked":
        _check_stacked(task, numerics, stochastic)
    if numerics.strategy == "vmap" and stochastic == "serial":
        raise ConfigError("numerics.strategy = 'vmap': this model draws random numbers that only 'loop' can reproduce")
    if numerics.strategy == "vmap" and (norms or any(True for _ in module.buffers())):
        # In vmap torch merges rows and channels of batch norm, so the last bits would depend on the position of a row.
        raise ConfigError("numerics.strategy = 'vmap': a model with batch norm or other buffers needs 'loop'")
    if not frozen and any(norm.track_running_stats and norm.momentum is None for norm in norms):
        # This average depends on num_batches_tracked, an integer buffer, which is not sent and would differ by thread.
        raise ConfigError("model: batch norm with momentum=None cannot be averaged; give it a momentum")


def _check_stacked(task: Task, numerics: Numerics, stochastic: Stochastic) -> None:
    if task.losses is None:
        # Only a loss for each example tells the clients of a stacked batch apart.
        raise ConfigError(
            "numerics.strategy = 'stacked': needs the losses of single examples, and the task has a mean loss only; give "
            "Task(losses=…), or try 'vmap' or 'loop'"
        )
    if numerics.dtype == "bfloat16":
        raise ConfigError("numerics.strategy = 'stacked': not with dtype = 'bfloat16'; try 'vmap' or 'loop'")
    if stochastic != "no" or not can_be_stacked(task.module):
        raise ConfigError(
            "numerics.strategy = 'stacked': only for linear, embedding and GRU layers without random draws; try 'vmap' or "
            "'loop'"
        )


def make_gradients(task: Task, layout: Layout, numerics: Numerics, stochastic: Stochastic, frozen: bool) -> Gradients:
    """A gradient function with its own copy of the module, for one thread."""
    if isinstance(layout, Subspace):
        return SubspaceGradients(make_gradients(task, layout.full, numerics, stochastic, frozen), layout)
    module = copy.deepcopy(task.module).train()
    for child in _batch_norms(module) if frozen else []:
        if child.track_running_stats:
            child.eval()
    if numerics.strategy == "stacked":
        return StackedGradients(module, task, layout)
    if numerics.strategy == "vmap":
        return VmapGradients(module, task, layout, numerics.vmap_width, stochastic)
    loop = LoopGradients(module, task, layout, stochastic)
    return CompiledGradients(module, task, layout, loop) if numerics.strategy == "compiled" else loop


class LoopGradients(Gradients):
    """One row at a time. The module's tensors are views of one vector, so one copy loads a row."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout, stochastic: Stochastic) -> None:
        device = next(module.parameters()).device
        self.module, self.loss, self.stochastic = module, task.loss, stochastic
        self.vector = torch.empty(layout.size, dtype=layout.dtype, device=device)
        self.buffers = torch.empty(layout.buffer_size, dtype=layout.dtype, device=device)
        self.parameters = layout.adopt(module, self.vector, self.buffers)
        self.slots = layout.parameters
        self.adopted = [_holder(module, slot.name) for slot in layout.buffers]

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        result = torch.empty_like(models)
        losses = models.new_full((len(models),), torch.nan)
        for row, batch in enumerate(batches):
            if batch is None:
                result[row].zero_()
                continue
            losses[row], parts = self._parts(models[row], buffers[row], batch, seed, row)
            torch.cat([part.reshape(-1) for part in parts], out=result[row])
        return result, losses

    def _parts(
        self, model: Tensor, buffers: Tensor, batch: Batch, seed: Seed, row: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The loss of one row, and its gradient with respect to each parameter."""
        self.vector.copy_(model)
        self.buffers.copy_(buffers)
        with _draws(self.stochastic, seed, row, self.vector.device), _one_example_hint():
            loss = self.loss(self.module, tuple(map(_channels_last, batch)))
            parts = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        if self.adopted:
            self._readopt_buffers()
            buffers.copy_(self.buffers)
        return loss.detach(), parts

    def descend(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed, rate: float
    ) -> Tensor:
        """Subtract each part of the gradient where it belongs, without a vector of all parts."""
        losses = models.new_full((len(models),), torch.nan)
        for row, batch in enumerate(batches):
            if batch is None:
                continue
            losses[row], parts = self._parts(models[row], buffers[row], batch, seed, row)
            for slot, part in zip(self.slots, parts, strict=True):
                slot.view(models[row]).sub_(part, alpha=rate)
        return losses

    def _readopt_buffers(self) -> None:
        """Copy buffers that the module has replaced, instead of written to, back into their views of the vector."""
        for holder, name, view in self.adopted:
            new = holder._buffers[name]
            if new is not None and new is not view:
                view.copy_(new.detach())
                holder._buffers[name] = view


class VmapGradients(Gradients):
    """One vmap call for every `width` rows with batches of the same size. Shorter groups are padded."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout, width: int, stochastic: Stochastic) -> None:
        self.layout, self.width, self.stochastic = layout, width, stochastic
        self.wrapper = _LossModule(module, task)
        self.rows = torch.arange(width, device=next(module.parameters()).device)
        self.generators: list[torch.Generator] = []
        # "same": NamedDraws draws for all rows at once, and each row selects its own numbers.
        self.call = vmap(grad_and_value(self._loss), in_dims=(0, 0, 0), randomness="same")

    def _loss(self, parameters: dict[str, Tensor], batch: Batch, row: Tensor) -> Tensor:
        with NamedDraws(self.generators, row) if self.stochastic == "named" else nullcontext():
            value: Tensor = functional_call(self.wrapper, parameters, (batch,))
        return value

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        result = torch.zeros_like(models)
        losses = models.new_full((len(models),), torch.nan)
        for group in by_batch_size(batches):
            for start in range(0, len(group), self.width):
                self._compute(group[start : start + self.width], models, seed, result, losses)
        return result, losses

    def _compute(
        self, group: list[tuple[int, Batch]], models: Tensor, seed: Seed, result: Tensor, losses: Tensor
    ) -> None:
        padded = group + group[:1] * (self.width - len(group))
        stacked = tuple(torch.stack(parts) for parts in zip(*(batch for _, batch in padded), strict=True))
        if self.stochastic == "named":
            self.generators = [torch.Generator(models.device).manual_seed(seed(row)) for row, _ in padded]
        index = to_device(torch.tensor([row for row, _ in padded]), models.device)
        parameters = {f"module.{name}": view for name, view in self.layout.views(models[index]).items()}
        gradients, values = self.call(parameters, stacked, self.rows)
        flat = torch.cat([gradients[f"module.{s.name}"].flatten(1) for s in self.layout.parameters], dim=1)
        kept = index[: len(group)]
        result[kept] = flat[: len(group)]
        losses[kept] = values[: len(group)]


class _LossModule(nn.Module):
    """The loss as a module's forward, since functional_call needs a module."""

    def __init__(self, module: nn.Module, task: Task) -> None:
        super().__init__()
        self.module, self.loss = module, task.loss

    def forward(self, batch: Batch) -> Tensor:
        return self.loss(self.module, batch)


def _holder(module: nn.Module, name: str) -> tuple[nn.Module, str, Tensor]:
    """The submodule that owns a buffer, the buffer's name in it, and the buffer."""
    path, _, buffer_name = name.rpartition(".")
    holder = module.get_submodule(path)
    return holder, buffer_name, holder.get_buffer(buffer_name)


def _batch_norms(module: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    return [child for child in module.modules() if isinstance(child, nn.modules.batchnorm._NormBase)]


@contextmanager
def _one_example_hint() -> Iterator[None]:
    """Replaces torch's error for batch norm on one example by advice about settings."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise ConfigError(
            "batch_size: this model's batch norm fails on a batch of one example; choose a batch size that leaves no "
            "single example over, or local_steps instead of local_epochs"
        ) from error


def _draws(stochastic: Stochastic, seed: Seed, row: int, device: torch.device) -> AbstractContextManager[Any]:
    if stochastic == "named":
        return NamedDraws([torch.Generator(device).manual_seed(seed(row))])
    if stochastic == "serial":
        return _seeded_alone(seed(row), device)
    return nullcontext()


@contextmanager
def _seeded_alone(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds torch's global generator for one call, while a lock excludes other calls."""
    with GLOBAL_GENERATORS, forked(device):
        torch.manual_seed(seed)
        yield


def _channels_last(tensor: Tensor) -> Tensor:
    if tensor.ndim != 4 or not tensor.is_floating_point():
        return tensor
    if tensor.shape[1] == 1:
        # With one channel both formats have the same memory layout, and torch assumes channels-first unless the strides say
        # otherwise. This saves a tenth of LeNet-5's time.
        height, width = tensor.shape[2:]
        return tensor.contiguous().as_strided(tensor.shape, (height * width, 1, width, 1))
    return tensor.contiguous(memory_format=torch.channels_last)
