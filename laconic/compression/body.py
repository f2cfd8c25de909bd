"""Writing and reading the body of a packet (docs/reference/wire-format.md).

A body has two parts: fixed fields, whose sizes follow from the layout and earlier fields, and the words of the entropy
coder, which take the rest. So bodies contain no section lengths, and a reader need not trust any.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from laconic.compression.codec import BY_LAYER, Codec
from laconic.compression.entropy import SymbolReader, SymbolWriter
from laconic.compression.groups import chunk_size
from laconic.compression.packet import Body, Buffer
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout

Floats: TypeAlias = NDArray[Any]
"""A vector of a floating-point type that packets support."""

DENSE_CODECS = {torch.float32: Codec.FLOAT32, torch.float64: Codec.FLOAT64}
"""The types of models, and the codecs of vectors in the model's own type."""
_LONGEST_NUMBER = 5


def float_type(layout: Layout) -> np.dtype[Any]:
    """The type of values and scales, which is the model's."""
    if layout.dtype not in DENSE_CODECS:
        raise ConfigError(f"model of type {layout.dtype}: links carry torch.float32 and torch.float64")
    return np.dtype(f"<f{layout.dtype.itemsize}")


class BodyWriter:
    """Collects the fixed fields of a body in order, and its symbols."""

    def __init__(self, layout: Layout) -> None:
        self.floats, self.exact = float_type(layout), DENSE_CODECS[layout.dtype]
        self._fields: list[Buffer] = []
        self.symbols = SymbolWriter()

    def put(self, field: Buffer) -> None:
        """Append raw bytes."""
        self._fields.append(field)

    def number(self, value: int) -> None:
        """Append a non-negative integer as a varint: seven bits per byte, the lowest first."""
        self._fields.append(_number_bytes(value))

    def values(self, values: Floats) -> None:
        """Append numbers in the model's type."""
        self.put(values.astype(self.floats, copy=False).tobytes())

    def body(self, codec: int, granularity: str = "model") -> Body:
        """Build the body with its codec number."""
        if granularity == "layer":
            codec |= BY_LAYER
        data = b"".join((*self._fields, self.symbols.finish()))
        chunk = chunk_size(granularity)
        if chunk is None:
            return Body(codec, data)
        return Body(Codec.CHUNKED, b"".join((_number_bytes(chunk), bytes([codec]), data)))


def _number_bytes(value: int) -> bytes:
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    return bytes([group | 128 for group in groups[:-1]] + groups[-1:])


class BodyReader:
    """Reads the fields of a body and checks that each fits into the remaining bytes."""

    def __init__(self, data: Buffer, layout: Layout) -> None:
        self.floats, self.exact = float_type(layout), DENSE_CODECS[layout.dtype]
        self._most_coded = 2 * layout.size + 4096
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        """The number of bytes that have not been read."""
        return len(self._data) - self._at

    def take(self, size: int) -> memoryview:
        """The next `size` bytes, without a copy."""
        if size > self.left:
            raise PacketError("truncated", f"{size} bytes expected, {self.left} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, most: int) -> int:
        """A varint of at most `most`."""
        value = 0
        for index in range(_LONGEST_NUMBER):
            byte = self.take(1)[0]
            value |= (byte & 127) << (7 * index)
            if byte < 128:
                break
        if value > most or byte > 127:
            raise PacketError("number", f"{value} where at most {most} is possible")
        return value

    def values(self, count: int) -> Floats:
        """`count` finite numbers in the model's type, as a view of the bytes."""
        values = np.frombuffer(self.take(count * self.floats.itemsize), dtype=self.floats)
        refuse_not_finite(values)
        return values

    def symbols(self) -> SymbolReader:
        """The remaining bytes, as words of the entropy coder. A valid body has little more than one byte per entry."""
        if self.left > self._most_coded:
            raise PacketError("size", f"{self.left} bytes are left over")
        return SymbolReader(self.take(self.left))


def refuse_not_finite(values: Floats) -> None:
    """Reject NaN and infinity."""
    # A finite sum implies finite entries. Otherwise the sum may have overflowed, and the slow test decides.
    with np.errstate(over="ignore", invalid="ignore"):
        total = values.sum(dtype=np.float32 if values.dtype.itemsize == 2 else None)
    if not np.isfinite(total) and not np.isfinite(values).all():
        raise PacketError("not finite", "NaN or infinity")
