"""The codec number of a body: which entries it holds, in what form, and how they are grouped.

One byte says it all, so bodies need no header of their own: a form, plus a `PositionKind`, plus flags. The format is
specified in docs/reference/wire-format.md.
"""

from __future__ import annotations

from enum import IntEnum

from laconic.core.errors import PacketError


class Codec(IntEnum):
    """The form of the values: the low four bits."""

    SKIP = 0
    """No body: the receiver uses what it has."""
    FLOAT32 = 1
    FLOAT64 = 2
    FLOAT16 = 3
    BFLOAT16 = 4
    SIGN = 5
    """A bit each, and a scale per group."""
    STEPS = 6
    """Whole multiples of a step per group."""
    GRID = 7
    """Whole multiples of a step per group, from a lowest value per group."""
    CATCH_UP = 8
    """Not a vector, but bodies that bring a client's model up to date (laconic.algorithms.downlinks.catch_up)."""
    CHUNKED = 9
    """The size of the chunks that are its groups, the codec of the rest, and the rest."""


class PositionKind(IntEnum):
    """Which entries the values belong to: the next two bits."""

    ALL = 0
    LISTED = 16
    """Positions are sent."""
    SEEDED = 32
    """Positions follow from a seed that is sent."""


BY_LAYER = 64
"""Flag: one group per parameter tensor, instead of one for the model."""
RICE = 128
"""Flag: the unary part of positions is sent as it is, not entropy-coded."""


def form_of(codec: int) -> Codec:
    """The form of the values; SKIP stands for itself only."""
    try:
        form = Codec(codec & 15)
    except ValueError:
        raise PacketError("codec", f"number {codec} is not known") from None
    if form in (Codec.SKIP, Codec.CATCH_UP, Codec.CHUNKED):
        known = f"a {form.name.lower()} where a vector is expected" if codec == form else f"number {codec} is not known"
        raise PacketError("codec", known)
    return form


def position_kind(codec: int) -> PositionKind:
    """Which entries there are."""
    try:
        return PositionKind(codec & 48)
    except ValueError:
        raise PacketError("codec", f"number {codec} is not known") from None
