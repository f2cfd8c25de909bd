"""The way back of a multilayer perceptron, written out: what `StackedGradients` computes, without autograd.

Where a module is a plain sequence of linear layers and ReLUs and the loss is the cross-entropy, the whole step is a dozen
products on tensors that stay in the processor's cache. Recording and replaying it takes as long as the small ones of them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import Batch, Task, is_cross_entropy
from laconic.gradients.hooks import has_hooks
from laconic.gradients.stacked import StackedGradients, StackedLinear, descend, multiply, write

Layer = tuple[Tensor, Tensor | None]
"""[C, out, in] and [C, out]: weights and biases, views of a cohort's matrix."""
_through_relu = torch.ops.aten.threshold_backward.default


def is_perceptron(module: nn.Module, task: Task) -> bool:
    """Linear layers with ReLUs between them, after a Flatten or not, that are trained by the cross-entropy."""
    if type(module) is not nn.Sequential or not is_cross_entropy(task) or has_hooks(module):
        return False
    kinds = [type(each) for each in module]
    if len(set(map(id, module))) < len(module):  # a layer that is used twice
        return False
    if kinds[:1] == [nn.Flatten]:
        flatten = module[0]
        assert isinstance(flatten, nn.Flatten)
        if (flatten.start_dim, flatten.end_dim) != (1, -1):
            return False
        kinds = kinds[1:]
    layers, between = kinds[::2], kinds[1::2]
    return len(layers) == len(between) + 1 and set(layers) == {nn.Linear} and set(between) <= {nn.ReLU}


class PerceptronGradients(StackedGradients):
    """Every client's rows times its own weights, and back; `StackedGradients` does what is not a plain matrix."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout) -> None:
        super().__init__(module, task, layout)
        assert isinstance(module, nn.Sequential)
        self.names = [name for name, each in module.named_children() if isinstance(each, StackedLinear)]
        self.flattens = type(module[0]) is nn.Flatten
        self.last: tuple[Tensor, list[Layer]] | None = None
        """A cohort's matrix and the layers in it: the steps of a client's work come with the same one."""

    def _compute(self, models: Tensor, batch: Batch, result: Tensor, rate: float | None = None) -> Tensor:
        inputs, targets = batch
        if targets.ndim != 1 or not (self.flattens or inputs.ndim == 2):
            return super()._compute(models, batch, result, rate)
        stack = self._layers(models)
        into = stack if result is models else self._layers(result)
        rows = inputs.reshape(len(models), -1, stack[0][0].shape[2])
        with torch.no_grad():
            seen = [rows]  # what each layer was given
            for layer in stack[:-1]:
                seen.append(multiply(seen[-1], *layer).relu_())
            losses, gradient = _cross_entropy(multiply(seen[-1], *stack[-1]), targets.view(len(models), -1, 1))
            for at in reversed(range(len(stack))):
                weight, _ = stack[at]
                # Before the weights move.
                back = torch.bmm(gradient, weight) if at else gradient
                if rate is None:
                    write(gradient, seen[at], *into[at])
                else:
                    descend(gradient, seen[at], *into[at], rate)
                # ReLU lets through where it gave something.
                gradient = _through_relu(back, seen[at], 0) if at else back
        return losses

    def _layers(self, matrix: Tensor) -> list[Layer]:
        if self.last is None or self.last[0] is not matrix:
            self.last = matrix, [self._views(name, matrix) for name in self.names]
        return self.last[1]


def _cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each client, and its gradient by the logits [C, B, classes]: (softmax - target) / B."""
    logarithms = torch.log_softmax(logits, -1)
    examples = logits.shape[1]
    losses = logarithms.gather(-1, targets).sum((1, 2)).div_(-examples)
    gradient = logarithms.exp_()
    gradient.scatter_add_(-1, targets, torch.full_like(targets, -1, dtype=gradient.dtype))
    return losses, gradient.div_(examples)
