"""One bit per entry after a random rotation."""

from __future__ import annotations

import struct
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from laconic.compression.body import Floats
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor, compressor, host_entries
from laconic.compression.forms import Form, Signs
from laconic.compression.groups import group_bounds
from laconic.compression.packet import Body
from laconic.compression.rotation import rotate
from laconic.compression.selection import peak
from laconic.core.layout import Layout


@compressor("eden")
class Eden(Compressor):
    """R^T (scale sign(R x)), with a random rotation R whose seed is sent. DRIVE and EDEN (Vargaftik et al., 2021, 2022).

    A rotation makes the entries alike, so that one bit and one scale describe them well: for every long x,
    ||C(x) - x||^2 / ||x||^2 is about 0.57, or 0.36 with `nearest`. R is two Hadamard transforms with random signs. With
    `projection` C is unbiased for uniformly random rotations only. Two transforms are not quite that, so C counts as biased.
    """

    scale: Literal["projection", "nearest"] = "projection"
    """`projection`: ||x||^2 / ||R x||_1, so that <C(x), x> = ||x||^2. `nearest`: ||R x||_1 / d, the least error, for error
    feedback."""
    quantizes_values = False

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator, granularity: str = "model") -> Body:
        seed = int(rng.integers(2**32))
        entries = host_entries(vector, layout).copy()
        peak(entries)  # rejects NaN and infinity
        rotate(entries, group_bounds(layout, granularity), seed)
        body = super().encode(torch.from_numpy(entries), layout, rng, granularity)
        return Body(Codec.ROTATED, struct.pack("<IB", seed, body.codec) + bytes(body.data))

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        """The signs and the scale of a group that is rotated already."""
        highest = peak(x)
        relative = np.abs(x) / x.dtype.type(highest or 1.0)
        total = float(relative.sum(dtype=np.float64))
        if self.scale == "nearest":
            mean = total / max(1, len(x))
        else:
            mean = float(np.square(relative, dtype=np.float64).sum()) / (total or 1.0)
        return Signs(x < 0, highest * mean)

    @property
    def contractive(self) -> bool:
        return self.scale == "nearest"

    def scaled_for_feedback(self) -> Compressor:
        """With the scale `nearest`, which is contractive."""
        return self.replace(scale="nearest")

    def value_bits(self, count: int, groups: int) -> int:
        """One bit per entry, and 32 per group for its scale."""
        return count + 32 * groups
