"""The framing of what a client has missed: one body that holds others."""

from __future__ import annotations

import struct
from enum import IntEnum

from laconic.compression import Codec
from laconic.compression.packet import Body
from laconic.core.errors import PacketError
from laconic.core.layout import Layout

_HEAD = struct.Struct("<IIB")
_ITEM = struct.Struct("<BI")
MOST_STEPS = 256
"""A step of a few bytes may stand for a whole vector, so what a client can be made to decode needs a bound."""


class Form(IntEnum):
    """How what a client has missed is told."""

    STEPS = 0
    """Every H since then, in order."""
    VALUES = 1
    """The model's values at all positions that have changed."""
    WHOLE = 2
    """The whole model."""


def frame(since: int, now: int, form: Form, items: list[Body]) -> Body:
    """Bodies, one after the other, that bring a client from model `since` to model `now`."""
    pieces = [_HEAD.pack(since, now, form)]
    for item in items:
        pieces += [_ITEM.pack(item.codec, len(item.data)), bytes(item.data)]
    return Body(Codec.CATCH_UP, b"".join(pieces))


def read(body: Body, layout: Layout) -> tuple[int, int, Form, list[Body]]:
    """Take a catch-up apart; lengths are checked against what is really there."""
    data = memoryview(body.data)
    if body.codec != Codec.CATCH_UP or len(data) < _HEAD.size:
        raise PacketError("codec", "not a catch-up")
    if len(data) > _HEAD.size + _ITEM.size + layout.size * layout.dtype.itemsize:
        # Many small items could take long to decode; and whoever has that much to say sends the whole model.
        raise PacketError("length", "a catch-up that is longer than the model")
    since, now, form = _HEAD.unpack_from(data)
    if form not in list(Form) or since > now:
        raise PacketError("form", f"catch-up of form {form} from {since} to {now}")
    if form == Form.STEPS and now - since > MOST_STEPS:
        raise PacketError("form", f"a catch-up of {now - since} steps; {MOST_STEPS} is the most")
    items, place = [], _HEAD.size
    while place < len(data):
        if len(data) - place < _ITEM.size:
            raise PacketError("truncated", "a catch-up ends within an item")
        codec, length = _ITEM.unpack_from(data, place)
        place += _ITEM.size
        if length > len(data) - place:
            raise PacketError("truncated", "a catch-up ends within an item")
        items.append(Body(codec, data[place : place + length]))
        place += length
    if len(items) != (now - since if form == Form.STEPS else 1):
        raise PacketError("form", f"catch-up with {len(items)} items from {since} to {now}")
    return since, now, Form(form), items
