"""How a client's vector becomes bytes, and what the client remembers about what it did not send."""

from __future__ import annotations

from torch import Tensor

from laconic.layout import Layout
from laconic.link.compressors import Dense, Payload, decode, encode_dense
from laconic.link.packet import Body
from laconic.parts import Part, State, part


class Uplink(Part):
    """The client encodes its update with its own state; the server decodes what arrives."""

    def init(self, layout: Layout) -> State:
        """The client's state before its first round."""
        raise NotImplementedError

    def encode(self, update: Tensor, state: State) -> tuple[Body, State]:
        """The update as a body, and the client's state if the server folds it in."""
        raise NotImplementedError

    def decode(self, body: Body, layout: Layout) -> Payload:
        """On the server: what the body says."""
        return decode(body, layout)

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """What the papers' formulas count for this body."""
        raise NotImplementedError


@part("uplink", "dense")
class DenseUplink(Uplink):
    """The update as it is: 32 d bits, nothing to remember."""

    def init(self, layout: Layout) -> State:
        """No memory."""
        return {}

    def encode(self, update: Tensor, state: State) -> tuple[Body, State]:
        """Every entry."""
        return encode_dense(update), state

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """32 d."""
        return Dense().paper_bits(layout)
