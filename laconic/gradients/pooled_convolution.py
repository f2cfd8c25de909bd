"""A fused layer on the CPU: convolution, then ReLU and 2 x 2 max-pooling in either order.

The gradient of the pooling is nonzero at no more than one of four positions, and ReLU removes it where all four values are
negative. So at least three quarters of the convolution's output gradient is zero. Torch multiplies by these zeros; this
layer skips them. The backward pass of LeNet-5's two such layers takes a third of torch's time (docs/performance.md).
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from laconic.gradients.base import has_hooks

MOST_CHANNELS = 64
"""The maximum number of input channels. In wider layers torch's dense kernels are faster."""


def fuse(module: nn.Module) -> nn.Module:
    """Fuse such layers in place, in nested `nn.Sequential` modules only: the order of other modules is unknown."""
    if type(module) is not nn.Sequential:
        return module
    children = list(module)
    for position, child in enumerate(children):
        fuse(child)
        following = children[position + 1 : position + 3]
        either_way = any(_rectifies(a) and _halves(b) for a, b in itertools.permutations(following, 2))
        if either_way and _is_plain(child):
            # The convolution keeps its name, so the layout of its parameters does not change.
            child.__class__ = PooledConvolution
            module[position + 1], module[position + 2] = nn.Identity(), nn.Identity()
    return module


def _is_plain(module: Any) -> bool:
    return (
        type(module) is nn.Conv2d
        and not has_hooks(module)
        and module.in_channels <= MOST_CHANNELS
        and module.stride == module.dilation == (1, 1)
        and module.padding == (0, 0)
        and module.groups == 1
    )


def _rectifies(module: Any) -> bool:
    return type(module) is nn.ReLU and not has_hooks(module)


def _halves(module: Any) -> bool:
    return (
        type(module) is nn.MaxPool2d
        and not has_hooks(module)
        and module.kernel_size in (2, (2, 2))
        and module.stride in (2, (2, 2))
        and module.padding in (0, (0, 0))
        and module.dilation in (1, (1, 1))
        and not (module.ceil_mode or module.return_indices)
    )


class PooledConvolution(nn.Conv2d):
    """max_pool(relu(convolution(x)))."""

    def forward(self, input: Tensor) -> Tensor:
        """Unusual inputs (not a batch, not on the CPU, bfloat16, smaller than one window) use torch's operators."""
        ordinary = input.ndim == 4 and input.device.type == "cpu" and input.dtype in (torch.float32, torch.float64)
        ordinary = ordinary and not torch.is_autocast_enabled("cpu")
        if not ordinary or min(input.shape[2] - self.kernel_size[0], input.shape[3] - self.kernel_size[1]) < 1:
            return F.max_pool2d(F.relu(super().forward(input)), 2)
        result: Tensor = _Pooled.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return result


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        from laconic.gradients import kernels

        images = F.conv2d(input, weight, bias).permute(0, 2, 3, 1).contiguous()
        count, height, width, channels = images.shape
        result = images.new_empty(count, height // 2, width // 2, channels)
        chosen = torch.empty(result.shape, dtype=torch.uint8)
        kernels.rectify_and_halve(images.numpy(), result.numpy(), chosen.numpy())
        ctx.save_for_backward(input, weight, chosen)
        return result.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from laconic.gradients import kernels

        input, weight, chosen = ctx.saved_tensors
        gradient = gradients[0].permute(0, 2, 3, 1).contiguous()
        images = input.detach().permute(0, 2, 3, 1).contiguous()
        weights = weight.detach().permute(0, 2, 3, 1).contiguous()
        of_images = torch.zeros_like(images) if ctx.needs_input_grad[0] else images.new_empty(0)
        of_weights, of_bias = torch.zeros_like(weights), weights.new_zeros(len(weights))
        _, height, width, channels = weights.shape
        back = kernels.gradient_of_pooled(height, width * channels, channels, ctx.needs_input_grad[0])
        arguments = (gradient, chosen, images, weights.view(-1), of_weights.view(-1), of_bias, of_images.view(-1))
        back(*(argument.numpy() for argument in arguments))
        return (
            of_images.permute(0, 3, 1, 2) if ctx.needs_input_grad[0] else None,
            of_weights.permute(0, 3, 1, 2),
            of_bias if ctx.needs_input_grad[2] else None,
        )
