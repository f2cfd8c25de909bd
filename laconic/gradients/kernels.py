"""The loops of a pooled convolution, compiled by Numba, which takes a while to load: import them where they are called.

`_add_scaled` is written in LLVM by hand. The loop that it replaces, `_add_scaled_loop`, does not become vector instructions,
since the compiler cannot know that its two vectors do not overlap. What that earns, by benchmarks/pooled_convolution.py on
one core of an AMD EPYC with other work on the machine (LeNet-5, batches of 64; medians of four runs, in brackets the range):

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
"""No place of the square was chosen: all are negative."""
_LANES = 16


@kernel
def rectify_and_halve(images: NDArray[Any], result: NDArray[Any], chosen: NDArray[np.uint8]) -> None:
    """The largest of every 2 x 2 square if positive, else 0, channels last; and which: of equals the first, as in torch."""
    count, height, width, channels = result.shape
    for image in range(count):
        for row in range(height):
            for column in range(width):
                for channel in range(channels):
                    best, which = images[image, 2 * row, 2 * column, channel], np.uint8(0)
                    other = images[image, 2 * row, 2 * column + 1, channel]
                    if other > best or other != other:  # NaN passes, so that a run that diverges is found
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
        places = [
            builder.gep(
                context.make_array(signature.args[at])(context, builder, arguments[at]).data, [arguments[at + 1]]
            )
            for at in (0, 2)
        ]
        sums, done = [], 0
        for width in widths:
            vector = ir.VectorType(number, width)
            into, out = (
                builder.bitcast(builder.gep(place, [ir.Constant(ir.IntType(64), done)]), vector.as_pointer())
                for place in places
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
    """The backward pass for kernels of `height` lines of `line` numbers, of images with `channels` channels.

    Args:
        by_hand: add lines by `_add_scaled`, else by the loop that it replaces.
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
        whole = images.shape[2] * channels
        flat = images.reshape(-1)
        for image in range(count):
            for row in range(rows):
                for column in range(columns):
                    for each in range(filters):
                        which, value = chosen[image, row, column, each], gradient[image, row, column, each]
                        if which == NONE or value == 0:
                            continue
                        place = (image * images.shape[1] + 2 * row + (which >> 1)) * whole
                        place += (2 * column + (which & 1)) * channels
                        weight = each * height * line
                        of_bias[each] += value
                        for _ in range(height):
                            if by_hand:
                                _add_scaled(of_weights, weight, flat, place, value, line)
                            else:
                                _add_scaled_loop(of_weights, weight, flat, place, value, line)
                            if of_input and by_hand:
                                _add_scaled(of_images, place, weights, weight, value, line)
                            elif of_input:
                                _add_scaled_loop(of_images, place, weights, weight, value, line)
                            weight += line
                            place += whole

    return back
