"""Decoding of bodies. A body names its codec, so the receiver needs only the layout."""

from __future__ import annotations

import math
import struct

import numpy as np
import torch

from laconic.compression.body import DENSE_CODECS, BodyReader, float_type
from laconic.compression.codec import BY_LAYER, Codec, form_of
from laconic.compression.entropy import SymbolReader, blocks
from laconic.compression.groups import LARGEST_CHUNK, SMALLEST_CHUNK, Bounds, chunk_bounds, group_bounds
from laconic.compression.packet import Body
from laconic.compression.payload import DensePayload, SentPayload
from laconic.compression.positions import Placement, read_positions
from laconic.compression.rotation import rotate
from laconic.compression.values import ValueReader, read_values
from laconic.core.devices import all_finite
from laconic.core.errors import PacketError
from laconic.core.layout import Layout

_ROTATION = struct.Struct("<IB")
_DENSE_TYPES: dict[int, torch.dtype] = {codec: dtype for dtype, codec in DENSE_CODECS.items()}


def decode_body(body: Body, layout: Layout, *, keep: bool = False) -> SentPayload:
    """Decode a body; `PacketError` if a field exceeds the bytes, a number is not finite, or the layout does not match.

    Error feedback and aggregation use this result, never the encoder's intermediate values. For any input, memory use stays
    below twice the dense vector.

    Args:
        body: The bytes and their codec.
        layout: The layers of the model.
        keep: Whether the next call with the same object returns this result instead of decoding again. In a simulation both
            sides of a link have the same object. The next call drops the result, so that queued messages stay small.
    """
    payload: SentPayload = body.kept or _decode_any(body, layout)
    if keep or body.kept:
        body.keep(payload if keep else None)
    return payload


def _decode_any(body: Body, layout: Layout) -> SentPayload:
    if body.codec == DENSE_CODECS.get(layout.dtype):
        return decode_dense(body, layout.size, layout.dtype)
    if body.codec == Codec.ROTATED:
        seed, inner = _rotated(body)
        vector = _decoded(inner, layout).dense()
        rotate(vector.numpy(), _groups(inner.codec, BodyReader(inner.data, layout), layout)[1], seed, back=True)
        return DensePayload(vector)
    return _decoded(body, layout)


def _decoded(body: Body, layout: Layout) -> SentPayload:
    placement, values, symbols, _ = _open(body, layout)
    payload = placement.payload(values, float_type(layout).newbyteorder("="))
    symbols.finish()
    return payload


def sent_count(body: Body, layout: Layout) -> int:
    """The number of values in a body. It is in the first fields, so nothing is decoded.

    `PacketError` if the codec is not that of entries.
    """
    reader = BodyReader(body.data, layout)
    codec, groups = _groups(body.codec, reader, layout)
    form_of(codec)
    return read_positions(codec, layout.size, groups, reader)[0]


def body_norm(body: Body, layout: Layout) -> float:
    """The 2-norm of the vector of a body, without the vector: values are read in blocks, positions only where coded.

    It checks a body as `decode_body` does: a body that has a norm can be decoded. Only a rotated vector is decoded.
    """
    if body.codec == Codec.ROTATED:
        return decode_body(body, layout).norm()
    _, values, symbols, count = _open(body, layout)
    squares, floats = 0.0, float_type(layout).newbyteorder("=")
    for start, end in blocks(count):
        block = np.empty(end - start, dtype=floats)
        values.read(block)
        squares += float(np.square(block, dtype=np.float64).sum())
    symbols.finish()
    return math.sqrt(squares)


def is_zero(body: Body, layout: Layout) -> bool:
    """Whether the vector of a valid body is zero. Signs are not decoded for this: their scales tell it."""
    if body.codec & 15 != Codec.SIGN:
        return body_norm(body, layout) == 0
    reader = BodyReader(body.data, layout)
    groups = _groups(body.codec, reader, layout)[1]
    count, _ = read_positions(body.codec, layout.size, groups, reader)
    return not count or not reader.values(len(groups) - 1).any()


def _open(body: Body, layout: Layout) -> tuple[Placement, ValueReader, SymbolReader, int]:
    """The positions of a body's values, the reader of the values, the symbols, and the number of values."""
    reader = BodyReader(body.data, layout)
    codec, groups = _groups(body.codec, reader, layout)
    form = form_of(codec)
    count, locate = read_positions(codec, layout.size, groups, reader)
    values = read_values(form, count, len(groups) - 1, reader)
    symbols = reader.symbols()
    placement = locate(symbols)
    values.begin(placement.bounds(groups), symbols)
    return placement, values, symbols, count


def _groups(codec: int, reader: BodyReader, layout: Layout) -> tuple[int, Bounds]:
    """The codec of the values, and the groups. Reads the fields of chunks."""
    if codec != Codec.CHUNKED:
        return codec, group_bounds(layout, "layer" if codec & BY_LAYER else "model")
    chunk = reader.number(LARGEST_CHUNK)
    if chunk < SMALLEST_CHUNK:
        raise PacketError("chunk", f"of {chunk} entries; {SMALLEST_CHUNK} is the least")
    codec = reader.take(1)[0]
    if codec & BY_LAYER:
        raise PacketError("codec", f"number {codec} in chunks")
    return codec, chunk_bounds(layout.size, chunk)


def _rotated(body: Body) -> tuple[int, Body]:
    """The seed of a rotation, and the body of the rotated vector."""
    if len(body.data) < _ROTATION.size:
        raise PacketError("truncated", f"{_ROTATION.size} bytes expected, {len(body.data)} are left")
    seed, codec = _ROTATION.unpack_from(body.data)
    return seed, Body(codec, memoryview(body.data)[_ROTATION.size :])


def decode_dense(body: Body, size: int, dtype: torch.dtype) -> SentPayload:
    """Decode a dense vector without a layout, such as the buffers."""
    if body.codec not in _DENSE_TYPES:
        raise PacketError("codec", f"number {body.codec} where a dense vector is expected")
    if (body_type := _DENSE_TYPES[body.codec]) != dtype:
        raise PacketError("dtype", f"{body_type} where {dtype} is expected")
    if len(body.data) != size * dtype.itemsize:
        raise PacketError("size", f"{len(body.data)} bytes for {size} numbers of {dtype}")
    kind = np.dtype("<f4") if dtype == torch.float32 else np.dtype("<f8")
    entries = np.frombuffer(body.data, dtype=kind)
    # A body may be unaligned within a larger message, and torch needs writable memory.
    usable = kind.isnative and entries.flags.writeable and entries.flags.aligned
    values = torch.from_numpy(entries if usable else entries.astype(kind.newbyteorder("="), copy=True))
    if size and not all_finite(values):
        raise PacketError("not finite", "NaN or infinity")
    return DensePayload(values)
