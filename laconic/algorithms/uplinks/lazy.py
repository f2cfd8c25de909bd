"""Uplinks that look at how much an update differs from the last one sent. [B] is FedBNLACA and FedBACA.

The reference r is the last vector that this client transmitted; both sides keep it as the packet it came in. Before the
first transmission there is none, and nothing is skipped or accelerated.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.uplinks.base import CompressedUplink, Encoded
from laconic.compression import AnyCompressor, Codec, Dense, Payload, SumPayload, decode_body
from laconic.compression.packet import Body, Flag
from laconic.core.errors import PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, checked, part

SKIP = Body(Codec.SKIP)


@checked
class ThresholdUplink(CompressedUplink):
    """What lazy and accelerated uplinks share: ||y - r|| <= threshold ||r||.

    The threshold is a number, or C / (alpha n) [B, equation (3)] with n the clients invited; `constant="suggested"` is
    C = sqrt(alpha ln N) / N.
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
        """Whether y is near the reference: ||y - r|| <= threshold ||r||."""
        if "reference" not in state:
            return False
        reference = self.reference(state, context.layout).dense()
        distance = torch.linalg.vector_norm(payload.dense() - reference)
        return bool(distance <= self.limit(context) * torch.linalg.vector_norm(reference))

    def reference(self, state: State, layout: Layout) -> Payload:
        """The reference r, from the client's state or the server's."""
        return decode_body(Body.from_tensor(state["reference"]), layout)

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """A skip is a flag of one bit."""
        return 1 if body.codec == Codec.SKIP else super().paper_bits(body, layout)


@part("uplink", "lazy")
class Lazy(ThresholdUplink):
    """NLA [B, Algorithms 1 and 3]: an update near the last one sent is not sent; the server uses that one again.

    Error feedback inside sees what the server used, so a skip loses nothing.
    """

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        used: Payload = decode_body(body, context.layout)
        reference = body.to_tensor()
        if self.is_similar(used, state, context):
            body, used, reference = SKIP, self.reference(state, context.layout), state["reference"]
        memory = self.remember(target, used, context)
        return Encoded(body, memory | {"reference": reference}, used)

    def fold(self, body: Body, flags: Flag, peer: State, layout: Layout) -> tuple[Payload, State]:
        """The body, or on a skip the last one again."""
        if body.codec != Codec.SKIP:
            return decode_body(body, layout), {"reference": body.to_tensor()}
        if "reference" not in peer:
            raise PacketError("reference", "a skip before anything was sent")
        return self.reference(peer, layout), peer


@part("uplink", "accelerated")
class Accelerated(ThresholdUplink):
    """AA [B, equation (4)]: an update near the last one is sent in full, and the server uses both together.

    Error feedback inside sees y alone: seeing r + y it would take the acceleration back one round later. `feedback="used"`
    does just that.
    """

    feedback: Literal["sent", "used"] = "sent"

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        arrived: Payload = decode_body(body, context.layout)
        flags = Flag.ACCELERATED if self.is_similar(arrived, state, context) else Flag(0)
        used = SumPayload(self.reference(state, context.layout), arrived) if flags else arrived
        seen = used if self.feedback == "used" else arrived
        memory = self.remember(target, seen, context)
        return Encoded(body, memory | {"reference": body.to_tensor()}, used, flags, seen)

    def fold(self, body: Body, flags: Flag, peer: State, layout: Layout) -> tuple[Payload, State]:
        """What was sent, y, or r + y."""
        payload: Payload = decode_body(body, layout)
        if Flag.ACCELERATED in flags:
            if "reference" not in peer:
                raise PacketError("reference", "an acceleration before anything was sent")
            payload = SumPayload(self.reference(peer, layout), payload)
        return payload, {"reference": body.to_tensor()}
