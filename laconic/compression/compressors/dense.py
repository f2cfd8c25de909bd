"""No compression, and half precision."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from laconic.compression.body import DENSE_CODECS, Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.forms import Form, Values
from laconic.compression.packet import Body


@compressor("dense")
class Dense(Compressor):
    """The vector in its own type; the papers count 32 bits per entry."""

    exact = True
    biased = False

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        return x


@compressor("cast", argument="kind")
class Cast(Compressor):
    """Sixteen bits per entry, rounded to nearest. Values beyond the range of the type are clipped."""

    kind: Literal["float16", "bfloat16"] = "float16"
    """The 16-bit type."""
    rounds_entries = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        return Values(x, self.kind)

    def value_bits(self, count: int, groups: int) -> int:
        return 16 * count


def encode_dense(vector: Tensor, *, lent: bool = False) -> Body:
    """Encode a vector without compression. A `lent` vector must not change afterward; it is not copied."""
    entries = vector.detach().cpu().contiguous().numpy()
    little = entries.astype(entries.dtype.newbyteorder("<"), copy=False)
    return Body(DENSE_CODECS[vector.dtype], little.data.cast("B") if lent else little.tobytes())
