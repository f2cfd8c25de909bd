"""Forms: the result of a compressor for one group of entries, and how the forms of all groups become one body.

A compressor returns `Levels`, `Powers`, `Signs`, `Kept`, or a NumPy vector, which is sent without compression.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.compression.bit_packing import pack
from laconic.compression.body import BodyWriter, Floats
from laconic.compression.codec import Codec
from laconic.compression.entropy import ONE_THREAD, SymbolRun, blocks
from laconic.compression.gap_coding import Coding, Positions
from laconic.compression.groups import Bounds
from laconic.compression.positions import Seed, write_positions
from laconic.compression.selection import peak
from laconic.compression.values import CODED_BITS, HIGHEST_LEVEL, MOST_BITS
from laconic.core.errors import ConfigError, PacketError

_HALVES = {"float16": (torch.float16, Codec.FLOAT16), "bfloat16": (torch.bfloat16, Codec.BFLOAT16)}


@dataclass(frozen=True, eq=False)
class Values:
    """Floating-point numbers in the vector's type or in 16 bits. Values beyond the range of the type are clipped."""

    values: Floats
    kind: Literal["float16", "bfloat16"] | None = None

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def write(cls, forms: Sequence[Self], writer: BodyWriter) -> Codec:
        """Write the values of all groups in order."""
        values, kind = _joined([form.values for form in forms]), forms[0].kind
        if kind is None:
            writer.values(values)
            return writer.exact
        peak(values)  # rejects NaN and infinity
        half, codec = _HALVES[kind]
        most = torch.finfo(half).max
        for start, end in blocks(len(values), ONE_THREAD):
            # np.clip makes a copy, which torch may write to.
            rounded = torch.from_numpy(np.clip(values[start:end], -most, most)).to(half)
            writer.put(rounded.view(torch.int16).numpy().astype("<i2", copy=False).tobytes())
        return codec


@dataclass(frozen=True, eq=False)
class Signs:
    """One bit per entry: `-scale` where `negative`, else `scale`."""

    negative: NDArray[np.bool_]
    scale: float

    def __len__(self) -> int:
        return len(self.negative)

    @classmethod
    def write(cls, forms: Sequence[Self], writer: BodyWriter) -> Codec:
        """Write a scale per group and a bit per value."""
        negative = _joined([form.negative for form in forms])
        if negative.dtype != np.bool_:
            raise ConfigError("Signs.negative must be a vector of booleans, as in x < 0")
        _write_numbers([form.scale for form in forms], writer)
        writer.put(np.packbits(negative).tobytes())
        return Codec.SIGN


@dataclass(frozen=True, eq=False)
class Levels:
    """Entropy-coded integers: each entry is `offset + scale * level`."""

    levels: NDArray[Any]
    scale: float
    offset: float | None = None
    bits: int | None = None
    """The width of a level; by default as many as the levels need. Only the upper 8 bits are entropy-coded."""

    def __len__(self) -> int:
        return len(self.levels)

    @classmethod
    def write(cls, forms: Sequence[Self], writer: BodyWriter) -> Codec:
        """Write a scale per group, an offset per group if there are any, and the levels."""
        _write_numbers([form.scale for form in forms], writer)
        grid = any(form.offset is not None for form in forms)
        if grid:
            _write_numbers([0.0 if form.offset is None else form.offset for form in forms], writer)
        _write_levels(_joined([form.levels for form in forms]), forms[0].bits, writer)
        return Codec.GRID if grid else Codec.STEPS


@dataclass(frozen=True, eq=False)
class Powers:
    """Entropy-coded powers of two: each entry is `sign(level) * scale * 2^(1 - |level|)`, or 0 for the level 0."""

    levels: NDArray[Any]
    scale: float

    def __len__(self) -> int:
        return len(self.levels)

    @classmethod
    def write(cls, forms: Sequence[Self], writer: BodyWriter) -> Codec:
        """Write a scale per group, and the levels."""
        _write_numbers([form.scale for form in forms], writer)
        _write_levels(_joined([form.levels for form in forms]), None, writer)
        return Codec.POWERS


ValueForm: TypeAlias = Values | Signs | Levels | Powers


@dataclass(frozen=True, eq=False)
class Kept:
    """Some entries: their sorted positions within the group, and their values. The others are zero."""

    positions: Positions
    values: ValueForm | Floats
    coding: Coding = "ans"
    """How positions are coded: `ans` is smaller, `rice` decodes slightly faster."""
    seed: Seed | None = None
    """If the positions of all groups are drawn from a seed, the seed is sent instead of them."""

    def __len__(self) -> int:
        return len(self.positions)


Form: TypeAlias = ValueForm | Kept | Floats


def write_forms(forms: Sequence[Form], groups: Bounds, writer: BodyWriter) -> int:
    """Write the forms of all groups as the fields of one body; return its codec number without the granularity."""
    if not forms:
        return Values.write([Values(np.zeros(0))], writer)
    _refuse_mixed(forms)
    flags = 0
    if isinstance(forms[0], Kept):
        kept = [form for form in forms if isinstance(form, Kept)]
        flags = _write_positions(kept, groups, writer)
        forms, sizes = [form.values for form in kept], [len(form) for form in kept]
    else:
        sizes = np.diff(groups).tolist()
    values: list[Form] = [Values(form) if isinstance(form, np.ndarray) else form for form in forms]
    _refuse_mixed(values)
    found = [len(form) for form in values]
    if found != sizes:
        raise ConfigError(f"forms of {found} values where {sizes} are needed")
    kind: Any = type(values[0])
    return flags | int(kind.write(values, writer))


def _refuse_mixed(forms: Sequence[Form]) -> None:
    kinds = {type(form) for form in forms}
    if len(kinds) > 1 or not kinds <= {Values, Signs, Levels, Powers, Kept, np.ndarray}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ConfigError(
            f"compress returned {names}: Levels, Powers, Signs, Kept or a NumPy vector is needed, the same for all groups"
        )


def _write_positions(forms: Sequence[Kept], groups: Bounds, writer: BodyWriter) -> int:
    """Write one sorted list of positions for all groups, which saves a header per group."""
    if forms[0].seed is not None:
        return forms[0].seed.write(writer)
    counts = np.cumsum([0, *map(len, forms)])
    starts = np.repeat(groups[:-1], np.diff(counts))
    positions = starts + _joined([form.positions for form in forms])
    if (
        positions.dtype.kind != "i"
        or (np.diff(positions) < 1).any()
        or not np.array_equal(np.searchsorted(positions, groups), counts)
    ):
        raise ConfigError("Kept.positions must be sorted, different integers within the group")
    return write_positions(positions, int(groups[-1]), forms[0].coding, writer)


def _joined(arrays: Sequence[Any]) -> NDArray[Any]:
    """One NumPy vector; a compressor may also use lists or tensors."""
    return np.asarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def _write_numbers(numbers: Sequence[float], writer: BodyWriter) -> None:
    """Write one number per group, in the vector's type."""
    with np.errstate(over="ignore"):
        values = np.array(numbers, dtype=np.float64).astype(writer.floats)
    if values.ndim != 1:
        raise ConfigError("a scale or an offset must be one number for the group")
    if not np.isfinite(values).all():
        raise PacketError("not finite", "the vector to send has NaN or infinity")
    writer.values(values)


def _write_levels(levels: NDArray[Any], bits: int | None, writer: BodyWriter) -> None:
    """Write levels as symbols, their differences from the lowest level."""
    if not len(levels):
        return
    ends = levels.min(), levels.max()
    if not np.isfinite(ends).all():
        raise PacketError("not finite", "the vector to send has NaN or infinity")
    lowest, highest = map(int, ends)
    if max(-lowest, highest, highest - lowest) > HIGHEST_LEVEL:
        raise ConfigError(f"levels from {lowest} to {highest}: at most {HIGHEST_LEVEL} from zero and from each other")
    if levels.dtype.kind == "f" and not np.array_equal(levels, np.rint(levels)):
        raise ConfigError("Levels.levels must be whole numbers")
    needed = min(MOST_BITS, (highest - lowest).bit_length()) if bits is None else bits
    width = max(0, needed - CODED_BITS)
    size = ((highest - lowest) >> width) + 1
    integers = levels.astype(np.int32) if levels.dtype.kind in "fb" else levels
    # Differences below 2^16 are exact modulo 2^16, whatever the signs.
    kind = np.uint16 if highest - lowest < 2**16 else np.uint32
    symbols: NDArray[Any] = np.subtract(integers, integers.dtype.type(lowest), dtype=kind, casting="unsafe")
    low = b""
    if width:
        low = pack(symbols & (2**width - 1), width)
        symbols >>= width
    with_table = writer.symbols.put(SymbolRun.smaller(symbols, np.ones(size)))
    for field in (2 * lowest if lowest >= 0 else -2 * lowest - 1, 2 * width + with_table, size - 1):
        writer.number(field)
    writer.put(low)
