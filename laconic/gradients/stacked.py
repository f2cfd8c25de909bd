"""Gradients of many clients in one call, for models whose parameters are all in linear, embedding and GRU layers.

The clients' batches are concatenated to one batch, and each layer uses every client's parameters for that client's
examples. Weights and gradients are views of the cohort's matrices, so nothing is copied. With small batches such copies take
longer than the arithmetic.

The module must treat the examples of a batch independently. `laconic.gradients.choose` checks this by a trial.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from laconic.core.devices import to_device
from laconic.core.layout import Layout, aligned_rows, is_aligned
from laconic.core.task import Batch, Task
from laconic.gradients.base import Gradients, Seed, by_batch_size
from laconic.gradients.stacked_layers import Pair, Stacked, stacked_class


def can_be_stacked(module: nn.Module) -> bool:
    """Whether all trainable parameters are in layers that have a stacked form, without batch norm or buffers.

    A parameter that two layers share has no stacked form.
    """
    held = sum(len([*child.parameters(recurse=False)]) for child in module.modules())
    trainable = [child for child in module.modules() if any(p.requires_grad for p in child.parameters(recurse=False))]
    return (
        held == len([*module.parameters()])
        and all(stacked_class(child) for child in trainable)
        and not any(isinstance(child, nn.modules.batchnorm._NormBase) for child in module.modules())
        and not any(True for _ in module.buffers())
    )


class StackedGradients(Gradients):
    """One call for all rows with batches of the same size. A row's result does not depend on other rows, bit for bit."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout) -> None:
        assert task.losses is not None  # `check_numerics` has refused such a task
        self.module, self.task, self.losses = module, task, task.losses
        self.slots = {slot.name: slot for slot in layout.parameters}
        self.layers: dict[str, Stacked] = {}
        device = next(module.parameters()).device
        for name, child in module.named_modules():
            form = stacked_class(child) if any(True for _ in child.parameters(recurse=False)) else None
            if form is not None:
                child.__class__ = form
                assert isinstance(child, Stacked)
                child.anchor = torch.zeros((), dtype=layout.dtype, device=device, requires_grad=True)
                self.layers[name] = child

    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        result = aligned_rows(models)
        if None in batches:
            result.zero_()
        return result, self._compute_groups(models, batches, result)

    def descend(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed, rate: float
    ) -> Tensor:
        """Moves the models without storing the gradients."""
        if is_aligned(models):
            return self._compute_groups(models, batches, models, rate)
        aligned = aligned_rows(models).copy_(models)
        losses = self._compute_groups(aligned, batches, aligned, rate)
        models.copy_(aligned)
        return losses

    def _compute_groups(
        self, models: Tensor, batches: Sequence[Batch | None], result: Tensor, rate: float | None = None
    ) -> Tensor:
        losses = models.new_full((len(models),), torch.nan)
        for group in by_batch_size(batches):
            parts = [batch for _, batch in group]
            if len(group) == len(models):
                losses.copy_(self._compute(models, parts, result, rate))
                continue
            index = to_device(torch.tensor([row for row, _ in group]), models.device)
            chosen = models[index]
            chosen = aligned_rows(chosen).copy_(chosen)
            part = chosen if result is models else aligned_rows(chosen)
            losses[index] = self._compute(chosen, parts, part, rate)
            result[index] = part
        return losses

    def _compute(self, models: Tensor, batches: Sequence[Batch], result: Tensor, rate: float | None = None) -> Tensor:
        for name, layer in self.layers.items():
            layer.stack, layer.result = self._views(name, models), self._views(name, result)
            layer.written, layer.uses, layer.rate = False, 0, rate
        losses = self._means(tuple(map(torch.cat, zip(*batches, strict=True))), batches)
        reused = rate is not None and any(layer.uses > 1 for layer in self.layers.values())
        if reused:
            # The backward pass needs the weights of a reused layer again, so they must not move before it ends.
            result = aligned_rows(models)
            for name, layer in self.layers.items():
                layer.result, layer.rate = self._views(name, result), None
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for layer in self.layers.values():
            if not layer.written and layer.rate is None:
                for gradient in itertools.chain(*layer.result):
                    if gradient is not None:
                        gradient.zero_()
            del layer.stack, layer.result
        if reused:
            models.sub_(result, alpha=rate or 0.0)
        return losses.detach()

    def _means(self, batch: Batch, batches: Sequence[Batch]) -> Tensor:
        """The mean loss of each client over the targets that count, given the batch of all and that of each."""
        means = self.losses(self.module, batch).view(len(batches), -1).mean(1)
        if self.task.counted is None:
            return means
        shares = torch.tensor([self.task.share(part) for part in batches], dtype=means.dtype, device=means.device)
        return means / shares.clamp_min(torch.finfo(means.dtype).tiny)

    def _views(self, name: str, matrix: Tensor) -> list[Pair]:
        """The views of a layer's weights and biases in the cohort's matrix."""
        prefix = f"{name}." if name else ""
        biases = (self.slots.get(f"{prefix}{bias}") for _, bias in self.layers[name].PAIRS)
        return [
            (self.slots[f"{prefix}{weight}"].view(matrix), None if bias is None else bias.view(matrix))
            for (weight, _), bias in zip(self.layers[name].PAIRS, biases, strict=True)
        ]
