"""Plain networks, translated for the compiled kernels: convolutions, linear layers, ReLU, pooling, dropout.

An activation is stored in blocks of as many examples as a vector register has lanes. Images are [block, channel, row, column,
lane], with zeros around them where the next convolution pads. Vectors are [entry, block, lane], so that a linear layer is a
convolution over blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.gradients.base import has_hooks

Shape = tuple[int, ...]
_DROPOUTS = (nn.Dropout, nn.Dropout2d)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)


@dataclass(frozen=True)
class Layer:
    """One layer, and the shape of one example before it."""

    name: str
    module: Any
    shape: Shape
    result: Shape


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
    if kind in _DROPOUTS and module.p < 1 and (kind is nn.Dropout or len(shape) == 3):
        return shape
    if kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return (prod(shape),)
    if kind is nn.Linear and shape == (module.in_features,):
        return (module.out_features,)
    if len(shape) != 3:
        return None
    if kind in _POOLS and _is_plain_pool(module):
        result = tuple(size // window for size, window in zip(shape[1:], _pair(module.kernel_size), strict=True))
        return (shape[0], *result) if min(result) else None
    if kind is nn.Conv2d and _is_plain_convolution(module) and shape[0] == module.in_channels:
        sizes = zip(shape[1:], module.padding, module.kernel_size, strict=True)
        result = tuple(size + 2 * padding - kernel + 1 for size, padding, kernel in sizes)
        return (module.out_channels, *result) if min(result) > 0 else None
    return None


def _pair(value: Any) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _is_plain_pool(module: Any) -> bool:
    plain = _pair(module.stride) == _pair(module.kernel_size) and _pair(module.padding) == (0, 0)
    if type(module) is nn.MaxPool2d:
        return plain and _pair(module.dilation) == (1, 1) and not (module.ceil_mode or module.return_indices)
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
    for index, (one, other) in enumerate(zip(layers, layers[1:], strict=False)):
        if type(one.module) is nn.ReLU and type(other.module) is nn.MaxPool2d:
            layers[index] = other
            layers[index + 1] = Layer(one.name, one.module, other.result, other.result)
    return layers


def _keeps_all(module: Any) -> bool:
    return type(module) in _DROPOUTS and module.p == 0


@dataclass(frozen=True)
class Place:
    """Where an activation is stored, and the strides between its entries."""

    start: int
    shape: Shape
    padding: tuple[int, int]
    blocks: int
    lanes: int
    flat: bool

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Channels, rows and columns, without padding."""
        channels, height, width = self.shape if len(self.shape) == 3 else (self.shape[0], 1, 1)
        return channels, height, width

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Of blocks, channels, rows and columns."""
        channels, height, width = self.sizes
        height, width = height + 2 * self.padding[0], width + 2 * self.padding[1]
        step = self.lanes * (self.blocks if self.flat else 1)
        block = self.lanes if self.flat else channels * height * width * step
        return block, height * width * step, width * step, step

    @property
    def size(self) -> int:
        """With padding and all blocks."""
        block, channel, _, _ = self.strides
        return self.sizes[0] * channel if self.flat else self.blocks * block

    @property
    def inside(self) -> int:
        """The first entry that is not padding."""
        _, _, row, step = self.strides
        return self.start + self.padding[0] * row + self.padding[1] * step


class Program:
    """The operations of a network for batches of up to `blocks` blocks, and the memory that they work on."""

    def __init__(self, layers: Sequence[Layer], layout: Layout, blocks: int) -> None:
        from laconic.gradients import kernels

        self.dtype = np.dtype(str(layout.dtype).removeprefix("torch."))
        self.lanes, self.blocks = kernels.VECTOR_BYTES // self.dtype.itemsize, blocks
        self.slots = {slot.name: slot.offset for slot in layout.parameters}
        self.used, self.longest, self.widest = 0, 0, blocks
        self.tables: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self.operations: list[dict[str, int]] = []
        self.masks: list[tuple[Any, Shape]] = []
        self._translate(layers, kernels)
        self.program = np.zeros(len(self.operations), kernels.OPERATION)
        for record, operation in zip(self.program, self.operations, strict=True):
            for name, value in operation.items():
                record[name] = value
        self.table = np.concatenate(self.tables)
        self.values, self.gradients = self._zeros(self.used), self._zeros(self.used)
        self.rows = self._zeros(self.longest * blocks * self.lanes)
        self.constants = self._zeros((self.widest + 1) * self.lanes)
        self.constants[self.lanes :] = 1

    def _zeros(self, count: int) -> NDArray[Any]:
        """Aligned to vectors."""
        unit = 64 // self.dtype.itemsize
        memory = np.zeros(count + unit, self.dtype)
        start = -memory.ctypes.data // self.dtype.itemsize % unit
        return memory[start : start + count]

    def _place(self, shape: Shape, following: Sequence[Layer]) -> Place:
        """Memory for an activation, as the next layer that is not computed in place reads it."""
        weighted = (one.module for one in following if type(one.module) not in (nn.ReLU, *_DROPOUTS))
        reader = next(weighted, None)
        flat = reader is None or type(reader) is nn.Linear
        padding = reader.padding if type(reader) is nn.Conv2d else (0, 0)
        place = Place(self.used, shape, padding, self.blocks, self.lanes, flat)
        self.used += place.size
        return place

    def _index(self, table: Any) -> int:
        """The position of a new table."""
        position = sum(map(len, self.tables))
        self.tables.append(np.asarray(table, np.int64).reshape(-1))
        return position

    def _translate(self, layers: Sequence[Layer], kernels: Any) -> None:
        place = self._place(layers[0].shape, layers)
        self._add(kernels.INPUT, place, place)
        for index, layer in enumerate(layers):
            module, following = layer.module, layers[index + 1 :]
            if type(module) is nn.ReLU:
                self._add(kernels.RELU, place, place, source=place.start, size=place.size)
            elif type(module) in _DROPOUTS:
                mask = self._place(place.shape, layers[index:])
                more = {"source": place.start, "size": place.size, "mask": mask.inside, "clear_mask": mask.start}
                self._add(kernels.DROPOUT, place, place, **more)
                self.masks.append((module, layer.shape))
            elif type(module) in _POOLS:
                place = self._pool(place, self._place(layer.result, following), _pair(module.kernel_size), module)
            else:
                place = self._product(place, layer, following, kernels)
        self.output = place
        self._add(kernels.OUTPUT, place, place)

    def _pool(self, source: Place, target: Place, window: tuple[int, int], module: Any) -> Place:
        from laconic.gradients import kernels

        mean = int(type(module) is nn.AvgPool2d)
        self._add(kernels.POOL, source, target, window_height=window[0], window_width=window[1], mean=mean)
        return target

    def _product(self, source: Place, layer: Layer, following: Sequence[Layer], kernels: Any) -> Place:
        module, linear = layer.module, type(layer.module) is nn.Linear
        target = self._place(layer.result, following)
        copied = target.flat and not linear
        if copied:  # a convolution writes images
            target = Place(self.used, layer.result, (0, 0), self.blocks, self.lanes, False)
            self.used += target.size
        _, channel, row, step = source.strides
        kernel = (1, 1) if linear else module.kernel_size
        channels = source.size // step if linear else source.sizes[0]
        inner = [np.arange(size) for size in (channels, *kernel)]
        steps = (step, 0, 0) if linear else (channel, row, step)
        taps = sum(np.ix_(*(index * stride for index, stride in zip(inner, steps, strict=True))))
        count, outputs = taps.size, layer.result[0]
        stride = -(-count // self.lanes) * self.lanes
        examples = self.blocks * self.lanes
        prefix = f"{layer.name}." if layer.name else ""
        self._add(
            kernels.PRODUCT, source, target,
            source=source.start, clear=source.start, size=source.size, linear=int(linear), count=count,
            weight=self.slots[f"{prefix}weight"], bias=self.slots.get(f"{prefix}bias", -1),
            taps=self._index(taps), offsets=self._index(np.arange(outputs) * target.strides[1]), stride=stride,
            examples=self._index(np.arange(examples) * stride), starts=self._index(np.arange(outputs) * count),
            **({"blocks": 1, "height": 1, "width": self.blocks, "source_step": step} if linear else {}),
        )
        if linear:
            self.longest = max(self.longest, stride)
        else:
            self.widest = max(self.widest, target.sizes[2])
        if copied:
            return self._pool(target, self._place(layer.result, following), (1, 1), None)
        return target

    def _add(self, kind: int, source: Place, target: Place, /, **more: int) -> None:
        names = ("block", "channel", "row", "step")
        channels, height, width = target.sizes
        entry = {"kind": kind, "blocks": self.blocks, "channels": channels, "height": height, "width": width}
        for side, place in (("source", source), ("target", target)):
            entry |= {side: place.inside}
            entry |= {f"{side}_{name}": stride for name, stride in zip(names, place.strides, strict=True)}
        self.operations.append(entry | more)
