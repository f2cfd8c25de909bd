"""Compiled forward and backward passes. Numba takes long to load: import this module where a kernel is called.

Activations have the examples of a batch innermost, so that every operation is vectorized over examples. The two loops that do
nearly all of the arithmetic, `_product` and `_correlate`, are emitted as vector instructions with their sums in registers:
LLVM does not find these by itself.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic, overload
from numpy.typing import NDArray

from laconic.core.compiled import kernel
from laconic.core.task import IGNORED

WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if WIDE else 32
ROWS, COLUMNS = ((6, 4, 2, 1), (4, 3, 2, 1)) if WIDE else ((4, 2, 1), (3, 2, 1))
"""Sizes of blocks of sums. The largest block leaves registers for one operand of each sum."""
_MOST_ROWS, _MOST_COLUMNS = ROWS[0], COLUMNS[0]
_INDEX = ir.IntType(64)
INPUT, PRODUCT, RELU, DROPOUT, POOL, OUTPUT = range(6)
OPERATION = np.dtype(
    [
        (name, np.int64)
        for name in (
            "kind blocks channels height width size source source_block source_channel source_row source_step "
            "target target_block target_channel target_row target_step weight bias count taps offsets linear stride "
            "examples starts clear mask clear_mask window_height window_width mean"
        ).split()
    ]
)
"""One operation of a compiled network: where its input (`source`) and output (`target`) begin, and their strides."""


class _Emitter:
    """Vector instructions on the arrays of an intrinsic's arguments."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self.arguments = [
            context.make_array(kind)(context, builder, value).data if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        dtype = next(kind.dtype for kind in signature.args if isinstance(kind, types.Array))
        self.number = context.get_value_type(dtype)
        self.lanes = VECTOR_BYTES * 8 // dtype.bitwidth
        self.vector = ir.VectorType(self.number, self.lanes)
        self.suffix = f"v{self.lanes}f{dtype.bitwidth}"

    def at(self, array: Any, *offsets: Any) -> Any:
        """The address of an array's entry."""
        total = offsets[0]
        for offset in offsets[1:]:
            total = self.builder.add(total, offset)
        return self.builder.gep(array, [total])

    def read(self, table: Any, index: Any) -> Any:
        return self.builder.load(self.builder.gep(table, [index]))

    def load(self, address: Any) -> Any:
        return self.builder.load(self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def splat(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, self.lanes)
        one = self.builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), zeros)

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        name = f"llvm.fma.{self.suffix}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])

    def total(self, vector: Any) -> Any:
        """The sum of the lanes, by halves."""
        width = self.lanes
        while width > 1:
            width //= 2
            index = ir.VectorType(ir.IntType(32), width)
            halves = [
                self.builder.shuffle_vector(vector, vector, ir.Constant(index, list(range(start, start + width))))
                for start in (0, width)
            ]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    def mask(self, count: Any) -> Any:
        """The first `count` lanes."""
        iota = ir.Constant(ir.VectorType(_INDEX, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", iota, self.splat(count))

    def masked_load(self, address: Any, mask: Any) -> Any:
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        kinds = [pointer.type, ir.IntType(32), mask.type, self.vector]
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(self.vector, kinds), f"llvm.masked.load.{self.suffix}.p0"
        )
        return self.builder.call(function, [pointer, ir.IntType(32)(4), mask, self.zero()])

    def masked_store(self, value: Any, address: Any, mask: Any) -> None:
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        kinds = [self.vector, pointer.type, ir.IntType(32), mask.type]
        function = cgutils.get_or_insert_function(
            self.builder.module, ir.FunctionType(ir.VoidType(), kinds), f"llvm.masked.store.{self.suffix}.p0"
        )
        self.builder.call(function, [value, pointer, ir.IntType(32)(4), mask])

    def zero(self) -> Any:
        return ir.Constant(self.vector, None)

    def sums(self, count: int) -> list[Any]:
        """Variables that start at 0."""
        slots = [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]
        for slot in slots:
            self.builder.store(self.zero(), slot)
        return slots

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with cgutils.for_range(self.builder, count, intp=_INDEX) as found:
            yield found.index


def _emitted(emit: Callable[..., None]) -> Any:
    """An intrinsic with the parameters of `emit`, without a result."""

    def typed(context: Any, *arguments: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            emitter = _Emitter(context, builder, signature, values)
            emit(emitter, *emitter.arguments)
            return context.get_dummy_value()

        return types.void(*arguments), generate

    typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]
    return intrinsic(typed)


def _for_sizes(e: _Emitter, rows: Any, columns: Any, emit: Callable[[int, int], None]) -> None:
    """The code of every block size, and a switch between them."""
    builder = e.builder
    number = builder.add(builder.mul(rows, ir.Constant(_INDEX, 100)), columns)
    end = builder.append_basic_block()
    switch = builder.switch(number, end)
    for block_rows, block_columns in itertools.product(ROWS, COLUMNS):
        block = builder.append_basic_block()
        switch.add_case(ir.Constant(_INDEX, 100 * block_rows + block_columns), block)
        builder.position_at_end(block)
        emit(block_rows, block_columns)
        builder.branch(end)
    builder.position_at_end(end)


@_emitted
def _product(
    e, weights, first, row_stride, tap_stride, inputs, start, taps, taps_at, count,
    result, to, offsets, offsets_at, base, base_at, base_stride, adds, scale, rows, columns, last,
):
    builder = e.builder

    def emit(m: int, v: int) -> None:
        sums = e.sums(m * v)
        each_row = [builder.mul(row_stride, ir.Constant(_INDEX, r)) for r in range(m)]
        with e.loop(count) as tap:
            source = e.at(inputs, start, e.read(taps, builder.add(taps_at, tap)))
            vectors = [e.load(e.at(source, ir.Constant(_INDEX, e.lanes * c))) for c in range(v)]
            weight = e.at(weights, first, builder.mul(tap, tap_stride))
            for r in range(m):
                factor = e.splat(builder.load(e.at(weight, each_row[r])))
                for c in range(v):
                    slot = sums[r * v + c]
                    builder.store(e.multiply_add(factor, vectors[c], builder.load(slot)), slot)
        mask, factor = e.mask(last), e.splat(scale)
        for r in range(m):
            target = e.at(result, to, e.read(offsets, builder.add(offsets_at, ir.Constant(_INDEX, r))))
            own = e.splat(builder.load(e.at(base, base_at, builder.mul(base_stride, ir.Constant(_INDEX, r)))))
            for c in range(v):
                address = e.at(target, ir.Constant(_INDEX, e.lanes * c))
                with builder.if_else(builder.icmp_signed("!=", adds, ir.Constant(_INDEX, 0))) as (then, otherwise):
                    with then:
                        old = e.masked_load(address, mask) if c == v - 1 else e.load(address)
                        added = builder.block
                    with otherwise:
                        fresh = builder.block
                start_value = builder.phi(e.vector)
                start_value.add_incoming(old, added)
                start_value.add_incoming(own, fresh)
                value = e.multiply_add(factor, builder.load(sums[r * v + c]), start_value)
                if c == v - 1:
                    e.masked_store(value, address, mask)
                else:
                    e.store(value, address)

    _for_sizes(e, rows, columns, emit)


@_emitted
def _correlate(
    e, gradients, start, channels, channels_at, out_block, out_row, inputs, begin, taps, taps_at, in_block, in_row,
    blocks, height, width, result, to, row_stride, adds, scale, rows, columns,
):
    builder = e.builder

    def emit(m: int, v: int) -> None:
        sums = e.sums(m * v)
        lanes = ir.Constant(_INDEX, e.lanes)
        left = [e.at(gradients, start, e.read(channels, builder.add(channels_at, ir.Constant(_INDEX, r)))) for r in range(m)]
        right = [e.at(inputs, begin, e.read(taps, builder.add(taps_at, ir.Constant(_INDEX, c)))) for c in range(v)]
        with e.loop(blocks) as block, e.loop(height) as y:
            of_left = builder.add(builder.mul(block, out_block), builder.mul(y, out_row))
            of_right = builder.add(builder.mul(block, in_block), builder.mul(y, in_row))
            with e.loop(width) as x:
                step = builder.mul(x, lanes)
                vectors = [e.load(e.at(one, of_right, step)) for one in right]
                for r in range(m):
                    factor = e.load(e.at(left[r], of_left, step))
                    for c in range(v):
                        slot = sums[r * v + c]
                        builder.store(e.multiply_add(factor, vectors[c], builder.load(slot)), slot)
        for r in range(m):
            for c in range(v):
                address = e.at(result, to, builder.mul(row_stride, ir.Constant(_INDEX, r)), ir.Constant(_INDEX, c))
                old = builder.select(builder.icmp_signed("!=", adds, ir.Constant(_INDEX, 0)), builder.load(address), ir.Constant(e.number, 0))
                builder.store(builder.fadd(old, builder.fmul(scale, e.total(builder.load(sums[r * v + c])))), address)

    _for_sizes(e, rows, columns, emit)


@kernel
def _block(remaining: int, most: int) -> int:
    """The size of the next block: the largest one, or what an even division of the rest leaves."""
    if remaining >= most:
        return most
    if most == 6 and remaining == 5:
        return 4
    if most == 6 and remaining == 3:
        return 2
    if most == 4 and ROWS[0] == 4 and remaining == 3:
        return 2
    return remaining


@kernel
def multiply(weights, first, row_stride, tap_stride, inputs, begin, in_block, in_row, taps, taps_at, count,
             result, to, out_block, out_row, offsets, offsets_at, rows, base, base_at, base_stride, adds, scale,
             blocks, height, width, last, lanes):
    for block in range(blocks):
        for y in range(height):
            x = 0
            while x < width:
                columns = min(width - x, _MOST_COLUMNS)
                full = last if x + columns == width else lanes
                start = begin + block * in_block + y * in_row + x * lanes
                target = to + block * out_block + y * out_row + x * lanes
                row = 0
                while row < rows:
                    size = _block(rows - row, _MOST_ROWS)
                    _product(weights, first + row * row_stride, row_stride, tap_stride, inputs, start, taps, taps_at, count,
                             result, target, offsets, offsets_at + row, base, base_at + row * base_stride, base_stride,
                             adds, scale, size, columns, full)
                    row += size
                x += columns


@kernel
def correlate(gradients, start, channels, channels_at, rows, out_block, out_row, inputs, begin, taps, taps_at, count,
              in_block, in_row, blocks, height, width, result, to, row_stride, adds, scale):
    row = 0
    while row < rows:
        size = _block(rows - row, _MOST_ROWS)
        tap = 0
        while tap < count:
            columns = min(count - tap, _MOST_COLUMNS)
            _correlate(gradients, start, channels, channels_at + row, out_block, out_row, inputs, begin, taps, taps_at + tap,
                       in_block, in_row, blocks, height, width, result, to + row * row_stride + tap, row_stride, adds, scale,
                       size, columns)
            tap += columns
        row += size


@_emitted
def _pool(e, values, start, row_stride, step, height, width, result, to, mean):
    """One vector of a pooled image: the maximum (NaN if one value is NaN) or the mean of its window."""
    builder = e.builder
    best, total = e.sums(2)
    builder.store(e.load(e.at(values, start)), best)
    with e.loop(height) as y, e.loop(width) as x:
        value = e.load(e.at(values, start, builder.mul(y, row_stride), builder.mul(x, step)))
        old = builder.load(best)
        larger = builder.or_(builder.fcmp_ordered(">", value, old), builder.fcmp_unordered("uno", value, value))
        builder.store(builder.select(larger, value, old), best)
        builder.store(builder.fadd(builder.load(total), value), total)
    scale = builder.fdiv(ir.Constant(e.number, 1), builder.sitofp(builder.mul(height, width), e.number))
    average = builder.fmul(builder.load(total), e.splat(scale))
    chosen = builder.icmp_signed("!=", mean, ir.Constant(_INDEX, 0))
    e.store(builder.select(chosen, average, builder.load(best)), e.at(result, to))


@_emitted
def _pool_back(e, values, gradients, start, row_stride, step, height, width, to, mean):
    """The gradient of `_pool`. That of a maximum goes to the first of equals, as in torch."""
    builder = e.builder
    best, free = e.sums(1)[0], cgutils.alloca_once(builder, ir.VectorType(ir.IntType(1), e.lanes))
    builder.store(e.load(e.at(values, start)), best)
    builder.store(ir.Constant(ir.VectorType(ir.IntType(1), e.lanes), [1] * e.lanes), free)
    chosen = builder.icmp_signed("!=", mean, ir.Constant(_INDEX, 0))
    gradient = e.load(e.at(gradients, to))
    scale = builder.fdiv(ir.Constant(e.number, 1), builder.sitofp(builder.mul(height, width), e.number))
    share = builder.fmul(gradient, e.splat(scale))
    with e.loop(height) as y, e.loop(width) as x:
        value, old = e.load(e.at(values, start, builder.mul(y, row_stride), builder.mul(x, step))), builder.load(best)
        builder.store(builder.select(builder.fcmp_ordered(">", value, old), value, old), best)
    with e.loop(height) as y, e.loop(width) as x:
        offset = builder.add(builder.mul(y, row_stride), builder.mul(x, step))
        unused = builder.load(free)
        equal = builder.fcmp_ordered("==", e.load(e.at(values, start, offset)), builder.load(best))
        first = builder.and_(unused, equal)
        builder.store(builder.and_(unused, builder.not_(equal)), free)
        routed = builder.select(first, gradient, e.zero())
        e.store(builder.select(chosen, share, routed), e.at(gradients, start, offset))


@kernel
def _spread(source, begin, count, lanes, values, op, to):
    """Write the examples [count, channels, height, width] of a flat array into a tensor, with zeros in unused lanes."""
    size = op.channels * op.height * op.width
    for block in range(op.blocks):
        full = min(lanes, count - block * lanes)
        for channel in range(op.channels):
            for y in range(op.height):
                target = to + block * op.target_block + channel * op.target_channel + y * op.target_row
                first = begin + block * lanes * size + (channel * op.height + y) * op.width
                for x in range(op.width):
                    for lane in range(full):
                        values[target + lane] = source[first + x + lane * size]
                    for lane in range(full, lanes):
                        values[target + lane] = 0
                    target += op.target_step


@kernel
def _cross_entropy(values, gradients, op, targets, count):
    """The mean loss; its gradient with respect to the logits replaces `gradients`."""
    loss, counted = 0.0, 0
    for example in range(count):
        counted += targets[example] != IGNORED
    step = op.target_step
    gradients[op.target : op.target + op.channels * step] = 0
    for example in range(count):
        target, at = targets[example], op.target + example
        if target == IGNORED:
            continue
        if target < 0 or target >= op.channels:
            raise IndexError("Target is out of bounds.")
        largest = values[at]
        for channel in range(1, op.channels):
            largest = max(largest, values[at + channel * step])
        total = values.dtype.type(0)
        for channel in range(op.channels):
            value = np.exp(values[at + channel * step] - largest)
            gradients[at + channel * step] = value
            total += value
        loss += np.log(total) + largest - values[at + target * step]
        scale = values.dtype.type(1) / (total * values.dtype.type(counted))
        for channel in range(op.channels):
            gradients[at + channel * step] *= scale
        gradients[at + target * step] -= values.dtype.type(1) / values.dtype.type(counted)
    return loss / counted if counted else np.nan


@kernel
def _squared_error(values, gradients, op, targets, count):
    """The mean over examples and outputs; its gradient replaces `gradients`."""
    loss, step = 0.0, op.target_step
    gradients[op.target : op.target + op.channels * step] = 0
    scale = values.dtype.type(1) / values.dtype.type(count * op.channels)
    for channel in range(op.channels):
        for example in range(count):
            at = op.target + channel * step + example
            difference = values[at] - targets[example * op.channels + channel]
            loss += difference * difference
            gradients[at] = 2 * difference * scale
    return loss * scale


def _criterion(values, gradients, op, targets, count):
    """The loss of `laconic.classification` for integer targets, else that of `laconic.regression`."""


@overload(_criterion)
def _choose_criterion(values, gradients, op, targets, count):
    chosen = _cross_entropy if isinstance(targets.dtype, types.Integer) else _squared_error
    return lambda values, gradients, op, targets, count: chosen(values, gradients, op, targets, count)


@kernel
def forward(program, tables, constants, model, values, inputs, masks, count, lanes):
    """Run all layers. The first operation is the input, the last the output."""
    one, drawn = model.dtype.type(1), 0
    for index in range(len(program)):
        op = program[index]
        if op.kind == INPUT:
            _spread(inputs, 0, count, lanes, values, op, op.target)
        elif op.kind == PRODUCT:
            base, base_at, base_stride = (model, op.bias, 1) if op.bias >= 0 else (constants, 0, 0)
            multiply(model, op.weight, op.count, 1, values, op.source, op.source_block, op.source_row, tables, op.taps, op.count,
                     values, op.target, op.target_block, op.target_row, tables, op.offsets, op.channels,
                     base, base_at, base_stride, 0, one, op.blocks, op.height, op.width, lanes, lanes)
        elif op.kind == RELU:
            for at in range(op.source, op.source + op.size):
                value = values[at]
                values[at] = value if not value < 0 else 0
        elif op.kind == DROPOUT:
            _spread(masks, drawn, count, lanes, values, op, op.mask)
            drawn += count * op.channels * op.height * op.width
            for at in range(op.size):
                values[op.source + at] *= values[op.clear_mask + at]
        elif op.kind == POOL:
            for block in range(op.blocks):
                for channel in range(op.channels):
                    for y in range(op.height):
                        for x in range(op.width):
                            _pool(values, op.source + block * op.source_block + channel * op.source_channel
                                  + y * op.window_height * op.source_row + x * op.window_width * op.source_step,
                                  op.source_row, op.source_step, op.window_height, op.window_width, values,
                                  op.target + block * op.target_block + channel * op.target_channel + y * op.target_row
                                  + x * op.target_step, op.mean)


@kernel
def backward(program, tables, constants, model, values, gradients, rows, result, adds, scale, lanes):
    """Write the gradients of all parameters to `result`, or add `scale` times them."""
    one = model.dtype.type(1)
    for index in range(len(program) - 1, 0, -1):
        op = program[index]
        if op.kind == PRODUCT:
            if index > 1:  # before the weights move
                if not op.linear:
                    gradients[op.clear : op.clear + op.size] = 0
                multiply(model, op.weight, 1, op.count, gradients, op.target, op.target_block, op.target_row,
                         tables, op.offsets, op.channels, gradients, op.source, op.source_block, op.source_row,
                         tables, op.taps, op.count, constants, 0, 0, 1 - op.linear, one,
                         op.blocks, op.height, op.width, lanes, lanes)
            if op.linear:
                for example in range(op.width * lanes):
                    for tap in range(op.count):
                        rows[example * op.stride + tap] = values[op.source + tap * op.source_step + example]
                multiply(gradients, op.target, op.target_step, 1, rows, 0, 0, 0, tables, op.examples, op.width * lanes,
                         result, op.weight, 0, 0, tables, op.starts, op.channels, constants, 0, 0, adds, scale,
                         1, 1, op.stride // lanes, op.count - op.stride + lanes, lanes)
            else:
                correlate(gradients, op.target, tables, op.offsets, op.channels, op.target_block, op.target_row,
                          values, op.source, tables, op.taps, op.count, op.source_block, op.source_row,
                          op.blocks, op.height, op.width, result, op.weight, op.count, adds, scale)
            if op.bias >= 0:
                correlate(gradients, op.target, tables, op.offsets, op.channels, op.target_block, op.target_row,
                          constants, lanes, tables, 0, 1, 0, 0,
                          op.blocks, op.height, op.width, result, op.bias, 1, adds, scale)
        elif op.kind == RELU:
            for at in range(op.source, op.source + op.size):
                if not values[at] > 0:
                    gradients[at] = 0
        elif op.kind == DROPOUT:
            for at in range(op.size):
                gradients[op.source + at] *= values[op.clear_mask + at]
        elif op.kind == POOL:
            for block in range(op.blocks):
                for channel in range(op.channels):
                    for y in range(op.height):
                        for x in range(op.width):
                            _pool_back(values, gradients,
                                  op.source + block * op.source_block + channel * op.source_channel
                                  + y * op.window_height * op.source_row + x * op.window_width * op.source_step,
                                  op.source_row, op.source_step, op.window_height, op.window_width,
                                  op.target + block * op.target_block + channel * op.target_channel + y * op.target_row
                                  + x * op.target_step, op.mean)


@kernel
def train(program, tables, constants, model, values, gradients, rows, inputs, targets, masks, count, lanes, result, adds, scale):
    """One gradient of one model on one batch. Returns the loss."""
    forward(program, tables, constants, model, values, inputs, masks, count, lanes)
    loss = _criterion(values, gradients, program[len(program) - 1], targets, count)
    backward(program, tables, constants, model, values, gradients, rows, result, adds, scale, lanes)
    return loss
