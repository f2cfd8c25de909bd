"""The dense uplink: updates without compression."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.uplinks.base import Encoded, Uplink
from laconic.compression import DensePayload, encode_dense
from laconic.core.part import BOUNDED, State, part


@part("uplink", "dense")
class DenseUplink(Uplink):
    """The uncompressed update: 32 d bits."""

    memory: bool | Literal["auto"] | None = None
    """Accepted for uniformity with other uplinks. It has no effect, since there is no compression error."""
    sensitivity = BOUNDED

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        return Encoded(encode_dense(update, lent=True), state, DensePayload(update))
