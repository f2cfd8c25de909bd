"""One bit for each value: of all entries, or of the largest."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from laconic.compression.body import BodyWriter, Floats
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.sparse import Ratio, TopK
from laconic.compression.entropy import BLOCK, blocks
from laconic.compression.gap_coding import Coding
from laconic.compression.groups import Bounds, Chosen, Group, spans
from laconic.compression.values import write_signs
from laconic.core.errors import PacketError
from laconic.core.layout import Layout


@compressor("sign")
class Sign(Compressor):
    """mean(|x|) sign(x) in each group, with sign(0) = +1; q^2 = 1 - ||x||_1^2 / (d ||x||^2).

    FedCAMS, Section 4.2, over the whole model; Fed-EF, Section 3.1, by layer.
    """

    by: Group = "model"

    def express(self, chosen: Chosen, generator: np.random.Generator, writer: BodyWriter) -> Codec:
        """A scale per group, a bit per entry."""
        negative, scales = signs_and_means(chosen)
        return write_signs(negative, scales, writer)

    def value_bits(self, count: int, groups: int) -> int:
        """d + 32: the papers count one scale, or none, however many layers there are."""
        return count + 32


@compressor("heavy_sign", argument="ratio")
class HeavySign(Compressor):
    """The signs of top_k (Fed-EF, Section 3.1), times the mean magnitude of the kept entries.

    As printed the scale divides by all d entries of the layer, which makes it too small by k/d: `scale="printed"`.
    """

    ratio: Ratio = 0.05
    scale: Literal["kept", "printed"] = "kept"
    by: Group = "layer"
    coding: Coding = "range"

    @property
    def _largest(self) -> TopK:
        return TopK(ratio=self.ratio, by=self.by, coding=self.coding)

    def select(self, entries: Floats, groups: Bounds, generator: np.random.Generator, writer: BodyWriter) -> Chosen:
        """As top_k."""
        return self._largest.select(entries, groups, generator, writer)

    def express(self, chosen: Chosen, generator: np.random.Generator, writer: BodyWriter) -> Codec:
        """As sign, on what is kept."""
        negative, scales = signs_and_means(chosen)
        if self.scale == "printed":
            scales *= np.diff(chosen.bounds) / np.diff(chosen.groups)
        return write_signs(negative, scales, writer)

    def count(self, layout: Layout) -> int:
        """As top_k."""
        return self._largest.count(layout)

    def value_bits(self, count: int, groups: int) -> int:
        """k: Fed-EF counts neither positions nor scales."""
        return count


def signs_and_means(chosen: Chosen) -> tuple[NDArray[np.bool_], Floats]:
    """Which values are below zero, and the mean magnitude of every group, in one pass."""
    negative = np.empty(len(chosen.values), dtype=bool)
    means = [_group(chosen.values[start:end], negative[start:end]) for start, end in spans(chosen.bounds)]
    return negative, np.minimum(means, np.finfo(chosen.values.dtype).max)


def _group(values: Floats, negative: NDArray[np.bool_]) -> float:
    buffer = np.empty(min(BLOCK, len(values)), dtype=values.dtype)
    total = 0.0
    for start, end in blocks(len(values)):
        block = values[start:end]
        np.less(block, 0, out=negative[start:end])
        total += _sum_of_magnitudes(np.abs(block, out=buffer[: end - start]), len(values))
    return total


def _sum_of_magnitudes(magnitudes: Floats, count: int) -> float:
    """Their share of the mean over `count`; divided first only where the plain sum overflows, since that is slower."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(magnitudes.sum())
    if np.isfinite(total):
        return total / count
    if not np.isfinite(magnitudes).all():
        raise PacketError("not finite", "the vector to send has NaN or infinity")
    with np.errstate(over="ignore"):
        return float((magnitudes / count).sum(dtype=np.float64))
