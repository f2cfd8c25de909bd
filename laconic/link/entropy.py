"""Entropy coding: symbols at the cost of their information, by asymmetric numeral systems (Duda, 2013).

All symbols of a body share one stream of 32-bit words, whatever their models, so that nothing is rounded up more than
once. Models are made from whole numbers by plain arithmetic, so that two machines cannot disagree about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import constriction
import numpy as np
from numpy.typing import NDArray

from laconic.errors import PacketError

Symbols: TypeAlias = NDArray[Any]
"""Whole numbers from 0, of any integer type."""
Model: TypeAlias = Any
"""A probability for each symbol, in the coder's own form."""

BLOCK = 1 << 16
"""Entries that are worked on at a time: they fit the cache, and no temporary grows with the model."""


def blocks(size: int, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Start and end of every block of a vector.

    >>> list(blocks(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((start, min(start + block, size)) for start in range(0, size, block))


def model(weights: NDArray[np.float64]) -> Model:
    """Probabilities in proportion to the weights; what has weight 0 can still be coded, at 24 bits."""
    if len(weights) < 2:
        weights = np.append(weights, 0.0)
    return constriction.stream.model.Categorical(weights, perfect=False)


def bit_model(ones: int, bits: int) -> Model:
    """Bytes whose bits are independent, each set with probability `ones / bits`."""
    chance = min(max(ones, 1), max(bits - 1, 1)) / max(bits, 2)
    powers = np.ones((2, 9))
    for exponent in range(1, 9):  # multiplied out, since a library's power function may differ in the last bit
        powers[:, exponent] = powers[:, exponent - 1] * (1 - chance, chance)
    set_bits = np.array([number.bit_count() for number in range(256)])
    return model(powers[1, set_bits] * powers[0, 8 - set_bits])


def count_symbols(symbols: Symbols) -> NDArray[np.int64]:
    """How often each symbol occurs, from 0 to the highest."""
    counts = np.zeros(int(symbols.max(initial=0)) + 1, dtype=np.int64)
    for start, end in blocks(len(symbols)):
        counts += np.bincount(symbols[start:end], minlength=len(counts))
    return counts


def table_of(counts: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Counts in one byte each: the root of a symbol's share of the commonest, times 255.

    The root spends the byte's precision where it matters: an error of a share's root costs the same wherever it is (Fisher).
    """
    roots = np.rint(255 * np.sqrt(counts / max(1, counts.max(initial=0))))
    table: NDArray[np.uint8] = np.maximum(roots, counts > 0).astype(np.uint8)
    return table


def table_model(table: NDArray[np.uint8]) -> Model:
    """The model that a table describes; one without any share is taken as equal shares."""
    return model(np.square(table.astype(np.float64)) if table.any() else np.ones(len(table)))


def table_cost(counts: NDArray[np.int64], table: NDArray[np.uint8]) -> float:
    """Bits that symbols with these counts take under `table_model(table)`."""
    weights = np.square(table[counts > 0].astype(np.float64))
    return float((counts[counts > 0] * (np.log2(np.square(table.astype(np.float64)).sum()) - np.log2(weights))).sum())


class SymbolWriter:
    """Collects runs of symbols, to be read in the same order."""

    def __init__(self) -> None:
        self._runs: list[tuple[Symbols, Model]] = []

    def put(self, symbols: Symbols, model: Model) -> None:
        """One run under one model."""
        self._runs.append((symbols, model))

    def finish(self) -> bytes:
        """The words of all runs. The coder is a stack: the last symbol goes in first."""
        coder = constriction.stream.stack.AnsCoder()
        for symbols, shared in reversed(self._runs):
            for start, end in reversed(list(blocks(len(symbols)))):
                coder.encode_reverse(symbols[start:end].astype(np.int32), shared)
        words: NDArray[np.uint32] = coder.get_compressed()
        return words.astype("<u4").tobytes()


class SymbolReader:
    """Reads what a `SymbolWriter` wrote. Any words decode to some symbols: what they mean is checked by the caller."""

    def __init__(self, data: memoryview) -> None:
        if len(data) % 4:
            raise PacketError("size", f"{len(data)} bytes of entropy-coded words")
        words = np.frombuffer(data, dtype="<u4").astype(np.uint32)
        if len(words) and words[-1] == 0:
            raise PacketError("size", "the last word is 0")
        self._coder = constriction.stream.stack.AnsCoder(words)

    def take(self, count: int, model: Model) -> NDArray[np.int32]:
        """The next `count` symbols."""
        taken: NDArray[np.int32] = self._coder.decode(model, count)
        return taken

    def finish(self) -> None:
        """Everything must have been read: bytes that say nothing are refused."""
        if not self._coder.is_empty():
            raise PacketError("size", "bytes are left over, or wrong")
