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
from laconic.gradients.emitter import VECTOR_BYTES
from laconic.gradients.network import DROPOUTS, POOLS, Layer, Shape, pair
from laconic.gradients.sparse import WORD


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


BAND_BYTES = 20_000
"""The size of the part of an image whose gradients are computed together, to stay in the first-level cache."""
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
        self._used, self._most, self._widest = 0, 0, blocks
        self._tables: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        self._forward: list[Operation] = []
        self._backward: list[list[Operation]] = []
        self.output = self._translate(layers)
        self.whole = _records([*self._forward, *itertools.chain(*reversed(self._backward))])
        self.forward = self.whole[: len(self._forward)]
        self.tables = np.concatenate(self._tables)
        self.values, self.gradients = self._zeros(self._used), self._zeros(self._used)
        self.scratch = self._zeros(self._most)
        self.constants = self._zeros((self._widest + 1) * self.lanes)
        self.constants[self.lanes :] = 1
        self._no_labels, self._no_targets = np.empty(0, np.int64), np.empty(0, self.dtype)

    def train(
        self,
        model: Tensor,
        inputs: Tensor,
        targets: Tensor,
        result: Tensor,
        adds: bool,
        counts: Sequence[int],
        scales: Sequence[float],
    ) -> list[float]:
        """For batches of `counts` examples in turn: write `scale` times the gradient to `result`, or add it there.

        Returns the losses.
        """
        if targets.is_floating_point():
            wanted = self._no_labels, targets.reshape(-1).numpy()
        else:
            wanted = targets.numpy(), self._no_targets
        return self._run(self.whole, model, inputs, result, *wanted, counts, adds, scales)

    def outputs(self, model: Tensor, inputs: Tensor, count: int) -> Tensor:
        """The outputs [count, n] of the network."""
        self._run(self.forward, model, inputs, model, self._no_labels, self._no_targets, [count], False, [1.0])
        place = self.output
        rows = self.values[place.start : place.start + place.size].reshape(prod(place.shape), -1)
        return torch.from_numpy(rows[:, :count].T.copy())

    def _run(
        self,
        operations: NDArray[Any],
        model: Tensor,
        inputs: Tensor,
        result: Tensor,
        labels: NDArray[Any],
        targets: NDArray[Any],
        counts: Sequence[int],
        adds: bool,
        scales: Sequence[float],
    ) -> list[float]:
        arrays = model.numpy(), result.numpy(), self.values, self.gradients, self.scratch, self.constants
        sizes, factors, losses = np.array(counts), np.array(scales, self.dtype), np.empty(len(counts))
        kernels.run(operations, self.tables, arrays, inputs.numpy(), labels, targets, sizes, int(adds), factors, losses)
        return losses.tolist()

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
        following = list(layers)
        while following:
            layer = following.pop(0)
            module = layer.module
            if type(module) is nn.ReLU:
                whole = {"right_at": place.start, "size": place.size}
                self._forward.append(self._operation(kernels.RELU, place, **whole))
                self._add_backward(self._operation(kernels.RELU_BACK, place, **whole))
            elif type(module) in DROPOUTS:
                self._dropout(place, layer, following)
            elif type(module) in POOLS:
                place = self._pool(place, self._place(layer.result, following), module)
            elif self._is_mostly_zero(layer, following):
                place = self._pooled_convolution(place, layer, following.pop(0), following)
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
        self._forward.append(self._pooling(kernels.POOL, source, target, module))
        self._add_backward(self._pooling(kernels.POOL_BACK, source, target, module))
        return target

    def _pooling(self, kind: int, source: Place, target: Place, module: Any) -> Operation:
        window = pair(module.kernel_size)
        more = {"window_height": window[0], "window_width": window[1], "mean": int(type(module) is nn.AvgPool2d)}
        return self._operation(kind, target, right=source, result=target, **more)

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

    def _is_mostly_zero(self, layer: Layer, following: Sequence[Layer]) -> bool:
        """Whether to skip the zeros in the gradient of a layer's outputs: a convolution before max-pooling."""
        if type(layer.module) is not nn.Conv2d or not following or type(following[0].module) is not nn.MaxPool2d:
            return False
        padded = -(-layer.shape[0] // self.lanes) * self.lanes
        return padded <= layer.shape[0] * prod(pair(following[0].module.kernel_size)) // 2

    def _pooled_convolution(self, source: Place, layer: Layer, pool: Layer, following: Sequence[Layer]) -> Place:
        image = self._place(layer.result, (), image=True)
        target = self._place(pool.result, following)
        self._multiply_forward(source, image, layer)
        self._forward.append(self._pooling(kernels.POOL, image, target, pool.module))
        operation = self._pooling(kernels.SPARSE_BACK, image, target, pool.module)
        operation |= self._channels_last(source, target, layer.module.kernel_size, pair(pool.module.kernel_size))
        operation |= {"left_at": self._parameters(layer)[0], "inner": int(bool(self._backward))}
        self._backward.append([operation, *self._bias_back(target, layer)])
        return target

    def _channels_last(self, source: Place, target: Place, kernel: Any, window: tuple[int, int]) -> Operation:
        """Sizes, tables and memory for the backward pass of a convolution before max-pooling."""
        inputs, height, width = source.sizes
        height, width = height + 2 * source.padding[0], width + 2 * source.padding[1]
        outputs, rows, columns = target.sizes
        cells, depth = rows * columns, -(-inputs // self.lanes) * self.lanes
        weight = prod(kernel) * depth
        memory = {
            "images": self.lanes * height * width * depth,
            "slopes": self.lanes * height * width * depth,
            "by_output": self.lanes * outputs * 2 * cells,
            "by_cell": self.lanes * outputs * 2 * cells,
            "weights": outputs * weight,
            "sums": outputs * weight,
            "size": WORD,  # vectors are read beyond the end of what is used
        }
        ends = list(itertools.accumulate(memory.values()))
        self._most = max(self._most, ends[-1])
        first = np.arange(rows)[:, None] * window[0] * width + np.arange(columns) * window[1]
        lines = max(1, BAND_BYTES // (window[0] * width * depth * self.dtype.itemsize))
        return {
            "taps": self._table(first * depth),
            "offsets": self._table(np.arange(outputs) * weight),
            "base_at": source.start,
            "base_block": source.strides[0],
            "base_channel": source.strides[1],
            "count": inputs,
            "input_height": height,
            "input_width": width,
            "kernel_height": kernel[0],
            "kernel_width": kernel[1],
            "depth": depth,
            "image": height * width * depth,
            "cells": cells,
            "band": min(WORD, lines * columns),
        } | dict(zip(memory, [0, *ends], strict=False))

    def _parameters(self, layer: Layer) -> tuple[int, int | None]:
        """The positions of a layer's weights and of its bias."""
        prefix = f"{layer.name}." if layer.name else ""
        return self.slots[f"{prefix}weight"], self.slots.get(f"{prefix}bias")

    def _multiply_forward(self, source: Place, target: Place, layer: Layer) -> tuple[int, int]:
        """Add the product of a layer to the forward pass. Returns the tables of its inputs and outputs."""
        weight, bias = self._parameters(layer)
        taps = _taps(source, None if type(layer.module) is nn.Linear else layer.module.kernel_size)
        of_inputs, of_outputs = self._table(taps), self._table(np.arange(layer.result[0]) * target.strides[1])
        base = {"base": kernels.MODEL, "base_at": bias, "base_stride": 1} if bias is not None else _NO_BASE
        sizes = {"taps": of_inputs, "count": len(taps), "left_row": len(taps), "left_tap": 1, "right_at": source.start}
        sizes |= {"left": kernels.MODEL, "left_at": weight, "offsets": of_outputs, "rows": layer.result[0], **base}
        sizes |= self._line(layer)
        self._forward.append(self._operation(kernels.MULTIPLY, target, right=source, result=target, **sizes))
        return of_inputs, of_outputs

    def _line(self, layer: Layer) -> Operation:
        """The sizes of a linear layer, whose blocks are the columns of one line."""
        return {"blocks": 1, "height": 1, "width": self.blocks} if type(layer.module) is nn.Linear else {}

    def _multiply(self, source: Place, target: Place, layer: Layer) -> None:
        linear, outputs = type(layer.module) is nn.Linear, layer.result[0]
        of_inputs, of_outputs = self._multiply_forward(source, target, layer)
        weight, _ = self._parameters(layer)
        inputs = prod(layer.module.weight.shape[1:])
        backward: list[Operation] = []
        if self._backward:
            whole = {"result_at": source.start, "size": source.size}
            backward += [] if linear else [self._operation(kernels.CLEAR, source, **whole)]
            sizes = {"taps": of_outputs, "count": outputs, "left_row": 1, "left_tap": inputs, "offsets": of_inputs}
            sizes |= {"rows": inputs, "former": kernels.KEEP if linear else kernels.ADD, **self._line(layer)}
            sizes |= {"left": kernels.MODEL, "left_at": weight, **_NO_BASE}
            gradient = self._operation(kernels.MULTIPLY, target, right=target, result=source, **sizes, **whole)
            backward.append(gradient | {"right": kernels.GRADIENTS, "result": kernels.GRADIENTS})
        sizes = {"left": kernels.GRADIENTS, "left_at": target.inside, "rows": outputs}
        sizes |= {"result": kernels.RESULT, "result_at": weight, "result_row": inputs, "former": kernels.MOVE}
        if linear:
            backward += self._outer_product(source, target, inputs, sizes)
        else:
            sizes |= {"offsets": of_outputs, "left_block": target.strides[0], "left_row": target.strides[2]}
            sizes |= {"taps": of_inputs, "count": inputs, "right_at": source.start}
            backward.append(self._operation(kernels.CORRELATE, target, right=source, **sizes))
        self._backward.append([*backward, *self._bias_back(target, layer)])

    def _bias_back(self, target: Place, layer: Layer) -> list[Operation]:
        """The gradient of a bias is the sum of those of the outputs: their products with 1."""
        _, bias = self._parameters(layer)
        if bias is None:
            return []
        outputs, height, width = target.sizes
        line = {"blocks": 1, "height": 1, "width": height * width * self.blocks} if target.flat else {}
        self._widest = max(self._widest, line.get("width", width))
        sizes = {"left": kernels.GRADIENTS, "left_at": target.inside, "rows": outputs, "former": kernels.MOVE}
        sizes |= {"offsets": self._table(np.arange(outputs) * target.strides[1]), "left_block": target.strides[0]}
        sizes |= {"left_row": target.strides[2], "right": kernels.CONSTANTS, "right_at": self.lanes, "count": 1}
        sizes |= {"result": kernels.RESULT, "result_at": bias, "result_row": 1, **line}
        return [self._operation(kernels.CORRELATE, target, **sizes)]

    def _outer_product(self, source: Place, target: Place, inputs: int, sizes: Operation) -> list[Operation]:
        """The gradient of a linear layer's weights: columns are inputs, so the inputs are transposed first."""
        padded, examples = -(-inputs // self.lanes) * self.lanes, self.blocks * self.lanes
        self._most = max(self._most, padded * examples)
        more = {"taps": self._table(np.arange(examples) * padded), "count": examples, "right": kernels.SCRATCH}
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
