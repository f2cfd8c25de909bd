"""Numba kernels of the pooled convolution. Numba takes long to load: import this module where a kernel is called.

`_add_scaled` is handwritten LLVM. The compiler does not vectorize the loop that it replaces, `_add_scaled_loop`, since the
two vectors might overlap. Measured by benchmarks/pooled_convolution.py on one core of an AMD EPYC with other load (LeNet-5,
batches of 64; medians and ranges of four runs):

|                           | by hand |    loop | ratio         |
|---------------------------|---------|---------|---------------|
| first layer, backwards    | 0.23 ms | 0.47 ms | 2.0 (2.0-2.1) |
| second layer, backwards   | 0.31 ms | 2.70 ms | 8.7 (8.1-8.9) |
| one gradient of the model | 3.10 ms | 5.25 ms | 1.7 (1.7-1.9) |

Both give the same bits (tests/gradients/test_pooled_convolution.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from laconic.core.compiled import kernel

NONE = 4
"""The value of `chosen` where all four values of a pooling window are negative or zero."""
_LANES = 16


@kernel
def rectify_and_halve(images: NDArray[Any], result: NDArray[Any], chosen: NDArray[np.uint8]) -> None:
    """ReLU and 2 x 2 max-pooling, channels last, and the index of the maximum (the first of equals, as in torch)."""
    count, height, width, channels = result.shape
    for image in range(count):
        for row in range(height):
            for column in range(width):
                for channel in range(channels):
                    best, which = images[image, 2 * row, 2 * column, channel], np.uint8(0)
                    other = images[image, 2 * row, 2 * column + 1, channel]
                    if other > best or other != other:  # propagate NaN, so that divergence is detected
                        best, which = other, np.uint8(1)
                    other = images[image, 2 * row + 1, 2 * column, channel]
                    if other > best or other != other:
                        best, which = other, np.uint8(2)
                    other = images[image, 2 * row + 1, 2 * column + 1, channel]
                    if other > best or other != other:
                        best, which = other, np.uint8(3)
                    if best <= 0:
                        best, which = images.dtype.type(0), np.uint8(NONE)
                    result[image, row, column, channel] = best
                    chosen[image, row, column, channel] = which


def _add_scaled_code(context: Any, target: Any, to: Any, source: Any, start: Any, factor: Any, length: Any) -> Any:
    if not isinstance(length, types.IntegerLiteral):
        return None
    signature = types.void(target, to, source, start, factor, length)
    whole, rest = divmod(length.literal_value, _LANES)
    widths = [_LANES] * whole + [width for width in (8, 4, 2, 1) if rest & width]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_value_type(signature.args[4])
        index = ir.IntType(32)
        first = ir.Constant(ir.VectorType(number, 1), ir.Undefined)
        factor = builder.insert_element(first, arguments[4], ir.Constant(index, 0))
        pointers = [
            builder.gep(
                context.make_array(signature.args[at])(context, builder, arguments[at]).data, [arguments[at + 1]]
            )
            for at in (0, 2)
        ]
        sums, done = [], 0
        for width in widths:
            vector = ir.VectorType(number, width)
            into, out = (
                builder.bitcast(builder.gep(pointer, [ir.Constant(ir.IntType(64), done)]), vector.as_pointer())
                for pointer in pointers
            )
            factors = builder.shuffle_vector(factor, first, ir.Constant(ir.VectorType(index, width), [0] * width))
            product = builder.fmul(factors, builder.load(out, align=4), flags=["contract"])
            sums.append((builder.fadd(product, builder.load(into, align=4), flags=["contract"]), into))
            done += width
        for total, into in sums:
            builder.store(total, into, align=4)
        return context.get_dummy_value()

    return signature, generate


_add_scaled: Any = intrinsic(_add_scaled_code)
"""`_add_scaled_loop` as vector instructions, with the same rounding."""


@numba.njit(fastmath={"contract"})
def _add_scaled_loop(target: NDArray[Any], to: int, source: NDArray[Any], start: int, factor: Any, length: int) -> None:
    """target[to : to + length] += factor * source[start : start + length], each product and sum rounded once."""
    for index in range(length):
        target[to + index] += factor * source[start + index]


@cache
def gradient_of_pooled(
    height: int, line: int, channels: int, of_input: bool, *, by_hand: bool = True
) -> Callable[..., None]:
    """The compiled backward pass for one shape of the convolution's kernel.

    Args:
        height: rows of the convolution's kernel.
        line: entries of one row of the kernel, over all channels.
        channels: channels of the images.
        of_input: whether to compute the gradient of the images.
        by_hand: use `_add_scaled`, else the loop that it replaces.
    """

    @kernel
    def back(
        gradient: NDArray[Any],
        chosen: NDArray[np.uint8],
        images: NDArray[Any],
        weights: NDArray[Any],
        of_weights: NDArray[Any],
        of_bias: NDArray[Any],
        of_images: NDArray[Any],
    ) -> None:
        count, rows, columns, filters = gradient.shape
        image_line = images.shape[2] * channels
        flat = images.reshape(-1)
        for image in range(count):
            for row in range(rows):
                for column in range(columns):
                    for filter in range(filters):
                        which, value = chosen[image, row, column, filter], gradient[image, row, column, filter]
                        if which == NONE or value == 0:
                            continue
                        position = (image * images.shape[1] + 2 * row + (which >> 1)) * image_line
                        position += (2 * column + (which & 1)) * channels
                        weight = filter * height * line
                        of_bias[filter] += value
                        for _ in range(height):
                            if by_hand:
                                _add_scaled(of_weights, weight, flat, position, value, line)
                            else:
                                _add_scaled_loop(of_weights, weight, flat, position, value, line)
                            if of_input and by_hand:
                                _add_scaled(of_images, position, weights, weight, value, line)
                            elif of_input:
                                _add_scaled_loop(of_images, position, weights, weight, value, line)
                            weight += line
                            position += image_line

    return back
