"""One bit per value: the signs of all entries, or of the largest."""

from __future__ import annotations

from typing import Literal

import numpy as np

from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.sparse import Ratio
from laconic.compression.entropy import BLOCK, blocks
from laconic.compression.forms import Form, Kept, Signs
from laconic.compression.gap_coding import Coding
from laconic.compression.selection import largest
from laconic.core.errors import PacketError


@compressor("sign")
class Sign(Compressor):
    """mean(|x|) sign(x) in each group, with sign(0) = +1; q^2 = 1 - ||x||_1^2 / (d ||x||^2).

    FedCAMS, Section 4.2, over the whole model; Fed-EF, Section 3.1, by layer.
    """

    sends_signs = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        return signs_and_mean(x)

    def value_bits(self, count: int, groups: int) -> int:
        """d + 32 by model (FedCAMS, Table 1), and one scale per layer by layer (Fed-EF, Section 3.1)."""
        return count + 32 * groups


@compressor("heavy_sign", argument="ratio")
class HeavySign(Compressor):
    """The signs of top_k (Fed-EF, Section 3.1), times the mean magnitude of the kept entries.

    `scale="printed"` divides by all d entries of the layer, as the paper prints it. That scale is too small by k/d.
    """

    ratio: Ratio = 0.05
    """The share of a group's entries that is kept; at least one entry."""
    scale: Literal["kept", "printed"] = "kept"
    """The mean magnitude of the `kept` entries, or of all d entries as the paper prints it (`printed`)."""
    coding: Coding = "ans"
    """How positions are coded: `ans` with entropy coding, `rice` without it."""
    sparse = True
    exact = False

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        positions = largest(x, self.kept(len(x)))
        signs = signs_and_mean(x[positions])
        if self.scale == "printed":
            signs = Signs(signs.negative, signs.scale * (len(positions) / len(x)))
        return Kept(positions, signs, self.coding)

    @property
    def kept_fraction(self) -> float:
        return self.ratio

    def value_bits(self, count: int, groups: int) -> int:
        """k: Fed-EF counts neither positions nor scales."""
        return count


def signs_and_mean(x: Floats) -> Signs:
    """The signs and the mean magnitude, in one pass."""
    negative = np.empty(len(x), dtype=bool)
    buffer = np.empty(min(BLOCK, len(x)), dtype=x.dtype)
    mean = 0.0
    for start, end in blocks(len(x)):
        block = x[start:end]
        np.less(block, 0, out=negative[start:end])
        mean += _share_of_mean(np.abs(block, out=buffer[: end - start]), len(x))
    return Signs(negative, min(mean, float(np.finfo(x.dtype).max)))


def _share_of_mean(magnitudes: Floats, count: int) -> float:
    """sum(magnitudes) / count. Dividing first is slower and done only if the sum overflows."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(magnitudes.sum())
    if np.isfinite(total):
        return total / count
    if not np.isfinite(magnitudes).all():
        raise PacketError("not finite", "the vector to send has NaN or infinity")
    with np.errstate(over="ignore"):
        return float((magnitudes / count).sum(dtype=np.float64))
