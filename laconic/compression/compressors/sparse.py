"""Sparsifiers: the largest entries, or random ones."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from laconic.compression.body import BodyWriter, Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.dense import encode_dense
from laconic.compression.forms import Form, Kept, write_forms
from laconic.compression.gap_coding import Coding
from laconic.compression.groups import Bounds, group_bounds, kept_bounds, spans
from laconic.compression.packet import Body
from laconic.compression.positions import Seed
from laconic.compression.selection import largest, peak
from laconic.core.layout import Layout

Ratio = Annotated[float, Field(gt=0, le=1)]
"""The fraction of a group's entries that is kept, at least one entry."""


@compressor("top_k", argument="ratio")
class TopK(Compressor):
    """The k = max(1, floor(ratio d)) largest magnitudes of each group. Ties go to the lower position.

    q^2 = 1 - k/d. FedCAMS (Section 4.2) uses it over the whole model and counts 64 bits per kept entry; Fed-EF (Section 3.1)
    uses it by layer and counts 32.
    """

    ratio: Ratio = 1 / 64
    """The share of a group's entries that is kept; at least one entry."""
    coding: Coding = "ans"
    """How positions are coded: `ans` with entropy coding, `rice` without it."""
    sparse = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        positions = largest(x, self.kept(len(x)))
        return Kept(positions, x[positions], self.coding)

    @property
    def kept_fraction(self) -> float:
        return self.ratio

    def position_bits(self, count: int) -> int:
        return 32 * count


@compressor("random_k", argument="ratio")
class RandomK(Compressor):
    """k random entries of each group, times d/k if `unbiased`. Their positions are drawn from a seed, which is sent."""

    ratio: Ratio = 1 / 64
    """The share of a group's entries that is kept; at least one entry."""
    unbiased: bool = True
    """Multiply the kept entries by d/k, so that C(x) is x on average."""
    sparse = True

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        # All groups share one seed, from which both sides draw the positions.
        peak(entries)  # rejects NaN and infinity
        seed = Seed(self.ratio, int(rng.integers(2**64, dtype=np.uint64)))
        positions, kept = seed.positions(bounds), kept_bounds(self.ratio, bounds)
        values = entries[positions]
        if self.unbiased:
            counts, most = np.diff(kept), np.finfo(values.dtype).max
            with np.errstate(over="ignore"):
                values *= np.repeat(np.diff(bounds) / counts, counts).astype(values.dtype)
            np.clip(values, -most, most, out=values)  # packets cannot contain infinity
        starts = bounds.tolist()
        return [
            Kept(positions[first:last] - start, values[first:last], seed=seed)
            for start, (first, last) in zip(starts, spans(kept), strict=False)
        ]

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        return self.forms(x, np.array([0, len(x)]), rng)[0]

    @property
    def kept_fraction(self) -> float:
        return self.ratio

    @property
    def contractive(self) -> bool:
        return not self.unbiased

    @property
    def biased(self) -> bool:
        return not self.unbiased

    def omega(self, size: int) -> float:
        """d/k - 1."""
        return size / self.kept(size) - 1 if self.unbiased else 0.0

    def scaled_for_feedback(self) -> RandomK:
        """Divided by 1 + omega = d/k: the entries without a factor."""
        return self.replace(unbiased=False)


def encode_sparse(positions: Tensor, values: Tensor, layout: Layout) -> Body:
    """Encode the given entries exactly, at sorted positions."""
    writer = BodyWriter(layout)
    forms = [Kept(positions.cpu().numpy(), values.detach().cpu().numpy())] if layout.size else []
    return writer.body(write_forms(forms, group_bounds(layout, "model"), writer))


def encode_exactly(vector: Tensor, layout: Layout) -> Body:
    """Encode a vector losslessly, without its zeros if that is shorter."""
    positions = vector.detach().cpu().flatten().nonzero().flatten()
    dense = encode_dense(vector)
    if 2 * len(positions) > layout.size:
        return dense
    sparse = encode_sparse(positions, vector.cpu()[positions], layout)
    return min(sparse, dense, key=lambda body: len(body.data))
