"""A compressor with its granularity, as links apply it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator
from torch import Tensor

from laconic.compression.codec import Codec
from laconic.compression.compressors.base import Compressor
from laconic.compression.compressors.dense import Dense
from laconic.compression.compressors.spelling import parse_compressor, split_granularity
from laconic.compression.decoding import sent_count
from laconic.compression.groups import group_bounds, spans
from laconic.compression.packet import Body
from laconic.core.layout import Layout

_NO_ENTRIES = (Codec.SKIP, Codec.CATCH_UP, Codec.ROTATED)
"""Codecs of bodies whose values are not entries of the vector."""


@dataclass(frozen=True)
class GroupedCompressor:
    """A compressor and its granularity.

    >>> print(GroupedCompressor.parse("sign@layer"), GroupedCompressor.parse("qsgd:8"))
    sign@layer qsgd:8@model
    """

    compressor: Compressor
    granularity: str = "model"

    @classmethod
    def parse(cls, text: str) -> GroupedCompressor:
        """Parse a text such as `sign@layer`; without an `@` the granularity is `model`."""
        spelled, granularity = split_granularity(text)
        return cls(parse_compressor(spelled), granularity or "model")

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator, participants: int = 1) -> Body:
        """Encode a vector.

        Args:
            vector: The vector, of the layout's size and type.
            layout: The layers of the model.
            rng: The generator of random compressors. Others do not use it.
            participants: The number of participants in the round.
        """
        return self.for_participants(participants).compressor.encode(vector, layout, rng, self.granularity)

    def for_participants(self, count: int) -> GroupedCompressor:
        """The same with the compressor for a round with `count` participants."""
        return GroupedCompressor(self.compressor.for_participants(count), self.granularity)

    def scaled_for_feedback(self) -> GroupedCompressor:
        """The same with the compressor's contractive form, for error feedback."""
        return GroupedCompressor(self.compressor.scaled_for_feedback(), self.granularity)

    def omega(self, layout: Layout) -> float:
        """The compressor's omega for the worst group."""
        return max((self.compressor.omega(size) for size in self._sizes(layout)), default=0.0)

    def kept_share(self, layout: Layout) -> float:
        """k / d: the number of entries that are kept in all groups, as a share of all entries."""
        sizes = self._sizes(layout)
        return sum(self.compressor.kept(size) for size in sizes) / sum(sizes)

    def paper_bits(self, layout: Layout, body: Body | None = None) -> int:
        """The bits that the papers count for a vector. FedCAMS (by model) counts positions; Fed-EF (by layer) does not.

        Args:
            layout: The layers of the model.
            body: The encoded vector. If the compressor has no fixed number of values, those of the body count; without a
                body, all entries.
        """
        sizes = self._sizes(layout)
        if body is not None and body.codec not in _NO_ENTRIES and self.compressor.keeps_any_number:
            count = sent_count(body, layout)
        else:
            count = sum(self.compressor.kept(size) for size in sizes)
        positions = self.compressor.position_bits(count) if self.granularity == "model" else 0
        return positions + self.compressor.value_bits(count, len(sizes))

    def _sizes(self, layout: Layout) -> list[int]:
        return [stop - start for start, stop in spans(group_bounds(layout, self.granularity))]

    def __str__(self) -> str:
        return f"{self.compressor}@{self.granularity}"


DENSE = GroupedCompressor(Dense())


def _as_grouped(value: Any) -> Any:
    if isinstance(value, Compressor):
        return GroupedCompressor(value)
    return GroupedCompressor.parse(value) if isinstance(value, str) else value


AnyGroupedCompressor = Annotated[GroupedCompressor, BeforeValidator(_as_grouped)]
"""A parameter that accepts a compressor with granularity, such as `qsgd:8@layer`; the default is `@model`."""
