"""One bit per entry after a random rotation, or one bit for some of the entries."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Literal

import numpy as np
from torch import Tensor

from laconic.compression.body import BodyWriter, Floats
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor, compressor, host_entries
from laconic.compression.compressors.sparse import RandomK, Ratio
from laconic.compression.forms import Form, Kept, Signs, write_forms
from laconic.compression.groups import Bounds, group_bounds, kept
from laconic.compression.packet import Body
from laconic.compression.rotation import rotate
from laconic.compression.selection import peak
from laconic.core.layout import Layout


@compressor("eden", argument="bits")
class Eden(Compressor):
    """R^T (scale sign(R x)), with a random rotation R whose seed is sent. DRIVE and EDEN (Vargaftik et al., 2021, 2022).

    A rotation makes the entries alike, so that one bit and one scale describe them well: for every long x,
    ||C(x) - x||^2 / ||x||^2 is about 0.57, or 0.36 with `nearest`. R is two Hadamard transforms with random signs. With
    `projection` C is unbiased for uniformly random rotations only. Two transforms are not quite that, so C counts as biased.

    With b < 1 bits per entry, one bit is sent for each of k = max(1, floor(b d)) entries of R x, whose positions are drawn
    from a seed. They are multiplied by d/k with `projection`. The relative errors above become pi d / (2 k) - 1 and
    1 - 2 k / (pi d).
    """

    bits: Ratio = 1.0
    """Bits per entry, at most 1. Below 1, the signs of this share of the rotated entries are sent."""
    scale: Literal["projection", "nearest"] = "projection"
    """`projection`: ||x||^2 / ||R x||_1, so that <C(x), x> = ||x||^2. `nearest`: ||R x||_1 / d, the least error, for error
    feedback. With fewer bits, both are computed from the k entries."""
    quantizes_values = False

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator, granularity: str = "model") -> Body:
        seed = int(rng.integers(2**32))
        entries = host_entries(vector, layout).copy()
        peak(entries)  # rejects NaN and infinity
        writer, bounds = BodyWriter(layout), group_bounds(layout, granularity)
        rotate(entries, bounds, seed)
        body = writer.body(write_forms(self.forms(entries, bounds, rng), bounds, writer), granularity)
        return Body(Codec.ROTATED, struct.pack("<IB", seed, body.codec) + bytes(body.data))

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        if self.bits == 1:
            return super().forms(entries, bounds, rng)
        drawn = RandomK(self.bits, unbiased=self.scale == "projection").forms(entries, bounds, rng)
        return [self._signs_of(form, rng) for form in drawn]

    def _signs_of(self, form: Form, rng: np.random.Generator) -> Form:
        assert isinstance(form, Kept) and isinstance(form.values, np.ndarray)  # of RandomK
        return dataclasses.replace(form, values=self.compress(form.values, rng))

    def compress(self, x: Floats, rng: np.random.Generator) -> Signs:
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

    def omega(self, size: int) -> float:
        """With `projection`, C is nearly unbiased, and this is about pi d / (2 k) - 1; with `nearest` it is 0."""
        return 0.0 if self.contractive else math.pi / 2 * size / self.kept(size) - 1

    def kept(self, size: int) -> int:
        return kept(self.bits, size)

    def value_bits(self, count: int, groups: int) -> int:
        """One bit per entry, and 32 per group for its scale."""
        return count + 32 * groups
