"""The catch-up body: several bodies that bring an absent client up to date, in one frame."""

from __future__ import annotations

import struct
from enum import IntEnum

from laconic.compression import Codec
from laconic.compression.body import BodyReader
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout

_HEAD = struct.Struct("<IIB")
_ITEM = struct.Struct("<BI")
MOST_STEPS = 256
"""Bounds the decoding time: a step of a few bytes can expand to a whole vector."""


class CatchUpForm(IntEnum):
    """The contents of a catch-up."""

    STEPS = 0
    """Every missed step H, in order."""
    VALUES = 1
    """The current values of all entries that have changed."""
    WHOLE = 2
    """The whole model, and what else belongs to a client's state."""
    ACCELERATED = 3
    """One step, which the client adds together with what it has (a mirrored downlink)."""


def frame(since: int, now: int, form: CatchUpForm, items: list[Body]) -> Body:
    """Frame the bodies that bring a client from version `since` to version `now`."""
    pieces = [_HEAD.pack(since, now, form)]
    for item in items:
        pieces += [_ITEM.pack(item.codec, len(item.data)), bytes(item.data)]
    return Body(Codec.CATCH_UP, b"".join(pieces))


def read(body: Body, layout: Layout, wholes: int = 1) -> tuple[int, int, CatchUpForm, list[Body]]:
    """Parse a catch-up into (since, now, form, bodies). Every length is checked against the bytes that are left.

    `wholes` is the number of vectors in a client's whole state.
    """
    if body.codec != Codec.CATCH_UP:
        raise PacketError("codec", "not a catch-up")
    reader, items = BodyReader(body.data, layout), []
    since, now, form = _HEAD.unpack(reader.take(_HEAD.size))
    if reader.left > wholes * (_ITEM.size + layout.size * layout.dtype.itemsize):
        # Decoding many small items could take long, and an honest server would send the whole model instead.
        raise PacketError("length", "a catch-up that is longer than the model")
    if form not in list(CatchUpForm) or since > now:
        raise PacketError("form", f"catch-up of form {form} from {since} to {now}")
    if form == CatchUpForm.STEPS and now - since > MOST_STEPS:
        raise PacketError("form", f"a catch-up of {now - since} steps; {MOST_STEPS} is the most")
    while reader.left:
        codec, length = _ITEM.unpack(reader.take(_ITEM.size))
        items.append(Body(codec, reader.take(length)))
    counts = {
        CatchUpForm.STEPS: now - since,
        CatchUpForm.VALUES: 1,
        CatchUpForm.WHOLE: wholes,
        CatchUpForm.ACCELERATED: 1,
    }
    if len(items) != counts[form]:
        raise PacketError("form", f"catch-up with {len(items)} items from {since} to {now}")
    return since, now, CatchUpForm(form), items
