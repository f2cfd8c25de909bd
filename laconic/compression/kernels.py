"""Loops that NumPy cannot vectorize, compiled by Numba.

This module is imported late, since Numba is slow to load and many commands do not need it. Kernels validate input from
packets, since Numba does not check bounds, and allocate only constant memory.

Bits are stored in words, the lowest first. A spare last word allows reading any number from two adjacent words. Arithmetic
on words is unsigned throughout, since Numba promotes mixed signed and unsigned integers to floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.cpython.unsafe import numbers
from numba.extending import intrinsic
from numpy.typing import NDArray

from laconic.compression.words import PRECISION, HalfWords, Widths, Words
from laconic.core.compiled import kernel

_0, _1, _5, _6, _31, _32, _63 = (np.uint64(number) for number in (0, 1, 5, 6, 31, 32, 63))
_trailing_zeros: Any = numbers.trailing_zeros
_leading_zeros: Any = numbers.leading_zeros


@kernel
def hadamard(block: NDArray[Any]) -> None:
    """The Walsh-Hadamard transform of a block in place, without its factor. The length is a power of two."""
    half = 1
    while half < len(block):
        for start in range(0, len(block), 2 * half):
            for index in range(start, start + half):
                first, second = block[index], block[index + half]
                block[index] = first + second
                block[index + half] = first - second
        half *= 2


@kernel
def flip(block: NDArray[Any], words: Words) -> None:
    """Negate the entries whose bits are set."""
    for index in range(len(block)):
        bit = np.uint64(index)
        if (words[bit >> _6] >> (bit & _63)) & _1:
            block[index] = -block[index]


@kernel
def reverse(block: NDArray[Any]) -> None:
    """Reverse the entries in place."""
    for index in range(len(block) // 2):
        other = len(block) - 1 - index
        block[index], block[other] = block[other], block[index]


@kernel
def pack(numbers: NDArray[np.uint32], widths: Widths, words: Words) -> None:
    """Write each number in its width of bits into zeroed words."""
    bit = _0
    for index in range(len(numbers)):
        cell, shift, number = bit >> _6, bit & _63, np.uint64(numbers[index])
        words[cell] |= number << shift
        words[cell + _1] |= (number >> _1) >> (_63 - shift)
        bit += np.uint64(widths[index])


@kernel
def unpack(words: HalfWords, width: int, start: int, numbers: NDArray[np.uint32]) -> None:
    """Read numbers of one width, from number `start` on."""
    step = np.uint64(width)
    mask, bit = (_1 << step) - _1, np.uint64(start) * step
    for index in range(len(numbers)):
        cell = bit >> _5
        two = np.uint64(words[cell]) | np.uint64(words[cell + _1]) << _32
        numbers[index] = (two >> (bit & _31)) & mask
        bit += step


@kernel
def join_split(unary: Words, low: HalfWords, widths: Widths, run: int, size: int, positions: NDArray[np.int64]) -> bool:
    """Decode positions from unary high parts and packed low bits; False if they are invalid for `size`."""
    at, base, word, bit = _0, _0, unary[0], _0
    position, end = ~_0, ~_0  # the last position, and the bit where its gap ended; both start at -1
    for number in range(len(widths)):
        width = np.uint64(widths[number])
        mask = (_1 << width) - _1
        # `end` minus the number of gaps is the sum of the high parts, so single gaps are not needed within a run:
        # position = (end << width) + sum(low bits + 1 - 2^width) + a constant of the run.
        offset = position + _1 - ((end + _1) << width) + mask
        for index in range(number * run, min(number * run + run, len(positions))):
            while word == _0:
                at += _1
                if at == np.uint64(len(unary)):
                    return False
                base, word = at << _6, unary[at]
            end = base + np.uint64(_trailing_zeros(word))
            word &= word - _1
            cell = bit >> _5
            two = np.uint64(low[cell]) | np.uint64(low[cell + _1]) << _32
            offset += ((two >> (bit & _31)) & mask) - mask
            bit += width
            position = (end << width) + offset
            positions[index] = np.int64(position)
    while word == _0 and at + _1 < np.uint64(len(unary)):
        at += _1
        word = unary[at]
    # With at most 2^32 entries and widths below 32 nothing overflows, so positions ascend, and the last one is the largest.
    return bool(word == _0 and position + _1 <= np.uint64(size))


@kernel
def join_classes(
    classes: NDArray[np.uint16], low: HalfWords, low_bits: int, size: int, positions: NDArray[np.int64]
) -> int:
    """Decode positions from classes and low bits; return the number of low bits used, or -1 if they are invalid."""
    bit, following = _0, _0
    for index in range(len(classes)):
        kind = np.uint64(classes[index])
        width = kind >> _1
        if bit + width > np.uint64(low_bits):
            return -1
        cell = bit >> _5
        two = np.uint64(low[cell]) | np.uint64(low[cell + _1]) << _32
        start = ((np.uint64(2) + (kind & _1)) << width) - np.uint64(2)
        position = following + start + ((two >> (bit & _31)) & ((_1 << width) - _1))
        bit += width
        if position >= np.uint64(size):
            return -1
        positions[index] = np.int64(position)
        following = position + _1
    return int(bit)


def _multiply_high(context: Any, first: Any, second: Any) -> Any:
    """The upper 64 bits of the product of two words."""

    def generate(context: Any, builder: Any, signature: Any, words: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(word, wide) for word in words))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


_high_product: Any = intrinsic(_multiply_high)
_PRECISION, _LOOKUP = np.uint64(PRECISION), np.uint64(12)


@kernel
def encode_symbols(
    symbols: NDArray[np.uint16], edges: Words, inverses: Words, state: np.uint64, words: NDArray[np.uint32], at: int
) -> tuple[Any, int]:
    """Push symbols, the last one first; full states spill to `words`. Returns the new state and word index.

    `inverses` has floor((2^64 - 1) / share) for the share of each symbol: a multiplication is faster than a division.
    """
    for index in range(len(symbols) - 1, -1, -1):
        symbol = symbols[index]
        start = edges[symbol]
        share = edges[symbol + 1] - start
        if state >> (_63 - _PRECISION + _1) >= share:
            words[at] = state & ((_1 << _32) - _1)
            at += 1
            state >>= _32
        # floor(state / share), or one less
        whole = _high_product(state, inverses[symbol])
        rest = state - whole * share
        if rest >= share:
            whole, rest = whole + _1, rest - share
        state = (whole << _PRECISION) + start + rest
    return state, at


@kernel
def decode_values(
    words: NDArray[np.uint32], at: int, state: np.uint64, edges: Words, table: NDArray[Any], out: NDArray[Any]
) -> tuple[Any, int]:
    """Pop symbols, and write the value of each one in `table`. Returns the new state and word index."""
    # The first symbol in each range of 2^12 slots; the search for a symbol starts there.
    first, symbol, top = np.empty(1 << (PRECISION - 12), dtype=np.uint16), 0, 0
    for cell in range(len(first)):
        while edges[symbol + 1] <= np.uint64(cell) << _LOOKUP:
            symbol += 1
        first[cell] = symbol
    for symbol in range(len(edges) - 1):
        if edges[symbol + 1] - edges[symbol] > edges[top + 1] - edges[top]:
            top = symbol
    low, high, value = edges[top], edges[top + 1], table[top]
    share = high - low
    for index in range(len(out)):
        slot = state & ((_1 << _PRECISION) - _1)
        # The processor predicts a frequent symbol and need not wait for the lookup.
        if slot - low < share:
            out[index] = value
            state = share * (state >> _PRECISION) + (slot - low)
        else:
            decoded = np.uint64(first[slot >> _LOOKUP])
            while edges[decoded + _1] <= slot:
                decoded += _1
            out[index] = table[decoded]
            start = edges[decoded]
            state = (edges[decoded + _1] - start) * (state >> _PRECISION) + (slot - start)
        if state >> _32 == _0 and at > 0:
            at -= 1
            state = state << _32 | np.uint64(words[at])
    return state, at


@kernel
def count_symbols(symbols: NDArray[Any], counts: NDArray[np.int64]) -> None:
    """Add the number of occurrences of each symbol to four rows of counts: one counter would be slow if symbols repeat."""
    whole = len(symbols) // 4 * 4
    for index in range(0, whole, 4):
        counts[0, symbols[index]] += 1
        counts[1, symbols[index + 1]] += 1
        counts[2, symbols[index + 2]] += 1
        counts[3, symbols[index + 3]] += 1
    for index in range(whole, len(symbols)):
        counts[0, symbols[index]] += 1


@kernel
def round_magnitudes(
    values: NDArray[Any], draws: NDArray[Any], step: Any, highest: Any, levels: NDArray[np.signedinteger[Any]]
) -> None:
    """levels = sign(x) min(floor(|x| / step + draw), highest)."""
    for index in range(len(values)):
        level = min(np.floor(abs(values[index]) / step + draws[index]), highest)
        levels[index] = -level if values[index] < 0 else level


@kernel
def append_nonzero(
    numbers: NDArray[np.int16], start: int, positions: NDArray[np.int64], kept: NDArray[np.int16], found: int
) -> int:
    """Append the numbers that are not 0, and their positions from `start` on; returns how many there are now.

    There must be room for all of them.
    """
    whole = len(numbers) // 32 * 32
    for first in range(0, whole, 32):
        part, nonzero = numbers[first : first + 32], 0
        for index in range(32):  # fixed length and no branch, so that the compiler vectorizes it
            nonzero += part[index] != 0
        if nonzero:
            for index in range(32):  # no branch: which numbers are 0 cannot be predicted
                positions[found], kept[found] = start + first + index, part[index]
                found += part[index] != 0
    for index in range(whole, len(numbers)):
        positions[found], kept[found] = start + index, numbers[index]
        found += numbers[index] != 0
    return found


@kernel
def split_gaps(gaps: NDArray[np.int64], widths: Widths, run: int, low: NDArray[np.uint32], unary: Words) -> np.uint64:
    """The low bits of each gap, and the high parts in unary: a one after as many zeros. Returns the number of bits."""
    bit = _0
    for number in range(len(widths)):
        width = np.uint64(widths[number])
        mask = (_1 << width) - _1
        for index in range(number * run, min(number * run + run, len(gaps))):
            gap = np.uint64(gaps[index])
            low[index] = gap & mask
            bit += gap >> width
            unary[bit >> _6] |= _1 << (bit & _63)
            bit += _1
    return bit


@kernel
def classify_gaps(
    gaps: NDArray[np.int64], classes: NDArray[np.uint8], widths: Widths, within: NDArray[np.uint32]
) -> None:
    """The class of each gap, the number of bits within the class, and these bits. A gap g is of class 2 w + b if g + 2 has
    w + 2 bits, the second of which is b."""
    for index in range(len(gaps)):
        number = np.uint64(gaps[index]) + np.uint64(2)
        width = np.uint64(62) - np.uint64(_leading_zeros(number))
        classes[index] = (width << _1) | ((number >> width) & _1)
        widths[index] = width
        within[index] = number & ((_1 << width) - _1)


@kernel
def unpack_signs(bits: NDArray[np.uint8], start: int, table: NDArray[Any], out: NDArray[Any]) -> None:
    """The values of the bits from bit `start` on; row b of `table` has the values of the eight bits of byte b."""
    head = min(-start % 8, len(out))
    whole = (len(out) - head) // 8
    for index in range(head):
        out[index] = table[bits[start >> 3], (start & 7) + index]
    for number in range(whole):
        row, part = table[bits[((start + head) >> 3) + number]], out[head + 8 * number : head + 8 * number + 8]
        for index in range(8):  # fixed length, so that the compiler vectorizes it
            part[index] = row[index]
    for index in range(head + 8 * whole, len(out)):
        out[index] = table[bits[(start + index) >> 3], (start + index) & 7]


@kernel
def squared_distance(
    positions: NDArray[np.int64],
    values: NDArray[Any],
    other_positions: NDArray[np.int64],
    other_values: NDArray[Any],
    factor: float,
) -> float:
    """||x + factor y||^2 of two sparse vectors with sorted positions."""
    total, first, second = 0.0, 0, 0
    while first < len(positions) or second < len(other_positions):
        entry = 0.0
        here = positions[first] if first < len(positions) else np.int64(2**62)
        there = other_positions[second] if second < len(other_positions) else np.int64(2**62)
        if here <= there:
            entry += np.float64(values[first])
            first += 1
        if there <= here:
            entry += factor * np.float64(other_values[second])
            second += 1
        total += entry * entry
    return total


@kernel
def add_at(
    vector: NDArray[Any], positions: NDArray[np.int64], values: NDArray[Any], weight: Any, start: int, end: int
) -> None:
    """vector[positions] += weight * values, from `start` to `end`. The caller must check the positions."""
    for index in range(start, end):
        vector[np.uint64(positions[index])] += weight * values[index]


@kernel
def _write_reaching(
    values: NDArray[Any],
    start: int,
    end: int,
    threshold: Any,
    positions: NDArray[np.int64],
    magnitudes: NDArray[Any],
    found: int,
) -> int:
    for index in range(start, end):
        magnitude = abs(values[index])
        if not magnitude < threshold:  # negated, so that NaN is included
            if found < len(positions):
                positions[found], magnitudes[found] = index, magnitude
            found += 1
    return found


@kernel
def find_reaching(values: NDArray[Any], threshold: Any, positions: NDArray[np.int64], magnitudes: NDArray[Any]) -> int:
    """Find entries with magnitude >= threshold; return their number, which may exceed the room in `positions`."""
    found, whole = 0, len(values) // 64 * 64
    for start in range(0, whole, 64):
        part, below = values[start : start + 64], 0
        for index in range(64):  # fixed length and no branch, so that the compiler vectorizes it
            below += abs(part[index]) < threshold
        if below == 64:
            continue
        if found + 64 > len(positions):
            found = _write_reaching(values, start, start + 64, threshold, positions, magnitudes, found)
            continue
        for index in range(64):  # no branch: which entries reach the threshold cannot be predicted
            magnitude = abs(part[index])
            positions[found], magnitudes[found] = start + index, magnitude
            found += not magnitude < threshold
    return _write_reaching(values, whole, len(values), threshold, positions, magnitudes, found)
