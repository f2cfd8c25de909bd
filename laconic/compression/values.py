"""Reading the values of a body: exact, one bit, or levels. forms.py writes them."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from laconic.compression.bit_packing import half_words_of, packed_size, unpack
from laconic.compression.body import BodyReader, Floats, refuse_not_finite
from laconic.compression.codec import Codec
from laconic.compression.entropy import ONE_THREAD, SymbolReader, blocks
from laconic.compression.groups import Bounds
from laconic.core.errors import PacketError

MOST_BITS = 16
CODED_BITS = 8
"""Levels of more bits are split: this many are entropy-coded, the lower ones are close to random and sent as they are."""
_MOST_SYMBOLS = 2**CODED_BITS + 1
HIGHEST_LEVEL = 2**MOST_BITS
_HALF_EXPONENTS = {Codec.FLOAT16: 0x7C00, Codec.BFLOAT16: 0x7F80}
"""The bits that are all set in NaN and infinity."""
_SIGNS = 1 - 2 * np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
"""The eight signs of each byte."""


class ValueReader(Protocol):
    """The values of one packet: the fixed fields have been read, what is entropy-coded is read on the way."""

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """Learn where the groups are."""
        ...

    def read(self, out: Floats) -> None:
        """The next values, as many as `out` holds."""
        ...


class ExactReader:
    """Floating numbers as they are."""

    def __init__(self, form: Codec, count: int, reader: BodyReader) -> None:
        own = Codec.FLOAT32 if reader.floats.itemsize == 4 else Codec.FLOAT64
        if form not in (own, *_HALF_EXPONENTS):
            raise PacketError("dtype", f"{form.name} for a model of {own.name}")
        self._form = form
        kind = reader.floats if form is own else np.dtype("<i2")
        self._values = np.frombuffer(reader.take(count * kind.itemsize), dtype=kind)
        if form is not own and (self._values & _HALF_EXPONENTS[form] == _HALF_EXPONENTS[form]).any():
            raise PacketError("not finite", "NaN or infinity")
        self._at = 0

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """Groups make no difference."""

    def read(self, out: Floats) -> None:
        """Copy, in the model's type."""
        sent = self._values[self._at : self._at + len(out)]
        if self._form in _HALF_EXPONENTS:
            half = torch.float16 if self._form is Codec.FLOAT16 else torch.bfloat16
            for start, end in blocks(len(out), ONE_THREAD):
                # NumPy converts half precision ten times as slowly, and knows no bfloat16.
                bits = torch.from_numpy(sent[start:end].astype(np.int16))
                torch.from_numpy(out[start:end]).copy_(bits.view(half))
        else:
            out.view(np.uint8)[:] = sent.view(np.uint8)  # as bytes: they need not lie aligned in a packet
            # Looked at here, where they lie aligned: within a packet they need not, and a sum would take much longer.
            refuse_not_finite(out)
        self._at += len(out)


class ScaledReader:
    """Small whole numbers, a factor per group, and perhaps an offset per group."""

    def __init__(self, scales: Floats, offsets: Floats | None) -> None:
        self._scales, self._offsets = scales, offsets
        self._edges: list[int] = []
        self._group = 0
        self._at = 0

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """Learn where the groups are."""
        self._edges = bounds.tolist()

    def read(self, out: Floats) -> None:
        """offset + scale * number; what overflows becomes the largest number, on both sides alike."""
        self._numbers(out, self._at)
        start, end = self._at, self._at + len(out)
        while start < end:
            while self._edges[self._group + 1] <= start:
                self._group += 1
            stop = min(end, self._edges[self._group + 1])
            self._scale(out[start - self._at : stop - self._at], self._group)
            start = stop
        self._at = end

    def _numbers(self, out: Floats, at: int) -> None:
        raise NotImplementedError

    def _scale(self, piece: Floats, group: int) -> None:
        scale = self._scales[group]
        offset = scale.dtype.type(0) if self._offsets is None else self._offsets[group]
        most = float(np.finfo(piece.dtype).max)
        # A hostile packet's lowest level and largest symbol may both be at their limit, and the low bits as well.
        if 4 * HIGHEST_LEVEL * abs(float(scale)) + abs(float(offset)) <= most:
            piece *= scale
            if self._offsets is not None:
                piece += offset
            return
        # In halves: the sum may be within reach where the product alone is not.
        with np.errstate(over="ignore"):
            piece *= scale / 2
            piece += offset / 2
        np.clip(piece, -most / 2, most / 2, out=piece)
        piece *= 2


class SignReader(ScaledReader):
    """One bit each, set for minus."""

    def __init__(self, count: int, groups: int, reader: BodyReader) -> None:
        super().__init__(reader.values(groups), None)
        self._bits = np.frombuffer(reader.take(-(-count // 8)), dtype=np.uint8)
        self._table = _SIGNS.astype(reader.floats.newbyteorder("="))
        self._single = groups == 1
        if self._single:
            self._table *= self._scales[0]

    def _numbers(self, out: Floats, at: int) -> None:
        sent = self._bits[at // 8 : -(-(at + len(out)) // 8)]
        if at % 8 == 0 and len(out) % 8 == 0:
            np.take(self._table, sent, axis=0, out=out.reshape(-1, 8), mode="clip")
        else:
            out[:] = self._table[sent].reshape(-1)[at % 8 :][: len(out)]

    def _scale(self, piece: Floats, group: int) -> None:
        if not self._single:  # with one group the table holds the scale already
            piece *= self._scales[group]


class LevelReader(ScaledReader):
    """Whole numbers, under weights that the whole packet shares, times a step per group."""

    def __init__(self, form: Codec, count: int, groups: int, reader: BodyReader) -> None:
        steps = reader.values(groups)
        super().__init__(steps, reader.values(groups) if form is Codec.GRID else None)
        self._count = count
        if count:
            self._lowest = reader.number(2 * HIGHEST_LEVEL) - HIGHEST_LEVEL
            self._width = reader.number(MOST_BITS - CODED_BITS)
            self._size = 1 + reader.number(_MOST_SYMBOLS - 1)
            self._with_table = reader.number(1)
            self._low = half_words_of(reader.take(packed_size(count, self._width)))

    def begin(self, bounds: Bounds, symbols: SymbolReader) -> None:
        """The levels come from the entropy coder."""
        super().begin(bounds, symbols)
        if self._count:
            self._take = symbols.start(symbols.own_weights(self._size) if self._with_table else np.ones(self._size))

    def _numbers(self, out: Floats, at: int) -> None:
        if not len(out):
            return
        levels = self._take(len(out)).astype(np.int32)
        if self._width:
            levels <<= self._width
            levels |= unpack(self._low, self._width, at, at + len(out)).astype(np.int32)
        levels += self._lowest
        out[:] = levels


def read_values(form: Codec, count: int, groups: int, reader: BodyReader) -> ValueReader:
    """The fixed fields of the values."""
    if form is Codec.SIGN:
        return SignReader(count, groups, reader)
    if form in (Codec.STEPS, Codec.GRID):
        return LevelReader(form, count, groups, reader)
    return ExactReader(form, count, reader)
