"""No compression, and half precision."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from laconic.compression.body import BodyWriter
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.entropy import ONE_THREAD, blocks
from laconic.compression.groups import Chosen, Group
from laconic.compression.packet import Body
from laconic.compression.selection import peak

_DENSE = {torch.float32: Codec.FLOAT32, torch.float64: Codec.FLOAT64}
_HALVES = {"float16": (torch.float16, Codec.FLOAT16), "bfloat16": (torch.bfloat16, Codec.BFLOAT16)}


@compressor("dense")
class Dense(Compressor):
    """The vector's own floating type, 32 bits an entry in the papers' count."""

    by: Group = "model"

    @property
    def biased(self) -> bool:
        """Nothing is missing."""
        return False


DENSE = Dense()


@compressor("cast", argument="kind")
class Cast(Compressor):
    """Sixteen bits an entry. What is too large for the type becomes its largest number."""

    kind: Literal["float16", "bfloat16"] = "float16"
    by: Group = "model"

    def express(self, chosen: Chosen, generator: np.random.Generator, writer: BodyWriter) -> Codec:
        """Each entry rounded to the nearest."""
        peak(chosen.values)  # refuses what is not finite
        half, form = _HALVES[self.kind]
        most = torch.finfo(half).max
        for start, end in blocks(len(chosen.values), ONE_THREAD):
            # A copy is made anyhow, and torch wants memory that it may write to.
            rounded = torch.from_numpy(np.clip(chosen.values[start:end], -most, most)).to(half)
            writer.put(rounded.view(torch.int16).numpy().astype("<i2", copy=False).tobytes())
        return form

    def value_bits(self, count: int, groups: int) -> int:
        """16 each."""
        return 16 * count


def encode_dense(vector: Tensor, *, lent: bool = False) -> Body:
    """A vector entry by entry; no layout is needed. A vector that is `lent` will not change, so it is not copied."""
    entries = vector.detach().cpu().contiguous().numpy()
    little = entries.astype(entries.dtype.newbyteorder("<"), copy=False)
    return Body(_DENSE[vector.dtype], little.data.cast("B") if lent else little.tobytes())
