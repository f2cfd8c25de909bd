"""Vector instructions for the loops of `laconic.gradients.kernels` that LLVM does not vectorize by itself.

Every function here is a Numba intrinsic: its body emits LLVM code at its place in the caller. Numba's cache does not see a
change of this file: save kernels.py as well.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

WIDE = bool(llvm.get_host_cpu_features().get("avx512f"))
VECTOR_BYTES = 64 if WIDE else 32
ROWS, COLUMNS = ((6, 4, 2, 1), (4, 2, 1)) if WIDE else ((4, 2, 1), (3, 2, 1))
"""Sizes of the blocks of sums that are kept in registers: 24 of 32 registers, or 12 of 16."""
TAPS = 128
"""The maximum number of products that are added at once, so that their operands stay in the first-level cache."""
_cgutils: Any = cgutils  # it has no types
_INDEX, _LANE, _BIT = ir.IntType(64), ir.IntType(32), ir.IntType(1)


class _Emitter:
    """The arguments of an intrinsic by name, arrays as pointers, and instructions on vectors of their numbers."""

    def __init__(self, names: list[str], context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.builder, self.named = builder, {}
        for name, kind, value in zip(names, signature.args, values, strict=True):
            is_array = isinstance(kind, types.Array)
            self.named[name] = context.make_array(kind)(context, builder, value).data if is_array else value
            if isinstance(kind, types.Record):
                self.record, self.fields = value, kind.fields
        dtype = next(kind.dtype for kind in signature.args if isinstance(kind, types.Array))
        self.number, self.lanes = context.get_value_type(dtype), VECTOR_BYTES * 8 // dtype.bitwidth
        self.vector = ir.VectorType(self.number, self.lanes)
        self.zero = ir.Constant(self.vector, None)
        self.suffix = f"v{self.lanes}f{dtype.bitwidth}"

    def __getattr__(self, name: str) -> Any:
        """An argument, or a field of the record among the arguments."""
        if name in self.named:
            return self.named[name]
        start = self.builder.bitcast(self.record, ir.IntType(8).as_pointer())
        field = self.builder.gep(start, [ir.Constant(_INDEX, self.fields[name].offset)])
        return self.builder.load(self.builder.bitcast(field, _INDEX.as_pointer()))

    def at(self, array: Any, *offsets: Any) -> Any:
        """The address of an entry."""
        for offset in offsets:
            array = self.builder.gep(array, [_constant(offset)])
        return array

    def times(self, one: Any, other: Any) -> Any:
        return self.builder.mul(_constant(one), _constant(other))

    def plus(self, one: Any, other: Any) -> Any:
        return self.builder.add(_constant(one), _constant(other))

    def load(self, address: Any) -> Any:
        return self.builder.load(self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.bitcast(address, self.vector.as_pointer()), align=4)

    def splat(self, scalar: Any) -> Any:
        vector = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        one = self.builder.insert_element(vector, scalar, ir.Constant(_LANE, 0))
        return self.shuffle(one, one, [0] * self.lanes)

    def shuffle(self, one: Any, other: Any, order: list[int]) -> Any:
        return self.builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_LANE, len(order)), order))

    def multiply_add(self, a: Any, b: Any, c: Any) -> Any:
        return self._call("llvm.fma", self.vector, [a, b, c])

    def masked_load(self, address: Any, mask: Any, other: Any) -> Any:
        """A vector in memory; the lanes of `other` where the mask is 0."""
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        return self._call("llvm.masked.load", self.vector, [pointer, ir.Constant(_LANE, 4), mask, other], ".p0")

    def masked_store(self, value: Any, address: Any, mask: Any) -> None:
        pointer = self.builder.bitcast(address, self.vector.as_pointer())
        self._call("llvm.masked.store", ir.VoidType(), [value, pointer, ir.Constant(_LANE, 4), mask], ".p0")

    def _call(self, name: str, result: Any, arguments: list[Any], more: str = "") -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        function = _cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.{self.suffix}{more}")
        return self.builder.call(function, arguments)

    def mask(self, count: Any) -> Any:
        """The first `count` lanes."""
        numbers = ir.Constant(ir.VectorType(_INDEX, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, self.splat(count))

    def total(self, vector: Any) -> Any:
        """The sum of the lanes, by halves."""
        width = self.lanes
        while width > 1:
            width //= 2
            halves = [self.shuffle(vector, vector, list(range(start, start + width))) for start in (0, width)]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, ir.Constant(_LANE, 0))

    def variables(self, count: int, start: Any) -> list[Any]:
        """Variables, which LLVM keeps in registers."""
        slots = [_cgutils.alloca_once(self.builder, start.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(start, slot)
        return slots

    @contextmanager
    def loop(self, count: Any) -> Iterator[Any]:
        with _cgutils.for_range(self.builder, count, intp=_INDEX) as found:
            yield found.index


def _constant(value: Any) -> Any:
    return ir.Constant(_INDEX, value) if isinstance(value, int) else value


def _emitted(parameters: str) -> Callable[[Callable[[Any], None]], Any]:
    """Decorator: an intrinsic with these parameters and without a result."""
    names = parameters.split()

    def decorate(emit: Callable[[Any], None]) -> Any:
        def typed(context: Any, *arguments: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                emit(_Emitter(names, context, builder, signature, values))
                return context.get_dummy_value()

            return types.void(*arguments), generate

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        typed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(name, kind) for name in ("context", *names)]
        )
        return intrinsic(typed)

    return decorate


def _for_sizes(e: _Emitter, emit: Callable[[int, int], None]) -> None:
    """Code for every size of a block, and a switch between them by `rows` and `columns`."""
    builder, end = e.builder, e.builder.append_basic_block()
    switch = builder.switch(e.plus(e.times(e.rows, 10), e.columns), end)
    for rows, columns in itertools.product(ROWS, COLUMNS):
        block = builder.append_basic_block()
        switch.add_case(_constant(10 * rows + columns), block)
        builder.position_at_end(block)
        emit(rows, columns)
        builder.branch(end)
    builder.position_at_end(end)


@_emitted("left left_at right right_at result result_at base tables op first row adds scale rows columns last")
def product(e: Any) -> None:
    """A block of a matrix product, whose columns are vectors: result = base + scale * left @ right.

    Row r of the result starts at tables[offsets + r]; row k of `right` at tables[taps + k]. The sum is over at most `TAPS`
    rows k from `first` on. The base is a number for each row, or the former result if `adds`. Only `last` lanes of the last
    column are written.
    """
    builder = e.builder

    def emit(rows: int, columns: int) -> None:
        sums = e.variables(rows * columns, e.zero)
        lines = [e.times(e.left_row, row) for row in range(rows)]
        tap_stride, taps = e.left_tap, e.at(e.tables, e.taps, e.first)
        rest = builder.sub(e.count, e.first)
        with e.loop(builder.select(builder.icmp_signed("<", rest, _constant(TAPS)), rest, _constant(TAPS))) as tap:
            source = e.at(e.right, e.right_at, builder.load(e.at(taps, tap)))
            vectors = [e.load(e.at(source, e.lanes * column)) for column in range(columns)]
            factor = e.at(e.left, e.left_at, e.times(tap, tap_stride))
            for row in range(rows):
                weight = e.splat(builder.load(e.at(factor, lines[row])))
                for slot, vector in zip(sums[row * columns :], vectors, strict=False):
                    builder.store(e.multiply_add(weight, vector, builder.load(slot)), slot)
        full = builder.select(builder.icmp_signed("==", e.adds, _constant(0)), _constant(0), e.last)
        written, read, scale = e.mask(e.last), e.mask(full), e.splat(e.scale)
        all_read = e.splat(builder.icmp_signed("!=", e.adds, _constant(0)))
        for row in range(rows):
            target = e.at(e.result, e.result_at, builder.load(e.at(e.tables, e.offsets, e.row, row)))
            start = e.splat(builder.load(e.at(e.base, e.base_at, e.times(e.base_stride, e.plus(e.row, row)))))
            for column in range(columns):
                address, is_last = e.at(target, e.lanes * column), column == columns - 1
                old = e.masked_load(address, read if is_last else all_read, start)
                value = e.multiply_add(scale, builder.load(sums[row * columns + column]), old)
                if is_last:
                    e.masked_store(value, address, written)
                else:
                    e.store(value, address)

    _for_sizes(e, emit)


@_emitted("left right result result_at tables op row tap adds scale rows columns")
def correlate(e: Any) -> None:
    """A block of scalar products of images: result[row, tap] = scale * sum(left image of row * right image of tap).

    If `adds`, the former result is added.
    """
    builder = e.builder

    def emit(rows: int, columns: int) -> None:
        sums = e.variables(rows * columns, e.zero)
        lefts = [e.at(e.left, e.left_at, builder.load(e.at(e.tables, e.offsets, e.row, row))) for row in range(rows)]
        rights = [e.at(e.right, e.right_at, builder.load(e.at(e.tables, e.taps, e.tap, tap))) for tap in range(columns)]
        sizes = e.blocks, e.height, e.width
        with e.loop(sizes[0]) as block, e.loop(sizes[1]) as y:
            of_left = e.plus(e.times(block, e.left_block), e.times(y, e.left_row))
            of_right = e.plus(e.times(block, e.right_block), e.times(y, e.right_row))
            with e.loop(sizes[2]) as x:
                step = e.times(x, e.lanes)
                vectors = [e.load(e.at(right, of_right, step)) for right in rights]
                for row, left in enumerate(lefts):
                    factor = e.load(e.at(left, of_left, step))
                    for slot, vector in zip(sums[row * columns :], vectors, strict=False):
                        builder.store(e.multiply_add(factor, vector, builder.load(slot)), slot)
        adds = builder.icmp_signed("!=", e.adds, _constant(0))
        for row, column in itertools.product(range(rows), range(columns)):
            address = e.at(e.result, e.result_at, e.times(e.result_row, row), column)
            old = builder.select(adds, builder.load(address), ir.Constant(e.number, 0))
            total = e.total(builder.load(sums[row * columns + column]))
            builder.store(builder.fadd(old, builder.fmul(e.scale, total)), address)

    _for_sizes(e, emit)


@_emitted("values start count")
def rectify(e: Any) -> None:
    """ReLU, in place. NaN stays."""
    with e.loop(e.count) as index:
        address = e.at(e.values, e.start, e.times(index, e.lanes))
        value = e.load(address)
        e.store(e.builder.select(e.builder.fcmp_ordered("<", value, e.zero), e.zero, value), address)


@_emitted("values gradients start count")
def rectify_back(e: Any) -> None:
    """The gradient of ReLU, in place: 0 where the value is 0."""
    with e.loop(e.count) as index:
        value, address = (e.at(array, e.start, e.times(index, e.lanes)) for array in (e.values, e.gradients))
        positive = e.builder.fcmp_ordered(">", e.load(value), e.zero)
        e.store(e.builder.select(positive, e.load(address), e.zero), address)


@_emitted("values start factors factors_at count")
def multiply_by(e: Any) -> None:
    """values *= factors, in place."""
    with e.loop(e.count) as index:
        address, other = (
            e.at(e.values, e.start, e.times(index, e.lanes)),
            e.at(e.factors, e.factors_at, e.times(index, e.lanes)),
        )
        e.store(e.builder.fmul(e.load(address), e.load(other)), address)


@_emitted("values values_at result result_at op")
def pool(e: Any) -> None:
    """One vector of a pooled image: the maximum (NaN if a value is NaN) or the mean of a window."""
    builder = e.builder
    (best,), (total,) = e.variables(1, e.load(e.at(e.values, e.values_at))), e.variables(1, e.zero)
    row, step = e.right_row, e.right_step
    with e.loop(e.window_height) as y, e.loop(e.window_width) as x:
        value, old = e.load(e.at(e.values, e.values_at, e.times(y, row), e.times(x, step))), builder.load(best)
        larger = builder.or_(builder.fcmp_ordered(">", value, old), builder.fcmp_unordered("uno", value, value))
        builder.store(builder.select(larger, value, old), best)
        builder.store(builder.fadd(builder.load(total), value), total)
    mean = builder.fmul(builder.load(total), _share(e))
    chosen = builder.icmp_signed("!=", e.mean, _constant(0))
    e.store(builder.select(chosen, mean, builder.load(best)), e.at(e.result, e.result_at))


@_emitted("values gradients values_at gradients_at op")
def pool_back(e: Any) -> None:
    """The gradient of `pool`. That of a maximum goes to the first of equal values, as in torch."""
    builder, row, step, height, width = e.builder, e.right_row, e.right_step, e.window_height, e.window_width
    (best,) = e.variables(1, e.load(e.at(e.values, e.values_at)))
    (free,) = e.variables(1, ir.Constant(ir.VectorType(_BIT, e.lanes), [1] * e.lanes))
    gradient, chosen = e.load(e.at(e.gradients, e.gradients_at)), builder.icmp_signed("!=", e.mean, _constant(0))
    share = builder.fmul(gradient, _share(e))
    with e.loop(height) as y, e.loop(width) as x:
        value, old = e.load(e.at(e.values, e.values_at, e.times(y, row), e.times(x, step))), builder.load(best)
        builder.store(builder.select(builder.fcmp_ordered(">", value, old), value, old), best)
    with e.loop(height) as y, e.loop(width) as x:
        offset, unused = e.plus(e.times(y, row), e.times(x, step)), builder.load(free)
        equal = builder.fcmp_ordered("==", e.load(e.at(e.values, e.values_at, offset)), builder.load(best))
        builder.store(builder.and_(unused, builder.not_(equal)), free)
        routed = builder.select(builder.and_(unused, equal), gradient, e.zero)
        e.store(builder.select(chosen, share, routed), e.at(e.gradients, e.values_at, offset))


def _share(e: Any) -> Any:
    """1 / the size of a pooling window, in all lanes."""
    size = e.builder.sitofp(e.times(e.window_height, e.window_width), e.number)
    return e.splat(e.builder.fdiv(ir.Constant(e.number, 1), size))


@_emitted("source source_at source_stride result result_at result_stride")
def transpose(e: Any) -> None:
    """A square of vectors, transposed."""
    lanes = e.lanes
    square = [e.load(e.at(e.source, e.source_at, e.times(e.source_stride, row))) for row in range(lanes)]
    half = lanes // 2
    while half:
        # Exchange the halves of size `half` of rows that are `half` apart.
        for row in range(lanes):
            if not row & half:
                one, other = square[row], square[row + half]
                low = [lane if not lane & half else lanes + lane - half for lane in range(lanes)]
                high = [lane + half if not lane & half else lanes + lane for lane in range(lanes)]
                square[row], square[row + half] = e.shuffle(one, other, low), e.shuffle(one, other, high)
        half //= 2
    for row in range(lanes):
        e.store(square[row], e.at(e.result, e.result_at, e.times(e.result_stride, row)))
