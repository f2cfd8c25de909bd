"""Uplinks that compare each update with the last one sent. [B] is the paper of FedBNLACA and FedBACA.

The reference r is the last update that the client sent. Client and server keep it as the encoded packet. Before the first
one there is no reference, and no update is skipped or accelerated.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
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
class ThresholdUplink(CompressedUplink):
    """The base of lazy and accelerated uplinks, which test ||y - r|| <= threshold ||r||.

    The threshold is a number, or C / (alpha n) [B, equation (3)] with n participants; `constant="suggested"` is
    C = sqrt(alpha ln N) / N. With privacy noise, n is the expected number of participants.
    """

    compressor: AnyCompressor = Dense()
    threshold: Annotated[float, Field(ge=0)] | None = None
    constant: Annotated[float, Field(ge=0)] | Literal["suggested"] = "suggested"
    alpha: Annotated[float, Field(gt=0)] = 1.0

    @property
    def has_reference(self) -> bool:
        return True

    def limit(self, context: RoundContext) -> float:
        """The threshold in this round."""
        if self.threshold is not None:
            return self.threshold
        constant = self.constant
        if constant == "suggested":
            constant = math.sqrt(self.alpha * math.log(context.population)) / context.population
        return constant / (self.alpha * context.invited)

    def is_similar(self, payload: Payload, state: State, context: RoundContext) -> bool:
        """Whether ||y - r|| <= threshold ||r||; False without a reference."""
        if "reference" not in state:
            return False
        reference = self.reference(state, context.layout)
        return sum_norm(payload, reference, -1.0) <= self.limit(context) * reference.norm()

    def reference(self, state: State, layout: Layout) -> Payload:
        """r, decoded from the state of the client or the peer state of the server."""
        return decode_body(Body.from_tensor(state["reference"]), layout)

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """A skip counts as one bit."""
        return 1 if body.codec == Codec.SKIP else super().paper_bits(body, layout)


@part("uplink", "lazy")
class Lazy(ThresholdUplink):
    """NLA [B, Algorithms 1 and 3]: an update close to the last one sent is skipped; the server uses that one again.

    Error feedback subtracts the update that the server used, so a skip loses nothing.
    """

    sensitivity = STATEFUL

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        used: Payload = decode_body(body, context.layout, keep=True)
        reference = body.to_tensor()
        if self.is_similar(used, state, context):
            body, used, reference = SKIP, self.reference(state, context.layout), state["reference"]
        memory = self.remember(target, used, context)
        return Encoded(body, memory | {"reference": reference}, used)

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        """The server cannot verify a skip, since it does not see the update. A skip repeats an update that it has used."""
        if body.codec != Codec.SKIP:
            bodies, _ = super().receive(body, flags, peer, context)
            return bodies, {"reference": body.to_tensor()}
        if "reference" not in peer:
            raise PacketError("reference", "a skip before anything was sent")
        return super().receive(Body.from_tensor(peer["reference"]), flags, peer, context)


@part("uplink", "accelerated")
class Accelerated(ThresholdUplink):
    """AA [B, equation (4)]: if an update y is close to the last one, r, the server uses r + y.

    Error feedback subtracts y. With `feedback="used"` it subtracts r + y, which cancels the acceleration one round later.
    """

    feedback: Literal["sent", "used"] = "sent"
    sensitivity = STATEFUL

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        decoded: Payload = decode_body(body, context.layout, keep=True)
        flags = Flag.ACCELERATED if self.is_similar(decoded, state, context) else Flag(0)
        used = SumPayload(self.reference(state, context.layout), decoded) if flags else decoded
        remembered = used if self.feedback == "used" else decoded
        memory = self.remember(target, remembered, context)
        return Encoded(body, memory | {"reference": body.to_tensor()}, used, flags, remembered)

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        """The server has y and r, so it verifies the test of an acceleration."""
        bodies: tuple[Body, ...] = (body,)
        if Flag.ACCELERATED in flags:
            if "reference" not in peer:
                raise PacketError("reference", "an acceleration before anything was sent")
            reference = self.reference(peer, context.layout)
            distance = sum_norm(decode_body(body, context.layout, keep=True), reference, -1.0)
            if distance > _SLACK * self.limit(context) * reference.norm():
                raise PacketError("accelerated", "an acceleration of an update that is not close to the last one")
            bodies = Body.from_tensor(peer["reference"]), body
        return bodies, {"reference": body.to_tensor()}
