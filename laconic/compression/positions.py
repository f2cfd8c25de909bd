"""The positions of a packet's values: all entries, a list of positions, or positions drawn from a seed.

Listed positions are coded as gaps. Above one eighth of all entries they are coded as an entropy-coded bitmap.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.compression import gap_coding as gaps
from laconic.compression.bit_packing import half_words_of, pack, packed_size, unpack
from laconic.compression.body import BodyReader, BodyWriter
from laconic.compression.codec import RICE, PositionKind, position_kind
from laconic.compression.entropy import BLOCK, SymbolReader, SymbolRun, bit_weights, blocks
from laconic.compression.gap_coding import Coding, Positions
from laconic.compression.groups import Bounds, kept_bounds, spans
from laconic.compression.payload import BlockPayload, DensePayload, SentPayload, SparsePayload
from laconic.compression.values import ValueReader
from laconic.core.errors import PacketError

BITMAP_ABOVE = 1 / 8
"""Above this fraction of entries, a bitmap is simpler than gaps, and entropy coding makes it as small."""
_WORTHWHILE = 0.99
"""Classes decode more slowly, so they must be smaller by this factor."""
_SEED = struct.Struct("<dQ")


class GapForm(IntEnum):
    """The form of gaps (gap_coding.py)."""

    SPLIT = 0
    SPLIT_WITH_TABLE = 1
    VARIED = 2
    """Split, with a width per run."""
    CLASSED = 3


class Placement(Protocol):
    """The decoded positions of a packet."""

    def bounds(self, groups: Bounds) -> Bounds:
        """The bounds of each group's values in the vector of all values."""
        ...

    def payload(self, values: ValueReader, floats: np.dtype[np.floating]) -> SentPayload:
        """The values at their positions."""
        ...


Locate: TypeAlias = Callable[[SymbolReader], Placement]
"""Decodes the entropy-coded part of the positions, after all fixed fields of the body have been read."""


def write_positions(positions: Positions, size: int, coding: Coding, writer: BodyWriter) -> int:
    """Write sorted positions below `size`; return the flags for the codec number."""
    count = len(positions)
    writer.number(count)
    if count > BITMAP_ABOVE * size:
        mask = np.zeros(size, dtype=np.uint8)
        mask[positions] = 1
        writer.number(writer.symbols.put(SymbolRun.smaller(np.packbits(mask), bit_weights(count, size))))
        return PositionKind.LISTED
    between = gaps.gaps_of(positions)
    widths, low, unary = gaps.split(between, size, coding)
    if coding == "rice":
        varied = not np.array_equal(widths, gaps.common_widths(count, size, coding))
        _write_head(len(unary), GapForm.VARIED if varied else GapForm.SPLIT, writer)
        if varied:
            writer.put(pack(widths, gaps.WIDTH_BITS))
        writer.put(low)
        writer.put(unary.tobytes())
        return PositionKind.LISTED | RICE
    split = SymbolRun.smaller(unary, bit_weights(count, 8 * len(unary)))
    classes, class_bits = gaps.classify(between)
    classed = SymbolRun.with_table(classes, gaps.CLASSES)
    if classed.bits + 8 * len(class_bits) < _WORTHWHILE * (split.bits + 8 * len(low)):
        writer.symbols.put(classed)
        _write_head(len(class_bits), GapForm.CLASSED, writer)
        writer.put(class_bits)
    else:
        with_table = writer.symbols.put(split)
        _write_head(len(unary), GapForm.SPLIT_WITH_TABLE if with_table else GapForm.SPLIT, writer)
        writer.put(low)
    return PositionKind.LISTED


def _write_head(size: int, form: GapForm, writer: BodyWriter) -> None:
    writer.number(4 * size + form)


@dataclass(frozen=True)
class Everywhere(Placement):
    """A value for every entry."""

    count: int

    def bounds(self, groups: Bounds) -> Bounds:
        return groups

    def payload(self, values: ValueReader, floats: np.dtype[np.floating]) -> SentPayload:
        if (unread := values.again()) is not None:
            return BlockPayload(partial(copy, unread), self.count, floats)
        vector = np.empty(self.count, dtype=floats)
        for start, end in blocks(self.count):
            values.read(vector[start:end])
        return DensePayload(torch.from_numpy(vector))


@dataclass(frozen=True)
class AtPositions(Placement):
    """A list of positions, for sparse vectors."""

    positions: Positions
    size: int

    def bounds(self, groups: Bounds) -> Bounds:
        return np.searchsorted(self.positions, groups)

    def payload(self, values: ValueReader, floats: np.dtype[np.floating]) -> SentPayload:
        kept = np.empty(len(self.positions), dtype=floats)
        values.read(kept)
        return SparsePayload(torch.from_numpy(self.positions), torch.from_numpy(kept), self.size)


@dataclass(frozen=True)
class UnderMask(Placement):
    """A mask, where a list of positions would take more memory than the vector."""

    mask: NDArray[np.bool_]

    def bounds(self, groups: Bounds) -> Bounds:
        return np.cumsum([0, *(np.count_nonzero(self.mask[start:end]) for start, end in spans(groups))])

    def payload(self, values: ValueReader, floats: np.dtype[np.floating]) -> SentPayload:
        vector = np.zeros(len(self.mask), dtype=floats)
        for start, end in blocks(len(vector)):
            mask = self.mask[start:end]
            kept = np.empty(np.count_nonzero(mask), dtype=floats)
            values.read(kept)
            vector[start:end][mask] = kept
        return DensePayload(torch.from_numpy(vector), torch.from_numpy(self.mask))


@dataclass(frozen=True)
class Seed:
    """The source of random positions: the fraction of each group that is kept, and the key of the generator."""

    ratio: float
    key: int

    def positions(self, groups: Bounds) -> Positions:
        """Draw the positions, the same on both sides."""
        return np.flatnonzero(self._mask(groups))

    def placement(self, groups: Bounds) -> Placement:
        """The positions as a list or, if there are many, as a mask."""
        mask = self._mask(groups)
        if np.count_nonzero(mask) > BITMAP_ABOVE * len(mask):
            return UnderMask(mask)
        return AtPositions(np.flatnonzero(mask), len(mask))

    def write(self, writer: BodyWriter) -> int:
        """Write ratio and key; return the flags for the codec number."""
        writer.put(_SEED.pack(self.ratio, self.key))
        return PositionKind.SEEDED

    def _mask(self, groups: Bounds) -> NDArray[np.bool_]:
        # The raw draws of a bit generator are the same in all versions of NumPy; those of a Generator may change.
        draws = np.random.Philox(key=self.key)
        mask = np.zeros(int(groups[-1]), dtype=bool)
        for (start, end), (first, last) in zip(spans(groups), spans(kept_bounds(self.ratio, groups)), strict=True):
            group, count = mask[start:end], last - first
            size = end - start
            # Draw until enough positions are distinct. Above one half, draw the excluded ones, which takes fewer draws.
            left = min(count, size - count)
            while left:
                group[draws.random_raw(min(left, BLOCK)) % np.uint64(size)] = True
                left = min(count, size - count) - int(np.count_nonzero(group))
            if count > size - count:
                np.logical_not(group, out=group)
        return mask


def read_positions(codec: int, size: int, groups: Bounds, reader: BodyReader) -> tuple[int, Locate]:
    """Read the fixed fields of the positions; returns their number, and a function that reads the rest."""
    kind = position_kind(codec)
    if codec & RICE and kind is not PositionKind.LISTED:
        raise PacketError("codec", f"number {codec} is not known")
    if kind is PositionKind.ALL:
        return size, lambda symbols: Everywhere(size)
    if kind is PositionKind.SEEDED:
        ratio, key = _SEED.unpack(reader.take(_SEED.size))
        if not 0 < ratio <= 1:
            raise PacketError("ratio", f"{ratio} is not above 0 and at most 1")
        return int(kept_bounds(ratio, groups)[-1]), lambda symbols: Seed(ratio, key).placement(groups)
    count = reader.number(size)
    if count <= BITMAP_ABOVE * size:
        return count, _read_gaps(count, size, bool(codec & RICE), reader)
    if codec & RICE:
        raise PacketError("positions", f"{count} of {size} as gaps")
    with_table = bool(reader.number(1))
    return count, lambda symbols: _bitmap(count, size, with_table, symbols)


def _bitmap(count: int, size: int, with_table: bool, symbols: SymbolReader) -> Placement:
    weights = symbols.own_weights(256) if with_table else bit_weights(count, size)
    mask = np.unpackbits(symbols.take(-(-size // 8), weights).astype(np.uint8)).view(bool)
    if np.count_nonzero(mask[:size]) != count or mask[size:].any():
        raise PacketError("positions", f"not {count} of {size}")
    return UnderMask(mask[:size])


def _read_gaps(count: int, size: int, rice: bool, reader: BodyReader) -> Locate:
    head = reader.number(4 * max(gaps.unary_limit(count, size), 4 * count) + 3)
    length, form = head // 4, GapForm(head % 4)
    allowed = (GapForm.SPLIT, GapForm.VARIED) if rice else (GapForm.SPLIT, GapForm.SPLIT_WITH_TABLE, GapForm.CLASSED)
    if form not in allowed:
        raise PacketError("positions", f"form {form.name} with this codec")
    if form is GapForm.CLASSED:
        class_bits = reader.take(length)

        def locate_classed(symbols: SymbolReader) -> Placement:
            classes = symbols.take(count, symbols.own_weights(gaps.CLASSES))
            return AtPositions(gaps.join_classes(classes, class_bits, size), size)

        return locate_classed
    if length > gaps.unary_limit(count, size):
        raise PacketError("positions", f"{length} bytes of unary numbers")
    runs = -(-count // gaps.RUN)
    if form is GapForm.VARIED:
        packed = half_words_of(reader.take(packed_size(runs, gaps.WIDTH_BITS)))
        widths = unpack(packed, gaps.WIDTH_BITS, 0, runs).astype(np.uint8)
    else:
        widths = gaps.common_widths(count, size, "rice" if rice else "ans")
    low = reader.take(gaps.low_size(widths, count))
    stored = np.frombuffer(reader.take(length), dtype=np.uint8) if rice else None

    def locate_split(symbols: SymbolReader) -> Placement:
        unary = stored
        if unary is None:
            weights = symbols.own_weights(256) if form is GapForm.SPLIT_WITH_TABLE else bit_weights(count, 8 * length)
            unary = symbols.take(length, weights).astype(np.uint8)
        return AtPositions(gaps.join_split(widths, low, unary, count, size), size)

    return locate_split
