"""A quantizer on the values of a sparsifier (Qsparse-local-SGD)."""

from __future__ import annotations

import numpy as np

from laconic.compression.body import BodyWriter, Floats
from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.dense import Cast
from laconic.compression.compressors.quantized import QSGD, Uniform
from laconic.compression.compressors.sign import Sign
from laconic.compression.compressors.sparse import RandomK, TopK
from laconic.compression.groups import Bounds, Chosen, Group
from laconic.core.layout import Layout


@compressor("chain")
class Chain(Compressor):
    """`first` chooses entries, `second` quantizes their values, in order of position; the groups are those of `first`.

    Written `top_k:0.01+qsgd:4`, where qsgd takes the max norm unless told otherwise.
    """

    first: TopK | RandomK
    second: QSGD | Uniform | Sign | Cast

    def __post_init__(self) -> None:
        # One chain, one spelling: the groups of the second are those of the first.
        object.__setattr__(self, "second", self.second.replace(by=self.first.by))

    @property
    def by(self) -> Group:  # type: ignore[override]
        """The groups of the first."""
        return self.first.by

    def select(self, entries: Floats, groups: Bounds, generator: np.random.Generator, writer: BodyWriter) -> Chosen:
        """As the first."""
        return self.first.select(entries, groups, generator, writer)

    def express(self, chosen: Chosen, generator: np.random.Generator, writer: BodyWriter) -> Codec:
        """As the second."""
        return self.second.express(chosen, generator, writer)

    @property
    def contractive(self) -> bool:
        """When both are."""
        return self.first.contractive and self.second.contractive

    @property
    def biased(self) -> bool:
        """When one of the two is."""
        return self.first.biased or self.second.biased

    def omega(self, layout: Layout) -> float:
        """The variances of two unbiased steps compound: (1 + omega_1)(1 + omega_2) - 1."""
        return (1 + self.first.omega(layout)) * (1 + self.second.omega(layout)) - 1

    def scaled_for_feedback(self) -> Chain:
        """Each of the two, scaled."""
        return self.replace(first=self.first.scaled_for_feedback(), second=self.second.scaled_for_feedback())

    def count(self, layout: Layout) -> int:
        """As the first."""
        return self.first.count(layout)

    def place_bits(self, count: int) -> int:
        """As the first."""
        return self.first.place_bits(count)

    def value_bits(self, count: int, groups: int) -> int:
        """As the second."""
        return self.second.value_bits(count, groups)
