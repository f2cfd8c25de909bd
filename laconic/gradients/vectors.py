"""Vector instructions for the loops of `laconic.gradients.kernels` that LLVM does not vectorize by itself.

`product` and `correlate` do nearly all of the arithmetic, at 86 to 101 GFLOP/s on one core; a round of LeNet-5 takes less
than half of the CPU time that it took with torch's operators (docs/performance.md, "Compiled kernels"; docs/decisions.md,
"Numerics"). The readable reference is torch's autograd: tests/gradients/test_compiled.py compares gradients, losses and
steps with those of the strategy `loop`, in networks that use every function here.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir

from laconic.gradients.emitter import BIT, constant, emitted, for_sizes

TAPS = 128
"""The maximum number of products that are added at once, so that their operands stay in the first-level cache."""


@emitted("left left_at right right_at result result_at base tables op first row adds scale rows columns last")
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
        with e.loop(builder.select(builder.icmp_signed("<", rest, constant(TAPS)), rest, constant(TAPS))) as tap:
            source = e.at(e.right, e.right_at, builder.load(e.at(taps, tap)))
            vectors = [e.load(e.at(source, e.lanes * column)) for column in range(columns)]
            factor = e.at(e.left, e.left_at, e.times(tap, tap_stride))
            for row in range(rows):
                weight = e.splat(builder.load(e.at(factor, lines[row])))
                for slot, vector in zip(sums[row * columns :], vectors, strict=False):
                    builder.store(e.multiply_add(weight, vector, builder.load(slot)), slot)
        full = builder.select(builder.icmp_signed("==", e.adds, constant(0)), constant(0), e.last)
        written, read, scale = e.mask(e.last), e.mask(full), e.splat(e.scale)
        all_read = e.splat(builder.icmp_signed("!=", e.adds, constant(0)))
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

    for_sizes(e, emit)


@emitted("left right result result_at tables op row tap adds scale rows columns")
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
        adds = builder.icmp_signed("!=", e.adds, constant(0))
        for row, column in itertools.product(range(rows), range(columns)):
            address = e.at(e.result, e.result_at, e.times(e.result_row, row), column)
            old = builder.select(adds, builder.load(address), ir.Constant(e.number, 0))
            total = e.total(builder.load(sums[row * columns + column]))
            builder.store(builder.fadd(old, builder.fmul(e.scale, total)), address)

    for_sizes(e, emit)


@emitted("values start count")
def rectify(e: Any) -> None:
    """ReLU, in place. NaN stays."""
    with e.loop(e.count) as index:
        address = e.at(e.values, e.start, e.times(index, e.lanes))
        value = e.load(address)
        e.store(e.builder.select(e.builder.fcmp_ordered("<", value, e.zero), e.zero, value), address)


@emitted("values gradients start count")
def rectify_back(e: Any) -> None:
    """The gradient of ReLU, in place: 0 where the value is 0."""
    with e.loop(e.count) as index:
        value, address = (e.at(array, e.start, e.times(index, e.lanes)) for array in (e.values, e.gradients))
        positive = e.builder.fcmp_ordered(">", e.load(value), e.zero)
        e.store(e.builder.select(positive, e.load(address), e.zero), address)


@emitted("values start factors factors_at count")
def multiply_by(e: Any) -> None:
    """values *= factors, in place."""
    with e.loop(e.count) as index:
        address, other = (
            e.at(e.values, e.start, e.times(index, e.lanes)),
            e.at(e.factors, e.factors_at, e.times(index, e.lanes)),
        )
        e.store(e.builder.fmul(e.load(address), e.load(other)), address)


@emitted("values values_at result result_at op")
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
    chosen = builder.icmp_signed("!=", e.mean, constant(0))
    e.store(builder.select(chosen, mean, builder.load(best)), e.at(e.result, e.result_at))


@emitted("values gradients values_at gradients_at op")
def pool_back(e: Any) -> None:
    """The gradient of `pool`. That of a maximum goes to the first of equal values, as in torch."""
    builder, row, step, height, width = e.builder, e.right_row, e.right_step, e.window_height, e.window_width
    (best,) = e.variables(1, e.load(e.at(e.values, e.values_at)))
    (free,) = e.variables(1, ir.Constant(ir.VectorType(BIT, e.lanes), [1] * e.lanes))
    gradient, chosen = e.load(e.at(e.gradients, e.gradients_at)), builder.icmp_signed("!=", e.mean, constant(0))
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


@emitted("source source_at source_stride result result_at result_stride")
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
