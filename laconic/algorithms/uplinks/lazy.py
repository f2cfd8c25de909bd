"""Uplinks that compare each update with the last one sent. [B] is the paper of FedBNLACA and FedBACA.

The reference r is the last update that the client sent. Client and server keep it as the encoded packet. Before the first
one there is no reference, and no update is skipped or accelerated.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.threshold import RelativeThreshold
from laconic.algorithms.uplinks.base import Encoded
from laconic.algorithms.uplinks.compressed import CompressedUplink
from laconic.compression import AnyCompressor, Codec, Dense, Payload, SumPayload, decode_body, sum_norm
from laconic.compression.packet import Body, Flag
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import STATEFUL, State, checked, part

SKIP = Body(Codec.SKIP)
_SLACK = 1.001
"""For the server's verification: on another type of CPU a norm may differ in its last digits."""


@checked
class ReferenceUplink(CompressedUplink):
    """The base of uplinks with a reference r, the last update that the client sent."""

    compressor: AnyCompressor = Dense()
    """C, or its spelling, such as top_k:1/64. By default, updates are not compressed."""

    @property
    def has_reference(self) -> bool:
        return True

    def is_similar(self, payload: Payload, state: State, context: RoundContext) -> bool:
        """Whether the update y is similar to r, which is in the state."""
        raise NotImplementedError

    def reference(self, state: State, layout: Layout) -> Payload:
        """r, decoded from the state of the client or the peer state of the server."""
        return decode_body(Body.from_tensor(state["reference"]), layout)

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """A skip counts as one bit."""
        return 1 if body.codec == Codec.SKIP else super().paper_bits(body, layout)


@checked
class SkippingUplink(ReferenceUplink):
    """An uplink that skips an update y if it is similar to r; the server uses r again."""

    skip_feedback: Literal["used", "computed"] = "used"
    """What error feedback subtracts when y is skipped: r, which the server uses, so that a skip loses nothing [B, Algorithm
    3, line 13]; or y, which would have been sent, so that y - r is lost [B, (D.1) and (E.1)]."""

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        computed: Payload = decode_body(body, context.layout, keep=True)
        used, reference, similar = computed, body.to_tensor(), None
        if "reference" in state and self.is_similar(computed, state, context):
            body, used, reference = SKIP, self.reference(state, context.layout), state["reference"]
            similar = computed, used
        remembered = used if self.skip_feedback == "used" else computed
        memory = self.remember(target, remembered, context)
        return Encoded(body, memory | {"reference": reference}, used, remembered=remembered, similar=similar)

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        """The server cannot verify a skip, since it does not see the update. A skip repeats an update that it has used."""
        if body.codec != Codec.SKIP:
            bodies, _ = super().receive(body, flags, peer, context)
            return bodies, {"reference": body.to_tensor()}
        if "reference" not in peer:
            raise PacketError("reference", "a skip before anything was sent")
        return super().receive(Body.from_tensor(peer["reference"]), flags, peer, context)


@checked
class ThresholdUplink(RelativeThreshold, ReferenceUplink):
    """The base of lazy and accelerated uplinks: y is similar to r if ||y - r|| <= threshold ||r|| [B, (3) and (4)]."""

    constant: Annotated[float, Field(ge=0)] | Literal["suggested"] = "suggested"
    """C of `lazy`, D of `accelerated` [B, (3) and (4)]."""

    def is_similar(self, payload: Payload, state: State, context: RoundContext) -> bool:
        reference = self.reference(state, context.layout)
        return sum_norm(payload, reference, -1.0) <= self._limit(context) * reference.norm()

    def _limit(self, context: RoundContext) -> float:
        limit = self.limit(context)
        assert limit is not None  # `constant` is always set
        return limit


@part("uplink", "lazy")
class Lazy(SkippingUplink, ThresholdUplink):
    """NLA [B, Algorithms 1 and 3]: an update close to the last one sent is skipped; the server reuses the last one.

    By default error feedback subtracts the update that the server used, so a skip loses nothing.
    """

    sensitivity = STATEFUL


@part("uplink", "accelerated")
class Accelerated(ThresholdUplink):
    """AA [B, equation (4)]: if an update y is close to the last one, r, the server uses r + y.

    Error feedback subtracts y. With `feedback="used"` it subtracts r + y, which cancels the acceleration one round later.
    """

    feedback: Literal["sent", "used"] = "sent"
    """What error feedback subtracts: y, or what the server uses."""
    sensitivity = STATEFUL

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        decoded: Payload = decode_body(body, context.layout, keep=True)
        flags, used, similar = Flag(0), decoded, None
        if "reference" in state and self.is_similar(decoded, state, context):
            similar = decoded, self.reference(state, context.layout)
            flags, used = Flag.ACCELERATED, SumPayload(similar[1], decoded)
        remembered = used if self.feedback == "used" else decoded
        memory = self.remember(target, remembered, context)
        return Encoded(body, memory | {"reference": body.to_tensor()}, used, flags, remembered, similar)

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        """The server has y and r, so it verifies the test of an acceleration."""
        bodies: tuple[Body, ...] = (body,)
        if Flag.ACCELERATED in flags:
            if "reference" not in peer:
                raise PacketError("reference", "an acceleration before anything was sent")
            reference = self.reference(peer, context.layout)
            distance = sum_norm(decode_body(body, context.layout, keep=True), reference, -1.0)
            if distance > _SLACK * self._limit(context) * reference.norm():
                raise PacketError("accelerated", "an acceleration of an update that is not close to the last one")
            bodies = Body.from_tensor(peer["reference"]), body
        return bodies, {"reference": body.to_tensor()}
