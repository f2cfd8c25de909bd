"""An explicit backward pass for multilayer perceptrons: the result of `StackedGradients` without autograd.

For a plain sequence of linear layers and ReLUs with the cross-entropy loss, a step is a dozen products of small tensors. The
overhead of autograd would take as long as the smaller products.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import Batch, Task, is_cross_entropy
from laconic.gradients.base import has_hooks
from laconic.gradients.stacked import StackedGradients, StackedLinear, descend, multiply, write

Layer = tuple[Tensor, Tensor | None]
"""Weights [C, out, in] and biases [C, out]: views of a cohort's matrix."""
_through_relu = torch.ops.aten.threshold_backward.default


def is_perceptron(module: nn.Module, task: Task) -> bool:
    """Whether a module is linear layers with ReLUs between them, after an optional Flatten, with the cross-entropy loss."""
    if type(module) is not nn.Sequential or not is_cross_entropy(task) or has_hooks(module):
        return False
    kinds = [type(child) for child in module]
    if len(set(map(id, module))) < len(module):  # a layer is used twice
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
    """The forward and backward pass of all clients by matrix products. Other inputs than matrices use the base class."""

    def __init__(self, module: nn.Module, task: Task, layout: Layout) -> None:
        super().__init__(module, task, layout)
        assert isinstance(module, nn.Sequential)
        self.names = [name for name, child in module.named_children() if isinstance(child, StackedLinear)]
        self.flattens = type(module[0]) is nn.Flatten
        self.last: tuple[Tensor, list[Layer]] | None = None
        """The last matrix and its views by layer: all local steps of a chunk use the same matrix."""

    def _compute(self, models: Tensor, batch: Batch, result: Tensor, rate: float | None = None) -> Tensor:
        inputs, targets = batch
        if targets.ndim != 1 or not (self.flattens or inputs.ndim == 2):
            return super()._compute(models, batch, result, rate)
        stack = self._layers(models)
        into = stack if result is models else self._layers(result)
        rows = inputs.reshape(len(models), -1, stack[0][0].shape[2])
        with torch.no_grad():
            layer_inputs = [rows]
            for layer in stack[:-1]:
                layer_inputs.append(multiply(layer_inputs[-1], *layer).relu_())
            logits = multiply(layer_inputs[-1], *stack[-1])
            losses, gradient = _cross_entropy(logits, targets.view(len(models), -1, 1))
            for index in reversed(range(len(stack))):
                weight, _ = stack[index]
                # Computed before `descend` changes the weights.
                input_gradient = torch.bmm(gradient, weight) if index else gradient
                if rate is None:
                    write(gradient, layer_inputs[index], *into[index])
                else:
                    descend(gradient, layer_inputs[index], *into[index], rate)
                # The gradient of ReLU is 1 where its output, the input of this layer, is positive.
                gradient = _through_relu(input_gradient, layer_inputs[index], 0) if index else input_gradient
        return losses

    def _layers(self, matrix: Tensor) -> list[Layer]:
        if self.last is None or self.last[0] is not matrix:
            self.last = matrix, [self._views(name, matrix) for name in self.names]
        return self.last[1]


def _cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of each client, and its gradient with respect to the logits [C, B, classes]: (softmax - target) / B."""
    logarithms = torch.log_softmax(logits, -1)
    examples = logits.shape[1]
    losses = logarithms.gather(-1, targets).sum((1, 2)).div_(-examples)
    gradient = logarithms.exp_()
    gradient.scatter_add_(-1, targets, torch.full_like(targets, -1, dtype=gradient.dtype))
    return losses, gradient.div_(examples)
