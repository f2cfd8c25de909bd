"""Plain networks as lists of operations for the compiled kernels. Import this module where it is used: it loads Numba.

An activation is stored in blocks of as many examples as a vector register has lanes. Images are [block, channel, row,
column, lane], with zeros around them where the next convolution pads. Vectors are [entry, block, lane], so that a linear
layer is a convolution over blocks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.gradients import kernels
from laconic.gradients.network import DROPOUTS, POOLS, Layer, Shape, pair
from laconic.gradients.vectors import VECTOR_BYTES


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


Operation = dict[str, int]
_NO_BASE = {"base": kernels.CONSTANTS, "base_at": 0, "base_stride": 0}


class Program:
    """The operations of a network on batches of up to `blocks` blocks, and the memory that they work on."""

    def __init__(self, layers: Sequence[Layer], layout: Layout, blocks: int) -> None:
        self.dtype = np.dtype(str(layout.dtype).removeprefix("torch."))
        self.lanes, self.blocks = VECTOR_BYTES // self.dtype.itemsize, blocks
        self.slots = {slot.name: slot.offset for slot in layout.parameters}
        self.masks: list[tuple[Any, Shape]] = []
        """Dropout layers, and the shape of one example there."""
        self._used, self._longest, self._widest = 0, 0, blocks
        self._tables: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._forward: list[Operation] = []
        self._backward: list[list[Operation]] = []
        self.output = self._translate(layers)
        self.whole = _records([*self._forward, *itertools.chain(*reversed(self._backward))])
        self.forward = self.whole[: len(self._forward)]
        self.tables = np.concatenate(self._tables)
        self.values, self.gradients = self._zeros(self._used), self._zeros(self._used)
        self.transposed = self._zeros(self._longest * blocks * self.lanes)
        self.constants = self._zeros((self._widest + 1) * self.lanes)
        self.constants[self.lanes :] = 1
        self._no_labels, self._no_targets = np.empty(0, np.int64), np.empty(0, self.dtype)

    def train(self, model: Tensor, inputs: Tensor, targets: Tensor, result: Tensor, adds: bool, scale: float) -> float:
        """Write `scale` times the gradient to `result`, or add it there. Returns the loss."""
        labels, wanted = self._no_labels, self._no_targets
        if targets.is_floating_point():
            wanted = targets.reshape(-1).numpy()
        else:
            labels = targets.numpy()
        scale = self.dtype.type(scale)
        return self._run(self.whole, model, inputs, result, labels, wanted, len(targets), int(adds), scale)

    def outputs(self, model: Tensor, inputs: Tensor, count: int) -> Tensor:
        """The outputs [count, n] of the network."""
        one = self.dtype.type(1)
        self._run(self.forward, model, inputs, model, self._no_labels, self._no_targets, count, 0, one)
        place = self.output
        rows = self.values[place.start : place.start + place.size].reshape(prod(place.shape), -1)
        return torch.from_numpy(rows[:, :count].T.copy())

    def _run(self, operations: Any, model: Tensor, inputs: Tensor, result: Tensor, *rest: Any) -> float:
        arrays = model.numpy(), result.numpy(), self.values, self.gradients, self.transposed, self.constants
        return kernels.run(operations, self.tables, arrays, inputs.numpy(), *rest)

    def _zeros(self, count: int) -> NDArray[Any]:
        """Aligned to vectors."""
        unit = 64 // self.dtype.itemsize
        memory = np.zeros(count + unit, self.dtype)
        start = -memory.ctypes.data // self.dtype.itemsize % unit
        return memory[start : start + count]

    def _place(self, shape: Shape, following: Sequence[Layer], image: bool = False) -> Place:
        """Memory for an activation, as the next layer that is not computed in place reads it."""
        readers = (one.module for one in following if type(one.module) not in (nn.ReLU, *DROPOUTS))
        reader = next(readers, None)
        flat = not image and (reader is None or type(reader) is nn.Linear)
        padding: Any = reader.padding if type(reader) is nn.Conv2d else (0, 0)
        place = Place(self._used, shape, padding, self.blocks, self.lanes, flat)
        self._used += place.size
        return place

    def _table(self, entries: Any) -> int:
        """The position of a new table."""
        position = sum(map(len, self._tables))
        self._tables.append(np.asarray(entries, np.int64).reshape(-1))
        return position

    def _translate(self, layers: Sequence[Layer]) -> Place:
        place = self._place(layers[0].shape, layers)
        self._forward.append(self._operation(kernels.SPREAD, place, result=place))
        for index, layer in enumerate(layers):
            module, following = layer.module, layers[index + 1 :]
            if type(module) is nn.ReLU:
                whole = {"right_at": place.start, "size": place.size}
                self._forward.append(self._operation(kernels.RELU, place, **whole))
                self._add_backward(self._operation(kernels.RELU_BACK, place, **whole))
            elif type(module) in DROPOUTS:
                self._dropout(place, layer, layers[index:])
            elif type(module) in POOLS:
                place = self._pool(place, self._place(layer.result, following), module)
            else:
                place = self._product(place, layer, following)
        self._backward.append([self._operation(kernels.LOSS, place, result=place)])
        return place

    def _add_backward(self, *operations: Operation) -> None:
        """Nothing before the first trained layer needs a gradient."""
        if self._backward:
            self._backward.append([*operations])

    def _dropout(self, place: Place, layer: Layer, following: Sequence[Layer]) -> None:
        mask = self._place(place.shape, following)
        whole = {"right_at": mask.start, "result_at": place.start, "size": place.size}
        self._forward.append(self._operation(kernels.SPREAD, mask, result=mask))
        self._forward.append(self._operation(kernels.MASK, place, result=kernels.VALUES, **whole))
        self._add_backward(self._operation(kernels.MASK, place, result=kernels.GRADIENTS, **whole))
        self.masks.append((layer.module, layer.shape))

    def _pool(self, source: Place, target: Place, module: Any) -> Place:
        window = pair(module.kernel_size)
        more = {"window_height": window[0], "window_width": window[1], "mean": int(type(module) is nn.AvgPool2d)}
        for kind, add in ((kernels.POOL, self._forward.append), (kernels.POOL_BACK, self._add_backward)):
            add(self._operation(kind, target, right=source, result=target, **more))
        return target

    def _product(self, source: Place, layer: Layer, following: Sequence[Layer]) -> Place:
        """A linear layer, or a convolution, which always writes images."""
        target = self._place(layer.result, following)
        if type(layer.module) is nn.Linear:
            self._multiply(source, target, layer)
        elif target.flat:
            image = self._place(layer.result, (), image=True)
            self._multiply(source, image, layer)
            self._pool(image, target, nn.AvgPool2d(1))
        else:
            self._multiply(source, target, layer)
        return target

    def _multiply(self, source: Place, target: Place, layer: Layer) -> None:
        linear, outputs = type(layer.module) is nn.Linear, layer.result[0]
        prefix = f"{layer.name}." if layer.name else ""
        weight, bias = self.slots[f"{prefix}weight"], self.slots.get(f"{prefix}bias")
        taps = _taps(source, None if linear else layer.module.kernel_size)
        inputs = len(taps)
        of_inputs, of_outputs = self._table(taps), self._table(np.arange(outputs) * target.strides[1])
        shape = {"blocks": 1, "height": 1, "width": self.blocks} if linear else {}
        model, begin = {"left": kernels.MODEL, "left_at": weight}, {"right_at": source.start}
        base = {"base": kernels.MODEL, "base_at": bias, "base_stride": 1} if bias is not None else _NO_BASE
        sizes = {"taps": of_inputs, "count": inputs, "left_row": inputs, "left_tap": 1}
        sizes |= {"offsets": of_outputs, "rows": outputs, **shape, **model, **begin, **base}
        self._forward.append(self._operation(kernels.MULTIPLY, target, right=source, result=target, **sizes))
        backward: list[Operation] = []
        if self._backward:
            whole = {"result_at": source.start, "size": source.size}
            backward += [] if linear else [self._operation(kernels.CLEAR, source, **whole)]
            sizes = {"taps": of_outputs, "count": outputs, "left_row": 1, "left_tap": inputs, "offsets": of_inputs}
            sizes |= {"rows": inputs, "former": kernels.KEEP if linear else kernels.ADD, **shape, **model, **_NO_BASE}
            gradient = self._operation(kernels.MULTIPLY, target, right=target, result=source, **sizes, **whole)
            backward.append(gradient | {"right": kernels.GRADIENTS, "result": kernels.GRADIENTS})
        sizes = {"left": kernels.GRADIENTS, "left_at": target.inside, "rows": outputs}
        sizes |= {"result": kernels.RESULT, "result_at": weight, "result_row": inputs, "former": kernels.MOVE}
        images = sizes | {"offsets": of_outputs, "left_block": target.strides[0], "left_row": target.strides[2]}
        if linear:
            backward += self._outer_product(source, target, inputs, sizes)
        else:
            self._widest = max(self._widest, target.sizes[2])
            more = images | {"taps": of_inputs, "count": inputs, **begin}
            backward.append(self._operation(kernels.CORRELATE, target, right=source, **more))
        if bias is not None:  # its gradient is the sum of those of the outputs: their products with 1
            ones = {"right": kernels.CONSTANTS, "right_at": self.lanes, "count": 1, "result_at": bias, "result_row": 1}
            backward.append(self._operation(kernels.CORRELATE, target, **images | ones | shape))
        self._backward.append(backward)

    def _outer_product(self, source: Place, target: Place, inputs: int, sizes: Operation) -> list[Operation]:
        """The gradient of a linear layer's weights: columns are inputs, so the inputs are transposed first."""
        padded, examples = -(-inputs // self.lanes) * self.lanes, self.blocks * self.lanes
        self._longest = max(self._longest, padded)
        more = {"taps": self._table(np.arange(examples) * padded), "count": examples, "right": kernels.TRANSPOSED}
        more |= {
            "offsets": self._table(np.arange(sizes["rows"]) * inputs),
            "left_row": target.strides[3],
            "left_tap": 1,
        }
        more |= {"width": padded // self.lanes, "last": inputs - padded + self.lanes, "blocks": 1, "height": 1}
        return [
            self._operation(kernels.TRANSPOSE, source, right=source, rows=inputs, size=padded),
            self._operation(kernels.MULTIPLY, target, **sizes | more | _NO_BASE),
        ]

    def _operation(self, kind: int, looped: Place, **fields: Any) -> Operation:
        """An operation with the sizes of a place. A place as operand stands for its values: position and strides."""
        channels, height, width = looped.sizes
        entry = {"kind": kind, "lanes": self.lanes, "last": self.lanes, "blocks": self.blocks}
        entry |= {"channels": channels, "height": height, "width": width}
        if kind == kernels.SPREAD and looped.padding == (0, 0):  # one row, which is faster
            entry |= {"channels": 1, "height": 1, "width": prod(looped.sizes)}
        for side, place in fields.items():
            if isinstance(place, Place):
                names = ("block", "channel", "row", "step")
                entry |= {side: kernels.VALUES, f"{side}_at": place.inside}
                entry |= {f"{side}_{name}": stride for name, stride in zip(names, place.strides, strict=True)}
        return entry | {name: value for name, value in fields.items() if not isinstance(value, Place)}


def _taps(source: Place, kernel: tuple[int, int] | None) -> NDArray[np.int64]:
    """The positions of an output's inputs, relative to the first one: all entries, or a convolution's window."""
    _, channel, row, step = source.strides
    if kernel is None:
        return np.arange(prod(source.shape)) * step
    channels, rows, columns = (np.arange(size) for size in (source.sizes[0], *kernel))
    taps: NDArray[np.int64] = channels[:, None, None] * channel + rows[:, None] * row + columns * step
    return taps.reshape(-1)


def _records(operations: list[Operation]) -> NDArray[Any]:
    records = np.zeros(len(operations), kernels.OPERATION)
    for record, operation in zip(records, operations, strict=True):
        for name, value in operation.items():
            record[name] = value
    return records
