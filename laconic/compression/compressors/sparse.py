"""Some of the entries, exactly: the largest, or random ones."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from laconic.compression.body import BodyWriter, Floats
from laconic.compression.codec import Codec, Places
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.dense import encode_dense
from laconic.compression.gap_coding import Coding
from laconic.compression.groups import Bounds, Chosen, Group, group_bounds, kept, kept_bounds, spans
from laconic.compression.packet import Body
from laconic.compression.positions import seeded_positions, write_positions, write_seed
from laconic.compression.selection import largest, peak
from laconic.core.layout import Layout

Ratio = Annotated[float, Field(gt=0, le=1)]
"""The share of a group's entries that is kept; never fewer than one entry."""


@compressor("top_k", argument="ratio")
class TopK(Compressor):
    """The k = max(1, floor(ratio d)) largest magnitudes of each group; among equals the lower position wins.

    q^2 = 1 - k/d. FedCAMS, Section 4.2, over the whole model and 64 bits each; Fed-EF, Section 3.1, by layer and 32 each.
    """

    ratio: Ratio = 1 / 64
    by: Group = "model"
    coding: Coding = "range"

    def select(self, entries: Floats, groups: Bounds, generator: np.random.Generator, writer: BodyWriter) -> Chosen:
        """One sorted list of positions for all groups, so that small layers cost no header each."""
        found = [largest(entries[start:end], kept(self.ratio, end - start)) + start for start, end in spans(groups)]
        positions = np.concatenate(found) if found else np.zeros(0, dtype=np.int64)
        flags = write_positions(positions, len(entries), self.coding, writer)
        return Chosen(flags, entries[positions], kept_bounds(self.ratio, groups), groups)

    def count(self, layout: Layout) -> int:
        """The sum of k over the groups."""
        return int(kept_bounds(self.ratio, group_bounds(layout, self.by))[-1])

    def place_bits(self, count: int) -> int:
        """32 for an index in FedCAMS; Fed-EF, which works by layer, does not count them."""
        return 32 * count if self.by == "model" else 0


@compressor("random_k", argument="ratio")
class RandomK(Compressor):
    """k random entries of each group, times d/k when unbiased; their positions follow from a seed and are not sent."""

    ratio: Ratio = 1 / 64
    unbiased: bool = True
    by: Group = "model"

    def select(self, entries: Floats, groups: Bounds, generator: np.random.Generator, writer: BodyWriter) -> Chosen:
        """Draw a seed; both sides draw the positions from it."""
        peak(entries)  # refuses what is not finite
        seed = int(generator.integers(2**64, dtype=np.uint64))
        write_seed(self.ratio, seed, writer)
        values = entries[seeded_positions(seed, self.ratio, groups)]
        bounds = kept_bounds(self.ratio, groups)
        if self.unbiased:
            most = np.finfo(values.dtype).max
            for (start, end), (first, last) in zip(spans(bounds), spans(groups), strict=True):
                factor = (last - first) / (end - start)
                with np.errstate(over="ignore"):
                    values[start:end] *= factor
            np.clip(values, -most, most, out=values)  # a packet cannot carry infinity
        return Chosen(Places.SEEDED, values, bounds, groups)

    def count(self, layout: Layout) -> int:
        """The sum of k over the groups."""
        return int(kept_bounds(self.ratio, group_bounds(layout, self.by))[-1])

    @property
    def contractive(self) -> bool:
        """Without the factor d/k it only leaves entries out."""
        return not self.unbiased

    @property
    def biased(self) -> bool:
        """Without the factor d/k."""
        return not self.unbiased

    def omega(self, layout: Layout) -> float:
        """d/k - 1."""
        if not self.unbiased:
            return 0.0
        sizes = np.diff(group_bounds(layout, self.by)).tolist()
        return max((size / kept(self.ratio, size) - 1 for size in sizes), default=0.0)

    def scaled_for_feedback(self) -> RandomK:
        """Divided by 1 + omega = d/k: the plain entries."""
        return self.replace(unbiased=False)


def encode_sparse(positions: Tensor, values: Tensor, layout: Layout) -> Body:
    """Given entries at given sorted positions, exactly: what no compressor chose."""
    writer = BodyWriter(layout)
    places = write_positions(positions.cpu().numpy(), layout.size, "range", writer)
    writer.values(values.detach().cpu().numpy())
    return writer.body(places | (Codec.FLOAT32 if writer.floats.itemsize == 4 else Codec.FLOAT64))


def encode_exactly(vector: Tensor, layout: Layout) -> Body:
    """A vector that must arrive as it is: without its zeros if that is shorter."""
    positions = vector.detach().cpu().flatten().nonzero().flatten()
    whole = encode_dense(vector)
    if 2 * len(positions) > layout.size:
        return whole
    sparse = encode_sparse(positions, vector.cpu()[positions], layout)
    return min(sparse, whole, key=lambda body: len(body.data))
