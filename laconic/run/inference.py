"""Faster forward passes of convolutional networks on a CPU, for evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from laconic.gradients.base import has_hooks
from laconic.gradients.compiled import CompiledOutputs
from laconic.gradients.network import may_be_plain

SLICE = 100
"""Examples that pass through a convolutional network together. The values between layers then fit in a core's cache."""


class HalvingMaxPool(nn.Module):
    """2 x 2 max-pooling as maxima of strided views. Torch's own loop branches on every value, mostly mispredicted."""

    def forward(self, input: Tensor) -> Tensor:
        height, width = (size // 2 * 2 for size in input.shape[-2:])
        rows = torch.maximum(input[..., 0:height:2, :width], input[..., 1:height:2, :width])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])


def accelerate(module: nn.Module, device: torch.device) -> nn.Module:
    """Change a module in evaluation mode, in place. Its parameters must not change afterward.

    Plain networks use compiled kernels, whose outputs differ from torch's in the last bits. Others have the same outputs.
    """
    if device.type != "cpu" or not any(isinstance(child, nn.Conv2d) for child in module.modules()):
        return module
    if may_be_plain(module):
        module.forward = _compiled(module)
        return module
    for child in list(module.modules()):
        for name, layer in child.named_children():
            if _halves(layer):
                setattr(child, name, HalvingMaxPool())
    whole = module.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        """The outputs of one slice after the other, if that is possible: tensors in, one tensor out."""
        sliceable = not named and inputs and all(isinstance(part, Tensor) and part.ndim for part in inputs)
        count = len(inputs[0]) if sliceable else 0
        if count <= SLICE or any(len(part) != count for part in inputs):
            return whole(*inputs, **named)
        outputs = []
        for parts in zip(*(part.split(SLICE) for part in inputs), strict=True):
            outputs.append(whole(*parts))
            if not isinstance(outputs[-1], Tensor) or outputs[-1].shape[:1] != parts[0].shape[:1]:
                return whole(*inputs)
        return torch.cat(outputs)

    module.forward = forward
    return module


def _compiled(module: nn.Module) -> Callable[..., Any]:
    whole, outputs = module.forward, CompiledOutputs(module)

    def forward(inputs: Tensor) -> Tensor:
        found = outputs(inputs)
        return whole(inputs) if found is None else found

    return forward


def _halves(layer: Any) -> bool:
    return (
        type(layer) is nn.MaxPool2d
        and not has_hooks(layer)
        and layer.kernel_size in (2, (2, 2))
        and layer.stride in (2, (2, 2))
        and layer.padding in (0, (0, 0))
        and layer.dilation in (1, (1, 1))
        and not (layer.return_indices or layer.ceil_mode)
    )
