"""The backward pass of a convolution before max-pooling. Most of its gradients are 0, and these are skipped.

Every example has its zeros elsewhere. So the innermost dimension is not the examples here, but channels: images are
[example, row, column, channel] and weights [output, row, column, channel], with channels padded to vectors. A pooled entry
is a cell. An example's gradients are computed for one band of cells after the other, so that its inputs stay in the
first-level cache.

A round of the larger CNN takes 0.70 of the CPU time of dense products; the backward pass of its second convolution takes
5.5 ms instead of 13.5 (docs/performance.md, "Compiled kernels"). The readable reference is torch's autograd:
tests/gradients/test_compiled.py compares with it, for the model `cnn` and in
`test_pooled_convolutions_with_many_outputs_and_long_lines`.
"""

from __future__ import annotations

import itertools
from typing import Any

from llvmlite import ir

from laconic.gradients.emitter import INDEX, LINES, ROWS, constant, emitted, for_sizes
from laconic.gradients.loops import block_size, inlined, transpose_matrix

WORD = 64
"""The maximum number of cells in a band, and of outputs in a sum: bits of a word say which gradients are not 0."""


@inlined
def pooled_convolution_back(
    op: Any,
    model: Any,
    result: Any,
    values: Any,
    gradients: Any,
    memory: Any,
    tables: Any,
    count: int,
    adds: int,
    scale: Any,
) -> None:
    """The gradients of the weights and, if `op.inner`, of the inputs, from those of the pooled outputs."""
    area = op.kernel_height * op.kernel_width
    memory[op.weights : op.size] = 0
    if op.depth > op.count:
        memory[op.images : op.slopes] = 0
    for output in range(op.channels):
        for channel in range(op.count):
            for tap in range(area):
                weight = model[op.left_at + (output * op.count + channel) * area + tap]
                memory[op.weights + (output * area + tap) * op.depth + channel] = weight
    for block in range(op.blocks):
        _pack(op, block, values, gradients, memory)
        for example in range(min(op.lanes, count - block * op.lanes)):
            for first in range(0, op.cells, op.band):
                stop = min(first + op.band, op.cells)
                _weights_back(op, memory, tables, example, first, stop)
                if op.inner:
                    _inputs_back(op, memory, tables, example, first, stop)
        start = op.base_at + block * op.base_block
        for pixel in range(op.input_height * op.input_width if op.inner else 0):
            at, to = op.slopes + pixel * op.depth, start + pixel * op.lanes
            transpose_matrix(memory, at, op.image, op.lanes, op.count, op.lanes, gradients, to, op.base_channel)
    for output in range(op.channels):
        for channel in range(op.count):
            for tap in range(area):
                at = op.left_at + (output * op.count + channel) * area + tap
                own = scale * memory[op.sums + (output * area + tap) * op.depth + channel]
                result[at] = result[at] + own if adds else own


@inlined
def _pack(op: Any, block: int, values: Any, gradients: Any, memory: Any) -> None:
    """Transpose the inputs, and the gradients and winners of all cells: once by cell, once by output."""
    if op.inner:
        memory[op.slopes : op.slopes + op.lanes * op.image] = 0
    start = op.base_at + block * op.base_block
    for pixel in range(op.input_height * op.input_width):
        at, to = start + pixel * op.lanes, op.images + pixel * op.depth
        transpose_matrix(values, at, op.base_channel, op.count, op.lanes, op.lanes, memory, to, op.image)
    # The dense gradient is not needed, so its place is free for the gradients and winners.
    free, entries = op.right_at + block * op.right_block, 2 * op.cells
    for channel in range(op.channels):
        own = free + channel * op.right_channel
        for cell in range(op.cells):
            y, x = divmod(cell, op.width)
            at = own + y * op.window_height * op.right_row + x * op.window_width * op.right_step
            given = op.result_at + block * op.result_block + channel * op.result_channel
            given += y * op.result_row + x * op.result_step
            route(values, at, gradients, given, own + cell * op.lanes, op)
        to = op.by_output + channel * entries
        transpose_matrix(gradients, own, op.lanes, entries, op.lanes, op.lanes, memory, to, op.channels * entries)
    for entry in range(entries):
        at, to = free + entry * op.lanes, op.by_cell + entry * op.channels
        step = op.channels * entries
        transpose_matrix(gradients, at, op.right_channel, op.channels, op.lanes, op.lanes, memory, to, step)


@inlined
def _weights_back(op: Any, memory: Any, tables: Any, example: int, first: int, stop: int) -> None:
    """Add a band's part to the gradient of the weights: for each output, its gradients times the inputs around them."""
    line, width = op.input_width * op.depth, op.kernel_width * op.depth
    for output in range(op.channels):
        given = op.by_output + (example * op.channels + output) * 2 * op.cells + first
        winners, images = given + op.cells, op.images + example * op.image
        to = op.sums + output * op.kernel_height * width
        _add(op, memory, tables, given, winners, stop - first, -1, images, op.taps + first, line, to, width)


@inlined
def _inputs_back(op: Any, memory: Any, tables: Any, example: int, first: int, stop: int) -> None:
    """Add a band's part to the gradient of the inputs: for each position, its gradients times their weights."""
    line, width = op.input_width * op.depth, op.kernel_width * op.depth
    for cell in range(first, stop):
        given = op.by_cell + (example * 2 * op.cells + cell) * op.channels
        winners, start = given + op.cells * op.channels, op.slopes + example * op.image + tables[op.taps + cell]
        for y in range(op.window_height):
            for x in range(op.window_width):
                winner = y * line + x * op.depth
                for output in range(0, op.channels, WORD):
                    at, other, count = given + output, winners + output, min(WORD, op.channels - output)
                    weights, to = op.offsets + output, start + winner
                    _add(op, memory, tables, at, other, count, winner, op.weights, weights, width, to, line)


@inlined
def _add(
    op: Any,
    memory: Any,
    tables: Any,
    given: int,
    winners: int,
    count: int,
    winner: int,
    source: int,
    positions: int,
    source_line: int,
    to: int,
    to_line: int,
) -> None:
    """Add products of gradients, of the size of a kernel."""
    vectors, line = op.kernel_width * (op.depth // op.lanes), 0
    while line < op.kernel_height:
        columns, at = block_size(op.kernel_height - line, LINES[0]), 0
        while at < vectors:
            rows = block_size(vectors - at, ROWS[0])
            begin, target = source + line * source_line + at * op.lanes, to + line * to_line + at * op.lanes
            add_products(
                memory,
                tables,
                given,
                winners,
                count,
                winner,
                begin,
                positions,
                source_line,
                target,
                to_line,
                rows,
                columns,
            )
            at += rows
        line += columns


@emitted("values values_at gradients given result op")
def route(e: Any) -> None:
    """A cell's gradient, and its winner: where the first of the largest values is, relative to the window's first."""
    builder, row, step, line, depth = e.builder, e.right_row, e.right_step, e.times(e.input_width, e.depth), e.depth
    (best,), (found,) = e.variables(1, e.load(e.at(e.values, e.values_at))), e.variables(1, e.zero)
    with e.loop(e.window_height) as y, e.loop(e.window_width) as x:
        value, old = e.load(e.at(e.values, e.values_at, e.times(y, row), e.times(x, step))), builder.load(best)
        larger, position = builder.fcmp_ordered(">", value, old), e.plus(e.times(y, line), e.times(x, depth))
        builder.store(builder.select(larger, value, old), best)
        position = e.splat(builder.sitofp(position, e.number))
        builder.store(builder.select(larger, position, builder.load(found)), found)
    target = e.at(e.gradients, e.result)
    e.store(e.load(e.at(e.gradients, e.given)), target)
    e.store(builder.load(found), e.at(target, e.times(e.cells, e.lanes)))


@emitted("memory tables given winners count winner source positions source_line result result_line rows columns")
def add_products(e: Any) -> None:
    """result += sum(gradient * source at its position): `columns` lines of `rows` adjacent vectors.

    The sum is over the gradients that are not 0 and have that winner. If it is -1, the sum is over all winners, which are
    added to the positions.
    """
    builder, zero = e.builder, constant(0)
    every = builder.icmp_signed("<", e.winner, zero)
    given, winners, positions = e.at(e.memory, e.given), e.at(e.memory, e.winners), e.at(e.tables, e.positions)
    wanted, all_lanes = e.splat(builder.sitofp(e.winner, e.number)), e.splat(every)
    (word,) = e.variables(1, zero)
    for lane in range(0, WORD, e.lanes):
        with builder.if_then(builder.icmp_signed(">", e.count, constant(lane))):
            found = builder.fcmp_unordered("!=", e.load(e.at(given, lane)), e.zero)
            right = builder.or_(all_lanes, builder.fcmp_ordered("==", e.load(e.at(winners, lane)), wanted))
            found = builder.and_(builder.and_(found, right), e.mask(builder.sub(e.count, constant(lane))))
            bits = builder.zext(builder.bitcast(found, ir.IntType(e.lanes)), INDEX)
            builder.store(builder.or_(builder.load(word), builder.shl(bits, constant(lane))), word)

    def emit(rows: int, columns: int) -> None:
        sums = e.variables(rows * columns, e.zero)
        lines = [e.times(e.source_line, column) for column in range(columns)]
        with e.bits(word) as index:
            factor = e.splat(builder.load(e.at(given, index)))
            moved = builder.fptosi(builder.load(e.at(winners, index)), INDEX)
            position = e.plus(builder.load(e.at(positions, index)), builder.select(every, moved, zero))
            start = e.at(e.memory, e.source, position)
            for slot, (line, row) in zip(sums, itertools.product(lines, range(rows)), strict=True):
                vector = e.load(e.at(start, line, e.lanes * row))
                builder.store(e.multiply_add(factor, vector, builder.load(slot)), slot)
        for slot, (column, row) in zip(sums, itertools.product(range(columns), range(rows)), strict=True):
            address = e.at(e.memory, e.result, e.times(e.result_line, column), e.lanes * row)
            e.store(builder.fadd(builder.load(slot), e.load(address)), address)

    with builder.if_then(builder.icmp_signed("!=", builder.load(word), zero)):
        for_sizes(e, emit, LINES)
