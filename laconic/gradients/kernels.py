"""The compiled operations of plain networks. Numba takes long to load: import this module where a kernel is called."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from laconic.core.compiled import kernel
from laconic.core.task import IGNORED
from laconic.gradients.emitter import COLUMNS, ROWS
from laconic.gradients.loops import block_size, inlined, transpose_matrix
from laconic.gradients.sparse import pooled_convolution_back
from laconic.gradients.vectors import (
    TAPS,
    correlate,
    multiply_by,
    pool,
    pool_back,
    product,
    rectify,
    rectify_back,
)

MODEL, RESULT, VALUES, GRADIENTS, SCRATCH, CONSTANTS = range(6)
"""The arrays that operations work on."""
SPREAD, MULTIPLY, CORRELATE, RELU, RELU_BACK, MASK, POOL, POOL_BACK, CLEAR, TRANSPOSE, SPARSE_BACK, LOSS = range(12)
KEEP, ADD, MOVE = range(3)
"""What happens to the former result: it is replaced; added to; or replaced by the gradient, or moved by it."""
_FIELDS = """
kind lanes blocks channels height width size last count taps offsets rows former left left_at left_block left_row left_tap
right right_at right_block right_channel right_row right_step result result_at result_block result_channel result_row
result_step base base_at base_stride base_block base_channel window_height window_width mean inner input_height
input_width kernel_height kernel_width depth image cells band images slopes by_output by_cell weights sums
"""
OPERATION = np.dtype([(name, np.int64) for name in _FIELDS.split()])
"""One operation: its kind, its sizes, and the arrays, positions and strides of its two operands and its result."""


@inlined
def _multiply(op: Any, arrays: Any, tables: Any, adds: int, scale: Any) -> None:
    """A matrix product for every row of an image: a convolution, a linear layer, or their gradients."""
    left, right, result, base = arrays[op.left], arrays[op.right], arrays[op.result], arrays[op.base]
    for line in range(op.blocks * op.height):
        block, y = divmod(line, op.height)
        x = 0
        while x < op.width:
            columns = block_size(op.width - x, COLUMNS[0])
            last = op.last if x + columns == op.width else op.lanes
            start = op.right_at + block * op.right_block + y * op.right_row + x * op.lanes
            to = op.result_at + block * op.result_block + y * op.result_row + x * op.lanes
            for tap in range(0, op.count, TAPS):
                row, former = 0, 1 if tap else adds
                while row < op.rows:
                    rows = block_size(op.rows - row, ROWS[0])
                    at = op.left_at + tap * op.left_tap + row * op.left_row
                    product(
                        left,
                        at,
                        right,
                        start,
                        result,
                        to,
                        base,
                        tables,
                        op,
                        tap,
                        row,
                        former,
                        scale,
                        rows,
                        columns,
                        last,
                    )
                    row += rows
            x += columns


@inlined
def _correlate(op: Any, arrays: Any, tables: Any, adds: int, scale: Any) -> None:
    """The gradient of a convolution's weights."""
    left, right, result = arrays[op.left], arrays[op.right], arrays[op.result]
    row = 0
    while row < op.rows:
        rows, tap = block_size(op.rows - row, ROWS[0]), 0
        while tap < op.count:
            columns = block_size(op.count - tap, COLUMNS[0])
            target = op.result_at + row * op.result_row + tap
            correlate(left, right, result, target, tables, op, row, tap, adds, scale, rows, columns)
            tap += columns
        row += rows


@inlined
def _pool(op: Any, values: Any, gradients: Any) -> None:
    """All windows of all images, forward or backward."""
    for block in range(op.blocks):
        for channel in range(op.channels):
            for y in range(op.height):
                start = op.right_at + block * op.right_block + channel * op.right_channel
                start += y * op.window_height * op.right_row
                target = op.result_at + block * op.result_block + channel * op.result_channel + y * op.result_row
                for _ in range(op.width):
                    if op.kind == POOL:
                        pool(values, start, values, target, op)
                    else:
                        pool_back(values, gradients, start, target, op)
                    start += op.window_width * op.right_step
                    target += op.result_step


@inlined
def _spread(op: Any, source: Any, at: int, count: int, values: Any) -> None:
    """Write examples [count, channels, height, width] where they are stored, with zeros in unused lanes."""
    size = op.channels * op.height * op.width
    for block in range(op.blocks):
        full = min(op.lanes, count - block * op.lanes)
        for channel in range(op.channels):
            for y in range(op.height):
                target = op.result_at + block * op.result_block + channel * op.result_channel + y * op.result_row
                first = at + block * op.lanes * size + (channel * op.height + y) * op.width
                transpose_matrix(source, first, size, full, op.width, op.lanes, values, target, op.result_step)
                for x in range(op.width if full < op.lanes else 0):
                    values[target + x * op.result_step + full : target + x * op.result_step + op.lanes] = 0


@inlined
def _cross_entropy(op: Any, values: Any, gradients: Any, targets: Any, count: int) -> float:
    """The mean loss. Its gradient with respect to the logits goes to `gradients`."""
    number = values.dtype.type
    step, loss, counted = op.result_step, 0.0, 0
    for example in range(count):
        counted += targets[example] != IGNORED
    gradients[op.result_at : op.result_at + op.channels * step] = 0
    for example in range(count):
        target, first = targets[example], op.result_at + example
        if target == IGNORED:
            continue
        if target < 0 or target >= op.channels:
            raise IndexError("Target is out of bounds.")
        largest = values[first]
        for at in range(first, first + op.channels * step, step):
            largest = max(largest, values[at])
        total = number(0)
        for at in range(first, first + op.channels * step, step):
            gradients[at] = np.exp(values[at] - largest)
            total += gradients[at]
        loss += np.log(total) + largest - values[first + target * step]
        for at in range(first, first + op.channels * step, step):
            gradients[at] /= total * number(counted)
        gradients[first + target * step] -= number(1) / number(counted)
    return loss / counted if counted else np.nan


@inlined
def _squared_error(op: Any, values: Any, gradients: Any, targets: Any, count: int) -> float:
    """The mean loss over examples and outputs. Its gradient goes to `gradients`."""
    loss, size = 0.0, count * op.channels
    gradients[op.result_at : op.result_at + op.channels * op.result_step] = 0
    for channel in range(op.channels):
        for example in range(count):
            at = op.result_at + channel * op.result_step + example
            difference = values[at] - targets[example * op.channels + channel]
            loss += difference * difference
            gradients[at] = 2 * difference / values.dtype.type(size)
    return float(loss / size)


@inlined
def _loss(op: Any, arrays: Any, labels: Any, targets: Any, count: int) -> float:
    """The mean loss, whose gradient goes to the gradients of the outputs."""
    if len(labels) > 0:
        return _cross_entropy(op, arrays[VALUES], arrays[GRADIENTS], labels, count)
    return _squared_error(op, arrays[VALUES], arrays[GRADIENTS], targets, count)


@inlined
def _operate(op: Any, arrays: Any, tables: Any, count: int, adds: int, scale: Any) -> None:
    """One operation on activations or parameters."""
    values, gradients, scratch, kind = arrays[VALUES], arrays[GRADIENTS], arrays[SCRATCH], op.kind
    if kind in (MULTIPLY, CORRELATE):
        own_adds, own_scale = (adds, scale) if op.former == MOVE else (op.former, values.dtype.type(1))
        if kind == MULTIPLY:
            _multiply(op, arrays, tables, own_adds, own_scale)
        else:
            _correlate(op, arrays, tables, own_adds, own_scale)
    elif kind == RELU:
        rectify(values, op.right_at, op.size // op.lanes)
    elif kind == RELU_BACK:
        rectify_back(values, gradients, op.right_at, op.size // op.lanes)
    elif kind == MASK:
        multiply_by(arrays[op.result], op.result_at, values, op.right_at, op.size // op.lanes)
    elif kind in (POOL, POOL_BACK):
        _pool(op, values, gradients)
    elif kind == SPARSE_BACK:
        pooled_convolution_back(
            op, arrays[MODEL], arrays[RESULT], values, gradients, scratch, tables, count, adds, scale
        )
    elif kind == CLEAR:
        gradients[op.result_at : op.result_at + op.size] = 0
    else:
        columns = op.blocks * op.lanes
        transpose_matrix(values, op.right_at, op.right_step, op.rows, columns, op.lanes, scratch, 0, op.size)


@kernel
def run(
    program: NDArray[Any],
    tables: NDArray[np.int64],
    arrays: tuple[NDArray[Any], ...],
    inputs: NDArray[Any],
    labels: NDArray[np.int64],
    targets: NDArray[Any],
    counts: NDArray[np.int64],
    adds: int,
    scales: NDArray[Any],
    losses: NDArray[np.float64],
) -> None:
    """Run all operations for every batch: the next `count` examples of `inputs`, and their dropout masks after them.

    The losses are cross-entropy with `labels`, or without them squared errors. If `adds`, `scale` times the gradient is
    added to the result, else it replaces the result.
    """
    used = seen = 0
    for step in range(len(counts)):
        count, scale = counts[step], scales[step]
        for index in range(len(program)):
            op = program[index]
            if op.kind == SPREAD:
                _spread(op, inputs, used, count, arrays[VALUES])
                used += count * op.channels * op.height * op.width
            elif op.kind == LOSS:
                losses[step] = _loss(op, arrays, labels[seen:], targets[seen * op.channels :], count)
            else:
                _operate(op, arrays, tables, count, adds, scale)
        seen += count
