"""The shifted uplink: clients send the difference between an update and a shift that both sides know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.link import CompressedLink
from laconic.algorithms.uplinks.base import Encoded, Uplink
from laconic.compression import DensePayload, Payload, SumPayload, decode_body, encode_dense
from laconic.compression.packet import Body, Flag
from laconic.core.devices import all_finite
from laconic.core.errors import PacketError
from laconic.core.part import STATEFUL, State, part
from laconic.core.randomness import Draw


@part("uplink", "shifted")
class Shifted(CompressedLink, Uplink):
    """The client sends y = C(u - h_i), the server uses h_i + y, and both move their copy of the shift: h_i += rate y.

    h_i is 0 at first and follows what the client's updates have in common, so that only the rest is sent. DIANA (Mishchenko
    et al., 2019) does this with gradients. A biased C needs no memory here: what was not sent stays in u - h_i, as in EF21.
    The server keeps one vector per client. Absent clients keep h_i. A client that has lost its state starts again at 0, on
    both sides.
    """

    shift_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """The rate of h_i. By default 1 / (1 + omega) of an unbiased compressor and of `eden`, and 1 of any other."""
    sensitivity = STATEFUL
    absent: ClassVar[Mapping[str, str]] = {"memory": "what was not sent stays in the difference from the shift"}

    @property
    def has_reference(self) -> bool:
        return True

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        shift = state.get("shift")
        rest, generator = update if shift is None else update - shift, context.generator(Draw.UPLINK)
        body = self.compression.encode(rest, context.layout, generator, context.invited)
        used: Payload = decode_body(body, context.layout, keep=True)
        moved = self._moved(shift, used, context)
        if shift is not None:
            used = SumPayload(DensePayload(shift), used)
        return Encoded(body, {"shift": moved}, used)

    def receive(self, body: Body, flags: Flag, peer: State, context: RoundContext) -> tuple[tuple[Body, ...], State]:
        bodies, _ = super().receive(body, flags, peer, context)
        shift = peer.get("shift")
        # Kept, since the server decodes the same body again to add it.
        moved = self._moved(shift, decode_body(body, context.layout, keep=True), context)
        if not all_finite(moved):
            raise PacketError("not finite", "NaN or infinity in the shift")
        return (bodies if shift is None else (encode_dense(shift, lent=True), *bodies)), {"shift": moved}

    def _moved(self, shift: Tensor | None, sent: Payload, context: RoundContext) -> Tensor:
        """h_i + rate y, in a new tensor."""
        moved = torch.zeros(context.layout.size, dtype=context.layout.dtype) if shift is None else shift.clone()
        sent.add_to(moved, self._rate(context))
        return moved

    def _rate(self, context: RoundContext) -> float:
        omega = self.compression.for_participants(context.invited).omega(context.layout)
        return 1 / (1 + omega) if self.shift_rate is None else self.shift_rate
