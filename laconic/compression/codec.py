"""The codec number of a body: the form of its values, which entries they belong to, and their groups.

It is one byte, the sum of a `Codec`, a `PositionKind` and flags. The format is specified in docs/reference/wire-format.md.
"""

from __future__ import annotations

from enum import IntEnum

from laconic.core.errors import PacketError


class Codec(IntEnum):
    """The form of the values: the low four bits."""

    SKIP = 0
    """No body: the receiver uses the vector that it already has."""
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    SIGN = 5
    """One bit per value, and one scale per group."""
    STEPS = 6
    """Integer multiples of a step per group."""
    GRID = 7
    """Integer multiples of a step per group, plus an offset per group."""
    CATCH_UP = 8
    """Several bodies that bring a client's model up to date (laconic.algorithms.downlinks.catch_up)."""
    CHUNKED = 9
    """Groups are chunks: the chunk size, the codec of the rest, and the rest."""
    ROTATED = 10
    """A rotated vector: the seed of the rotation, the codec of the rest, and the rest (laconic.compression.rotation)."""
    POWERS = 11
    """Powers of two times a scale per group."""


class PositionKind(IntEnum):
    """Which entries the values belong to: the next two bits."""

    ALL = 0
    LISTED = 16
    """Positions are sent."""
    SEEDED = 32
    """Positions are drawn from a seed that is sent."""


BY_LAYER = 64
"""Flag: one group per parameter tensor instead of one for the model."""
RICE = 128
"""Flag: the unary part of positions is not entropy-coded."""


def form_of(codec: int) -> Codec:
    """The form of the values; `PacketError` if the codec is not that of a vector."""
    try:
        form = Codec(codec & 15)
    except ValueError:
        raise PacketError("codec", f"number {codec} is not known") from None
    if form in (Codec.SKIP, Codec.CATCH_UP, Codec.CHUNKED, Codec.ROTATED):
        vector = f"a {form.name.lower()} where a vector is expected"
        raise PacketError("codec", vector if codec == form else f"number {codec} is not known")
    return form


def position_kind(codec: int) -> PositionKind:
    """Which entries the values belong to."""
    try:
        return PositionKind(codec & 48)
    except ValueError:
        raise PacketError("codec", f"number {codec} is not known") from None
