"""Entropy coding by asymmetric numeral systems (Duda, 2013).

All symbols of a body share one stream of 32-bit words, so that the size is rounded up only once. Probability models use only
basic arithmetic and integer sums, so that all machines compute the same models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from laconic.compression.words import PRECISION
from laconic.core.errors import PacketError

Symbols: TypeAlias = NDArray[Any]
"""Non-negative integers of any integer type."""
Weights: TypeAlias = NDArray[np.float64]
"""A number per symbol, proportional to its probability. Symbols of weight 0 can still be coded, in 24 bits."""
Counts: TypeAlias = NDArray[np.int64]

BLOCK = 1 << 16
"""Entries per step, so that temporaries fit into the cache."""
ONE_THREAD = 1 << 15
"""The most entries that torch processes in one thread; others may be busy with other clients."""
_SET_BITS = np.array([number.bit_count() for number in range(256)])


def blocks(size: int, block: int = BLOCK) -> Iterator[tuple[int, int]]:
    """Start and end of every block of a vector.

    >>> list(blocks(5, 2))
    [(0, 2), (2, 4), (4, 5)]
    """
    return ((start, min(start + block, size)) for start in range(0, size, block))


def bit_weights(ones: int, bits: int) -> Weights:
    """The weights of the 256 byte values if bits are independent and set with probability `ones / bits`."""
    probability = min(max(ones, 1), max(bits - 1, 1)) / max(bits, 2)
    powers = np.ones((2, 9))
    for exponent in range(1, 9):  # power functions of libraries may differ in the last bit
        powers[:, exponent] = powers[:, exponent - 1] * (1 - probability, probability)
    weights: Weights = powers[1, _SET_BITS] * powers[0, 8 - _SET_BITS]
    return weights


def cost(counts: Counts, weights: Weights) -> float:
    """The bits that symbols with these counts take under these weights."""
    present = counts > 0
    return float((counts[present] * (np.log2(weights.sum()) - np.log2(weights[present]))).sum())


def count_symbols(symbols: Symbols, size: int) -> Counts:
    """The number of occurrences of each of `size` symbols."""
    from laconic.compression import kernels  # late: Numba is slow to load

    if len(symbols) and int(symbols.max()) >= size:
        raise ValueError(f"a symbol above {size - 1}")
    counts = np.zeros((4, size), dtype=np.int64)
    kernels.count_symbols(symbols, counts)
    total: Counts = counts.sum(axis=0)
    return total


def table_of(counts: Counts) -> NDArray[np.uint8]:
    """Counts quantized to one byte each: 255 sqrt(count / largest count).

    With the square root, a rounding error costs the same number of bits for rare and frequent symbols (Fisher information).
    """
    roots = np.rint(255 * np.sqrt(counts / max(1, counts.max(initial=0))))
    table: NDArray[np.uint8] = np.maximum(roots, counts > 0).astype(np.uint8)
    return table


def table_weights(table: NDArray[Any]) -> Weights:
    """The weights that a table describes; equal ones for a table of zeros."""
    weights: Weights = np.square(table.astype(np.float64)) if table.any() else np.ones(len(table))
    return weights


# The prior for table entries: half of them are 0, and small values are more probable than large ones.
_TABLE_WEIGHTS = 1 / np.arange(1.0, 257.0)
_TABLE_WEIGHTS[0] = 5.124344962817281
"""The sum of the others, as a constant: a floating-point sum depends on its order."""


@dataclass(frozen=True)
class SymbolRun:
    """Symbols and their weights, which both sides know or which a table transmits."""

    symbols: Symbols
    weights: Weights
    table: NDArray[np.uint8] | None
    bits: float

    @classmethod
    def expecting(cls, symbols: Symbols, weights: Weights, counts: Counts | None = None) -> SymbolRun:
        """A run under weights that both sides know."""
        counts = count_symbols(symbols, len(weights)) if counts is None else counts
        return cls(symbols, weights, None, cost(counts, weights))

    @classmethod
    def with_table(cls, symbols: Symbols, size: int, counts: Counts | None = None) -> SymbolRun:
        """A run that is preceded by a table of the symbol counts."""
        counts = count_symbols(symbols, size) if counts is None else counts
        table = table_of(counts)
        bits = cost(counts, table_weights(table)) + cost(count_symbols(table, 256), _TABLE_WEIGHTS)
        return cls(symbols, table_weights(table), table, bits)

    @classmethod
    def smaller(cls, symbols: Symbols, expected: Weights) -> SymbolRun:
        """A run with or without a table, whichever is smaller."""
        counts = count_symbols(symbols, len(expected))
        runs = cls.expecting(symbols, expected, counts), cls.with_table(symbols, len(expected), counts)
        return min(runs, key=lambda run: run.bits)


class SymbolWriter:
    """Collects runs of symbols. They are read in the same order."""

    def __init__(self) -> None:
        self._runs: list[tuple[Symbols, Weights]] = []

    def put(self, run: SymbolRun) -> bool:
        """Append a run; return whether it has a table, which the reader must know."""
        if run.table is not None:
            self._runs.append((run.table, _TABLE_WEIGHTS))
        self._runs.append((run.symbols, run.weights))
        return run.table is not None

    def finish(self) -> bytes:
        """Encode all runs. The coder is a stack: the last symbol is pushed first."""
        if not self._runs:
            return b""
        from laconic.compression import kernels  # late: Numba is slow to load

        most = sum(len(symbols) for symbols, _ in self._runs) * PRECISION // 32  # no symbol takes more bits
        words, at, state = np.empty(most + 3, dtype=np.uint32), 0, 0
        for symbols, weights in reversed(self._runs):
            edges = _edges(weights)
            inverses = np.uint64(2**64 - 1) // np.diff(edges)
            for start, end in reversed(list(blocks(len(symbols)))):
                block = symbols[start:end].astype(np.uint16, copy=False)
                state, at = kernels.encode_symbols(block, edges, inverses, np.uint64(state), words, at)
        words[at : at + 2] = state % 2**32, state >> 32
        # Trailing zero bytes are not sent; the reader restores them.
        return words[: at + 2].astype("<u4").tobytes().rstrip(b"\0")


class SymbolReader:
    """Decodes the symbols of a `SymbolWriter`. Any words decode to some symbols, so the caller must check them."""

    def __init__(self, data: memoryview) -> None:
        if len(data) and data[-1] == 0:
            raise PacketError("size", "the last byte is 0")
        words = np.zeros(-(-len(data) // 4), dtype="<u4")
        words.view(np.uint8)[: len(data)] = data
        self._words = words.astype(np.uint32, copy=False)
        self._at, self._state = len(words), 0
        while self._at and self._state < 2**32:
            self._at -= 1
            self._state = self._state * 2**32 + int(words[self._at])

    def take(self, count: int, weights: Weights) -> NDArray[np.uint16]:
        """The next `count` symbols."""
        symbols = np.empty(count, dtype=np.uint16)
        self.start(weights)(np.arange(len(weights), dtype=np.uint16), symbols)
        return symbols

    def start(self, weights: Weights) -> Callable[[NDArray[Any], NDArray[Any]], None]:
        """Start a run; return a function of a table and a vector: it fills the vector with the next symbols' values."""
        from laconic.compression import kernels  # late: Numba is slow to load

        edges = _edges(weights)

        def read(table: NDArray[Any], out: NDArray[Any]) -> None:
            state = np.uint64(self._state)
            self._state, self._at = kernels.decode_values(self._words, self._at, state, edges, table, out)

        return read

    def own_weights(self, size: int) -> Weights:
        """Read the table of `size` symbols that precedes a run."""
        return table_weights(self.take(size, _TABLE_WEIGHTS))

    def finish(self) -> None:
        """Check that all words were used; unused bytes are rejected."""
        if self._at or self._state:
            raise PacketError("size", "bytes are left over, or wrong")


def _edges(weights: Weights) -> NDArray[np.uint64]:
    """The cumulative frequencies of the symbols, from 0 to 2^24; every symbol has at least 1."""
    scaled = (weights / weights.max() * 2**30).astype(np.int64)
    shares = 1 + scaled * (2**PRECISION - len(weights)) // scaled.sum()
    shares[np.argmax(scaled)] += 2**PRECISION - shares.sum()
    return np.append(0, np.cumsum(shares)).astype(np.uint64)
