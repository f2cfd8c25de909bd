"""Reading the values of a body: floating-point numbers, signs, or levels. forms.py writes them."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.compression.bit_packing import half_words_of, packed_size, unpack
from laconic.compression.body import BodyReader, Floats, refuse_not_finite
from laconic.compression.codec import Codec
from laconic.compression.entropy import ONE_THREAD, SymbolReader, blocks
from laconic.compression.groups import Bounds
from laconic.compression.words import HalfWords
from laconic.core.errors import PacketError

MOST_BITS = 16
CODED_BITS = 8
"""The upper bits of a level that are entropy-coded. Lower bits are nearly random and stored directly."""
_MOST_SYMBOLS = 2**CODED_BITS + 1
HIGHEST_LEVEL = 2**MOST_BITS
_HALF_EXPONENTS = {Codec.FLOAT16: 0x7C00, Codec.BFLOAT16: 0x7F80}
"""The exponent bits, all of which are set in NaN and infinity."""
_SIGNS = 1 - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
"""The eight signs of each byte."""


class ValueReader(Protocol):
    """Reads the values of one packet. The constructor reads the fixed fields, `read` the entropy-coded ones."""

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """Set the bounds of the groups, and start to read the symbols."""
        ...

    def read(self, out: Floats) -> None:
        """Fill `out` with the next values."""
        ...

    def again(self) -> ValueReader | None:
        """Another reader of the same values, from the first one on; None if they can be read only once."""
        return None


class ExactReader(ValueReader):
    """Floating-point numbers."""

    def __init__(self, form: Codec, count: int, reader: BodyReader) -> None:
        own = reader.exact
        if form not in (own, *_HALF_EXPONENTS):
            raise PacketError("dtype", f"{form.name} for a model of {own.name}")
        self._form = form
        kind = reader.floats if form is own else np.dtype("<i2")
        self._values = np.frombuffer(reader.take(count * kind.itemsize), dtype=kind)
        if form is not own and (self._values & _HALF_EXPONENTS[form] == _HALF_EXPONENTS[form]).any():
            raise PacketError("not finite", "NaN or infinity")
        self._at = 0

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """Nothing to do: values do not depend on groups."""

    def read(self, out: Floats) -> None:
        values = self._values[self._at : self._at + len(out)]
        if self._form in _HALF_EXPONENTS:
            half = torch.float16 if self._form is Codec.FLOAT16 else torch.bfloat16
            for start, end in blocks(len(out), ONE_THREAD):
                # NumPy is ten times slower for float16 and does not support bfloat16.
                bits = torch.from_numpy(values[start:end].astype(np.int16))
                torch.from_numpy(out[start:end]).copy_(bits.view(half))
        else:
            out.view(np.uint8)[:] = values.view(np.uint8)  # as bytes, since a packet may be unaligned
            refuse_not_finite(out)  # on the copy: a sum of unaligned values is slow
        self._at += len(out)


class ScaledReader(ValueReader):
    """Integers with a scale and optionally an offset per group."""

    def __init__(self, scales: Floats, offsets: Floats | None) -> None:
        self._scales, self._offsets = scales, offsets
        self._edges: list[int] = []
        self._group = 0
        self._at = 0

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        self._edges = bounds.tolist()

    def read(self, out: Floats) -> None:
        """Fill `out` with offset + scale * integer, clipped to the range of the type."""
        start, end = self._at, self._at + len(out)
        while start < end:
            while self._edges[self._group + 1] <= start:
                self._group += 1
            stop = min(end, self._edges[self._group + 1])
            self._values(out[start - self._at : stop - self._at], start, self._group)
            start = stop
        self._at = end

    def _values(self, piece: Floats, at: int, group: int) -> None:
        """Fill a piece of one group, which begins at value `at`."""
        raise NotImplementedError

    def _scale(self, piece: Floats, group: int) -> None:
        scale = self._scales[group]
        offset = scale.dtype.type(0) if self._offsets is None else self._offsets[group]
        most = float(np.finfo(piece.dtype).max)
        # In a malicious packet the lowest level, the largest symbol and the low bits may all be at their limits.
        if 4 * HIGHEST_LEVEL * abs(float(scale)) + abs(float(offset)) <= most:
            piece *= scale
            if self._offsets is not None:
                piece += offset
            return
        # Halved, since the sum may be in range when the product is not.
        with np.errstate(over="ignore"):
            piece *= scale / 2
            piece += offset / 2
        np.clip(piece, -most / 2, most / 2, out=piece)
        piece *= 2


class SignReader(ScaledReader):
    """Signs: a set bit is negative."""

    def __init__(self, count: int, groups: int, reader: BodyReader) -> None:
        super().__init__(reader.values(groups), None)
        self._bits = np.frombuffer(reader.take(-(-count // 8)), dtype=np.uint8)
        self._table: tuple[int, Floats] | None = None
        """A group, and the eight values of each byte in it."""

    def _values(self, piece: Floats, at: int, group: int) -> None:
        from laconic.compression import kernels  # late: Numba is slow to load

        if self._table is None or self._table[0] != group:
            self._table = group, _SIGNS.astype(piece.dtype) * piece.dtype.type(self._scales[group])
        kernels.unpack_signs(self._bits, at, self._table[1], piece)

    def again(self) -> SignReader:
        reader = copy(self)
        reader._at = reader._group = 0
        return reader


class LevelReader(ScaledReader):
    """Levels times a step per group. All groups share the symbol weights."""

    def __init__(self, form: Codec, count: int, groups: int, reader: BodyReader) -> None:
        steps = reader.values(groups)
        super().__init__(steps, reader.values(groups) if form is Codec.GRID else None)
        self._count = count
        self._lowest = self._width = self._with_table = self._size = 0
        self._low: HalfWords | None = None
        self._read: Callable[[NDArray[Any], NDArray[Any]], None] | None = None
        if count:
            signed = reader.number(2 * HIGHEST_LEVEL)
            self._lowest = -((signed + 1) // 2) if signed % 2 else signed // 2
            self._width, self._with_table = divmod(reader.number(2 * (MOST_BITS - CODED_BITS) + 1), 2)
            self._size = 1 + reader.number(_MOST_SYMBOLS - 1)
            self._low = half_words_of(reader.take(packed_size(count, self._width)))

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        super().begin(bounds, symbols)
        if self._count:
            self._read = symbols.start(symbols.own_weights(self._size) if self._with_table else np.ones(self._size))

    def _values(self, piece: Floats, at: int, group: int) -> None:
        assert self._read is not None and self._low is not None
        levels = np.arange(self._size, dtype=np.int32)
        if not self._width:
            # One group has few different values, so the table has them scaled.
            table = (levels + self._lowest).astype(piece.dtype)
            self._scale(table, group)
            self._read(table, piece)
            return
        numbers = np.empty(len(piece), dtype=np.int32)
        self._read(levels << self._width, numbers)
        numbers |= unpack(self._low, self._width, at, at + len(piece)).astype(np.int32)
        numbers += self._lowest
        piece[:] = numbers
        self._scale(piece, group)


class PowerReader(LevelReader):
    """Powers of two times a scale per group; a level is 1 more than the number of halvings."""

    def _scale(self, piece: Floats, group: int) -> None:
        exponents = 1 - np.abs(piece).astype(np.int32)
        np.sign(piece, out=piece)
        piece *= self._scales[group]
        np.ldexp(piece, exponents, out=piece)


def read_values(form: Codec, count: int, groups: int, reader: BodyReader) -> ValueReader:
    """Read the fixed fields of the values."""
    if form is Codec.SIGN:
        return SignReader(count, groups, reader)
    if form in (Codec.STEPS, Codec.GRID):
        return LevelReader(form, count, groups, reader)
    if form is Codec.POWERS:
        return PowerReader(form, count, groups, reader)
    return ExactReader(form, count, reader)
