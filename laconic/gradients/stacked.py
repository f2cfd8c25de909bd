"""Gradients of many clients in one call, for models whose parameters are all in linear layers.

The clients' batches are concatenated to one batch, and each linear layer multiplies every client's examples by that client's
weights. Weights and gradients are views of the cohort's matrices, so nothing is copied. With small batches such copies take
longer than the arithmetic.

The module must treat the examples of a batch independently. `laconic.gradients.choose` checks this by a trial.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from laconic.core.devices import to_device
from laconic.core.layout import Layout, aligned_rows, is_aligned
from laconic.core.task import Batch, Task
from laconic.gradients.base import Gradients, Seed, by_batch_size


def can_be_stacked(module: nn.Module) -> bool:
    """Whether all trainable parameters are in linear layers, without batch norm or buffers."""
    trainable = [child for child in module.modules() if any(p.requires_grad for p in child.parameters(recurse=False))]
    return (
        all(_is_linear(child) for child in trainable)
        and not any(isinstance(child, nn.modules.batchnorm._NormBase) for child in module.modules())
        and not any(True for _ in module.buffers())
    )


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear and all(p.requires_grad for p in module.parameters())


def multiply(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply the rows [C, B, in] of every client by its weights [C, out, in], and add its bias."""
    transposed = weight.transpose(1, 2)
    return torch.bmm(rows, transposed) if bias is None else torch.baddbmm(bias[:, None], rows, transposed)


def write(gradient: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Write the gradients of weights and biases into `weight` and `bias`, given the gradient of the product."""
    torch.bmm(gradient.transpose(1, 2), rows, out=weight)
    if bias is not None:
        torch.sum(gradient, 1, out=bias)


def descend(gradient: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None, rate: float) -> None:
    """Add -rate times their gradients to weights and biases, without storing the gradients."""
    weight.baddbmm_(gradient.transpose(1, 2), rows, alpha=-rate)
    if bias is not None:
        bias.sub_(gradient.sum(1), alpha=rate)


class StackedLinear(nn.Linear):
    """A linear layer with separate weights for each of C equal parts of its batch."""

    stack: tuple[Tensor, Tensor | None]
    """Weights [C, out, in] and biases [C, out]: views of the clients' models."""
    result: tuple[Tensor, Tensor | None]
    """Views of the gradients, in the same shapes."""
    written: bool
    """Whether `result` holds the gradients of the current call."""
    uses: int
    """How often the layer was used in the forward pass."""
    rate: float | None
    """If set, the backward pass moves the weights by -rate times their gradients instead of writing `result`."""
    anchor: Tensor
    """Requires a gradient, so that autograd runs the backward pass even if the input requires none."""

    def forward(self, input: Tensor) -> Tensor:
        result: Tensor = _StackedProduct.apply(input, self.anchor, self)  # type: ignore[no-untyped-call]
        return result


class _StackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, anchor: Tensor, layer: StackedLinear) -> Tensor:
        weight, bias = layer.stack
        layer.uses += 1
        rows = input.reshape(len(weight), -1, input.shape[-1])
        product = multiply(rows, weight, bias)
        ctx.layer = layer
        ctx.save_for_backward(rows)
        return product.view(*input.shape[:-1], weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, None]:
        layer, (rows,) = ctx.layer, ctx.saved_tensors
        (weight, bias), (of_weight, of_bias) = layer.stack, layer.result
        gradient = gradients[0].reshape(len(weight), -1, weight.shape[1])
        back = None
        if ctx.needs_input_grad[0]:  # before `descend` changes the weights
            back = torch.bmm(gradient, weight).view(*gradients[0].shape[:-1], weight.shape[2])
        if layer.rate is not None:
            descend(gradient, rows, weight, bias, layer.rate)
        elif layer.written:  # the layer is used more than once: accumulate
            descend(gradient, rows, of_weight, of_bias, -1.0)
        else:
            write(gradient, rows, of_weight, of_bias)
        layer.written = True
        return back, None, None


class StackedGradients(Gradients):
    """One call for all rows with batches of the same size. A row's result does not depend on other rows, bit for bit."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout) -> None:
        assert task.losses is not None  # `check_numerics` has refused such a task
        self.module, self.losses = module, task.losses
        self.slots = {slot.name: slot for slot in layout.parameters}
        self.layers: dict[str, StackedLinear] = {}
        for name, child in module.named_modules():
            if _is_linear(child):
                anchor = torch.zeros((), dtype=layout.dtype, device=child.weight.device, requires_grad=True)
                child.__class__ = StackedLinear
                assert isinstance(child, StackedLinear)
                child.anchor = anchor
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
            batch = tuple(map(torch.cat, zip(*(batch for _, batch in group), strict=True)))
            if len(group) == len(models):
                losses.copy_(self._compute(models, batch, result, rate))
                continue
            index = to_device(torch.tensor([row for row, _ in group]), models.device)
            chosen = models[index]
            chosen = aligned_rows(chosen).copy_(chosen)
            part = chosen if result is models else aligned_rows(chosen)
            losses[index] = self._compute(chosen, batch, part, rate)
            result[index] = part
        return losses

    def _compute(self, models: Tensor, batch: Batch, result: Tensor, rate: float | None = None) -> Tensor:
        for name, layer in self.layers.items():
            layer.stack, layer.result = self._views(name, models), self._views(name, result)
            layer.written, layer.uses, layer.rate = False, 0, rate
        losses = self.losses(self.module, batch).view(len(models), -1).mean(1)
        reused = rate is not None and any(layer.uses > 1 for layer in self.layers.values())
        if reused:
            # The backward pass needs the weights of a reused layer again, so they must not move before it ends.
            result = aligned_rows(models)
            for name, layer in self.layers.items():
                layer.result, layer.rate = self._views(name, result), None
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for layer in self.layers.values():
            if not layer.written and layer.rate is None:
                for gradient in layer.result:
                    if gradient is not None:
                        gradient.zero_()
            del layer.stack, layer.result
        if reused:
            models.sub_(result, alpha=rate or 0.0)
        return losses.detach()

    def _views(self, name: str, matrix: Tensor) -> tuple[Tensor, Tensor | None]:
        """The views of a layer's weight and bias in the cohort's matrix."""
        prefix = f"{name}." if name else ""
        bias = self.slots.get(f"{prefix}bias")
        return self.slots[f"{prefix}weight"].view(matrix), None if bias is None else bias.view(matrix)
