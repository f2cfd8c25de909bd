"""Where a packet's values belong: everywhere, at positions that are sent, or at positions drawn from a seed.

Sent positions are coded as gaps; from an eighth of all entries on, as one bit per coordinate, entropy-coded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.errors import PacketError
from laconic.link import coding
from laconic.link.body import BodyReader, BodyWriter, Floats
from laconic.link.coding import Coding, Positions
from laconic.link.compressors.codec import RICE, Places, places_of
from laconic.link.compressors.groups import Bounds, kept_bounds, spans
from laconic.link.compressors.payload import DensePayload, Payload, SparsePayload
from laconic.link.entropy import SymbolReader, bit_model, blocks

_SEED = struct.Struct("<dQ")
_DRAWS = 1 << 20
"""Draws made at a time, so that they take little memory."""


class ValueSource(Protocol):
    """The values of a packet, one after the other."""

    def read(self, out: Floats) -> None:
        """The next ones, as many as `out` holds."""
        ...


class Placement(Protocol):
    """Where the values of one packet belong."""

    def bounds(self, groups: Bounds) -> Bounds:
        """Where each group's values begin, when they stand one after the other."""
        ...

    def payload(self, values: ValueSource, floats: np.dtype[np.floating]) -> Payload:
        """The values at their places."""
        ...


def write_positions(positions: Positions, size: int, code: Coding, writer: BodyWriter) -> int:
    """Sorted positions below `size`; returns the flags for the codec number."""
    count = len(positions)
    writer.number(count)
    if count > coding.BITMAP_ABOVE * size:
        mask = np.zeros(size, dtype=np.uint8)
        mask[positions] = 1
        writer.symbols(np.packbits(mask), bit_model(count, size))
        return Places.LISTED
    width = coding.gap_width(count, size, code)
    low, unary = coding.split_gaps(positions, width)
    writer.number(len(unary))
    writer.put(low)
    if code == "rice":
        writer.put(unary.tobytes())
        return Places.LISTED | RICE
    writer.symbols(unary, bit_model(count, 8 * len(unary)))
    return Places.LISTED


def write_seed(ratio: float, seed: int, writer: BodyWriter) -> None:
    """What `seeded_positions` needs."""
    writer.put(_SEED.pack(ratio, seed))


def seeded_positions(seed: int, ratio: float, groups: Bounds) -> Positions:
    """The same random positions on both sides: in every group, draws until enough are different."""
    mask = _seeded_mask(seed, ratio, groups)
    return np.flatnonzero(mask)


def _seeded_mask(seed: int, ratio: float, groups: Bounds) -> NDArray[np.bool_]:
    # Raw draws of a bit generator never change between versions of NumPy; those of a Generator may.
    draws = np.random.Philox(key=seed)
    mask = np.zeros(int(groups[-1]), dtype=bool)
    for (start, end), (first, last) in zip(spans(groups), spans(kept_bounds(ratio, groups)), strict=True):
        group, count = mask[start:end], last - first
        size = end - start
        # More than half: draw what stays out, so that there is always a fair chance of something new.
        left = min(count, size - count)
        while left:
            group[draws.random_raw(min(left, _DRAWS)) % np.uint64(size)] = True
            left = min(count, size - count) - int(np.count_nonzero(group))
        if count > size - count:
            np.logical_not(group, out=group)
    return mask


@dataclass(frozen=True)
class Everywhere:
    """A value for every entry."""

    count: int

    def locate(self, symbols: SymbolReader) -> Placement:
        """Nothing to read."""
        return self

    def bounds(self, groups: Bounds) -> Bounds:
        """The groups themselves."""
        return groups

    def payload(self, values: ValueSource, floats: np.dtype[np.floating]) -> Payload:
        """The dense vector."""
        whole = np.empty(self.count, dtype=floats)
        for start, end in blocks(self.count):
            values.read(whole[start:end])
        return DensePayload(torch.from_numpy(whole))


@dataclass(frozen=True)
class AtPositions:
    """Few enough positions to list them."""

    positions: Positions
    size: int

    def bounds(self, groups: Bounds) -> Bounds:
        """By the positions."""
        return np.searchsorted(self.positions, groups)

    def payload(self, values: ValueSource, floats: np.dtype[np.floating]) -> Payload:
        """Sparse, and it stays so."""
        sent = np.empty(len(self.positions), dtype=floats)
        for start, end in blocks(len(sent)):
            values.read(sent[start:end])
        return SparsePayload(torch.from_numpy(self.positions), torch.from_numpy(sent), self.size)


@dataclass(frozen=True)
class UnderMask:
    """So many positions that a list would be larger than the vector."""

    mask: NDArray[np.bool_]

    def bounds(self, groups: Bounds) -> Bounds:
        """By counting."""
        return np.cumsum([0, *(np.count_nonzero(self.mask[start:end]) for start, end in spans(groups))])

    def payload(self, values: ValueSource, floats: np.dtype[np.floating]) -> Payload:
        """Dense, with zeros in between."""
        whole = np.zeros(len(self.mask), dtype=floats)
        for start, end in blocks(len(whole)):
            mask = self.mask[start:end]
            sent = np.empty(np.count_nonzero(mask), dtype=floats)
            values.read(sent)
            whole[start:end][mask] = sent
        return DensePayload(torch.from_numpy(whole))


def _placement(mask: NDArray[np.bool_], count: int) -> Placement:
    if count > coding.BITMAP_ABOVE * len(mask):
        return UnderMask(mask)
    return AtPositions(np.flatnonzero(mask), len(mask))


@dataclass(frozen=True)
class FromSeed:
    """Positions to be drawn."""

    count: int
    seed: int
    ratio: float
    groups: Bounds

    def locate(self, symbols: SymbolReader) -> Placement:
        """Draw them."""
        return _placement(_seeded_mask(self.seed, self.ratio, self.groups), self.count)


@dataclass(frozen=True)
class FromBits:
    """One entropy-coded bit per coordinate."""

    count: int
    size: int

    def locate(self, symbols: SymbolReader) -> Placement:
        """Read the bits, and count them."""
        sent = symbols.take(-(-self.size // 8), bit_model(self.count, self.size)).astype(np.uint8)
        mask = np.unpackbits(sent).view(bool)
        if np.count_nonzero(mask[: self.size]) != self.count or mask[self.size :].any():
            raise PacketError("positions", f"not {self.count} of {self.size}")
        return UnderMask(mask[: self.size])


@dataclass(frozen=True)
class FromGaps:
    """Gaps between positions: low bits, and a unary stream that is there (`unary`) or still to be decoded."""

    count: int
    size: int
    width: int
    low: memoryview
    unary_size: int
    unary: memoryview | None

    def locate(self, symbols: SymbolReader) -> Placement:
        """Put the gaps together."""
        if self.unary is None:
            unary = symbols.take(self.unary_size, bit_model(self.count, 8 * self.unary_size)).astype(np.uint8)
        else:
            unary = np.frombuffer(self.unary, dtype=np.uint8)
        return AtPositions(coding.join_gaps(self.low, unary, self.count, self.size, self.width), self.size)


def read_places(
    codec: int, size: int, groups: Bounds, reader: BodyReader
) -> Everywhere | FromSeed | FromBits | FromGaps:
    """The fixed fields about places; `locate` reads what is entropy-coded."""
    places = places_of(codec)
    if codec & RICE and places is not Places.LISTED:
        raise PacketError("codec", f"number {codec} is not known")
    if places is Places.ALL:
        return Everywhere(size)
    if places is Places.SEEDED:
        ratio, seed = _SEED.unpack(reader.take(_SEED.size))
        if not 0 < ratio <= 1:
            raise PacketError("ratio", f"{ratio} is not above 0 and at most 1")
        return FromSeed(int(kept_bounds(ratio, groups)[-1]), seed, ratio, groups)
    count = reader.number(size)
    if count > coding.BITMAP_ABOVE * size:
        if codec & RICE:
            raise PacketError("positions", f"{count} of {size} as gaps")
        return FromBits(count, size)
    width = coding.gap_width(count, size, "rice" if codec & RICE else "range")
    unary_size = reader.number(coding.unary_limit(count, size, width))
    low = reader.take(coding.packed_size(count, width))
    unary = reader.take(unary_size) if codec & RICE else None
    return FromGaps(count, size, width, low, unary_size, unary)
