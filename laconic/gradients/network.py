"""Plain networks: sequences of convolutions, linear layers, ReLU, pooling and dropout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from laconic.core.layout import Layout
from laconic.gradients.base import has_hooks

Shape = tuple[int, ...]
DROPOUTS = (nn.Dropout, nn.Dropout2d)
POOLS = (nn.MaxPool2d, nn.AvgPool2d)


@dataclass(frozen=True)
class Layer:
    """One layer, and the shape of one example before it."""

    name: str
    module: Any
    shape: Shape
    result: Shape


def may_be_plain(module: nn.Module) -> bool:
    """Whether all layers are of kinds that can be supported, and all parameters are trained."""
    kinds = (nn.Sequential, nn.Conv2d, nn.Linear, nn.ReLU, nn.Flatten, nn.Identity, *DROPOUTS, *POOLS)
    return all(type(child) in kinds for child in module.modules()) and all(p.requires_grad for p in module.parameters())


def layers_of(module: nn.Module, shape: Shape, layout: Layout) -> list[Layer] | None:
    """The layers of a plain network for examples of this shape; None if the network is not supported."""
    trained = {slot.name for slot in layout.parameters}
    found: list[Layer] = []
    used: set[str] = set()
    for name, child in _flattened(module):
        result = _result_shape(child, shape)
        if result is None or has_hooks(child):
            return None
        parameters = {f"{name}.{key}" if name else key for key, _ in child.named_parameters()}
        if not parameters <= trained or parameters & used:
            return None
        used |= parameters
        found.append(Layer(name, child, shape, result))
        shape = result
    whole = used == trained and len(shape) == 1 and not layout.buffers and not has_hooks(module)
    return _reordered(found) if whole else None


def _flattened(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of nested sequences, in order, with their names."""
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module._modules.items():
        assert child is not None
        yield from _flattened(child, f"{prefix}.{name}" if prefix else name)


def _result_shape(module: Any, shape: Shape) -> Shape | None:
    """The shape of one example after a layer; None if the layer is not supported."""
    kind = type(module)
    if kind in (nn.ReLU, nn.Identity):
        return shape
    if kind in DROPOUTS and module.p < 1 and (kind is nn.Dropout or len(shape) == 3):
        return shape
    if kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return (prod(shape),)
    if kind is nn.Linear and shape == (module.in_features,):
        return (module.out_features,)
    return _image_shape(module, shape) if len(shape) == 3 else None


def _image_shape(module: Any, shape: Shape) -> Shape | None:
    """The shape of one image after a pooling layer or a convolution; None if the layer is not supported."""
    kind = type(module)
    if kind in POOLS and _is_plain_pool(module):
        result = tuple(size // window for size, window in zip(shape[1:], pair(module.kernel_size), strict=True))
        return (shape[0], *result) if min(result) else None
    if kind is nn.Conv2d and _is_plain_convolution(module) and shape[0] == module.in_channels:
        sizes = zip(shape[1:], module.padding, module.kernel_size, strict=True)
        result = tuple(size + 2 * padding - kernel + 1 for size, padding, kernel in sizes)
        return (module.out_channels, *result) if min(result) > 0 else None
    return None


def pair(value: Any) -> tuple[int, int]:
    """The two sizes of a window."""
    return value if isinstance(value, tuple) else (value, value)


def _is_plain_pool(module: Any) -> bool:
    plain = pair(module.stride) == pair(module.kernel_size) and pair(module.padding) == (0, 0)
    if type(module) is nn.MaxPool2d:
        return plain and pair(module.dilation) == (1, 1) and not (module.ceil_mode or module.return_indices)
    return plain and not module.ceil_mode and module.divisor_override is None


def _is_plain_convolution(module: nn.Conv2d) -> bool:
    return (
        module.stride == module.dilation == (1, 1)
        and module.groups == 1
        and not isinstance(module.padding, str)
        and module.padding_mode == "zeros"
    )


def _reordered(layers: list[Layer]) -> list[Layer]:
    """ReLU after max-pooling instead of before: the same values and gradients, on a smaller image."""
    layers = [one for one in layers if type(one.module) not in (nn.Identity, nn.Flatten) and not _keeps_all(one.module)]
    for index, (one, other) in enumerate(itertools.pairwise(layers)):
        if type(one.module) is nn.ReLU and type(other.module) is nn.MaxPool2d:
            layers[index] = other
            layers[index + 1] = Layer(one.name, one.module, other.result, other.result)
    return layers


def _keeps_all(module: Any) -> bool:
    return type(module) in DROPOUTS and (module.p == 0 or not module.training)
