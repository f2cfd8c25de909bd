"""How a client's vector becomes bytes, and what the client remembers about what it did not send.

[E] is Fed-EF (Li and Li, 2023), [C] FedCAMS (Wang, Lin and Chen, 2022), [G] FedCOM (Haddadpour et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.compression import DENSE, AnyCompressor, Compressor, DensePayload, Payload, decode, encode_dense
from laconic.compression.packet import Body, Flag
from laconic.core.layout import Layout
from laconic.core.part import Part, State, part
from laconic.core.randomness import Draw


@dataclass(frozen=True)
class Encoded:
    """A client's upload, and the state it will have if the server folds it in."""

    body: Body
    state: State
    used: Payload
    """What the server will add to the mean."""
    flags: Flag = Flag(0)
    remembered: Payload | None = None
    """What the memory takes for sent, where that is not what the server will use."""


class Uplink(Part):
    """The client encodes its update with its own state; the server decodes what arrives.

    `peer` is what the server keeps of one client: nothing for most uplinks, the last packet for lazy ones.
    """

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        """The update as a body."""
        raise NotImplementedError

    def fold(self, body: Body, flags: Flag, peer: State, layout: Layout) -> tuple[Payload, State]:
        """On the server: what to add to the mean for this body, and the new peer state."""
        return decode(body, layout), peer

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """What the papers' formulas count for this body."""
        raise NotImplementedError

    @property
    def effective(self) -> Compressor | None:
        """C as it is really applied; None if there is none."""
        return None

    @property
    def has_memory(self) -> bool:
        """Whether what was not sent is kept for later."""
        return bool(self.parameters().get("memory", False))

    def without_memory(self) -> Uplink:
        """The same uplink, forgetting what it did not send: Fed-EF's Figure 1 shows what that costs."""
        return self


@part("uplink", "dense")
class DenseUplink(Uplink):
    """The update as it is: 32 d bits, nothing to remember."""

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        """Every entry."""
        return Encoded(encode_dense(update, lent=True), state, DensePayload(update))

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """32 d."""
        return DENSE.paper_bits(layout)


@part("uplink", "compressed")
class Compressed(Uplink):
    """C(u), and no memory: right for unbiased compressors (FedCOM, FedPAQ [G, Algorithm 1])."""

    compressor: AnyCompressor

    @property
    def effective(self) -> Compressor | None:
        """The compressor as it is."""
        return self.compressor

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        """C(u)."""
        body = compress(self.compressor, update, context)
        return Encoded(body, state, decode(body, context.layout))

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count."""
        return self.compressor.paper_bits(layout)


@part("uplink", "error_feedback")
class ErrorFeedback(Uplink):
    """x = u + m; send C(x); m = x - what the server decodes. [C, Algorithm 2; E, Algorithm 1, lines 11 and 12].

    C must be contractive; unbiased ones that are not are scaled by 1 / (1 + omega). Absent clients keep m. With
    `restart_after=S`, m = 0 when it was last updated more than S rounds ago, from round `restart_from` on [E, section 5].
    """

    compressor: AnyCompressor
    restart_after: Annotated[int, Field(ge=0)] | None = None
    restart_from: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        self.compressor.scaled_for_feedback()  # refuses what cannot contract, before any work

    @property
    def effective(self) -> Compressor | None:
        """The compressor, scaled if need be."""
        return self.compressor.scaled_for_feedback()

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        """C(u + m)."""
        target = compensate(update, state, context, self.restart_after, self.restart_from)
        body = compress(self.compressor.scaled_for_feedback(), target, context)
        used = decode(body, context.layout)
        return Encoded(body, remember(target, used, context), used)

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """The compressor's count."""
        return self.compressor.paper_bits(layout)

    @property
    def has_memory(self) -> bool:
        """Always."""
        return True

    def without_memory(self) -> Uplink:
        """C(u)."""
        return Compressed(self.compressor)


def compress(compressor: AnyCompressor, vector: Tensor, context: RoundContext) -> Body:
    """C(x), with draws that are named after the context."""
    return compressor.encode(vector, context.layout, context.generator(Draw.UPLINK))


def compensate(
    update: Tensor, state: State, context: RoundContext, restart_after: int | None, restart_from: int
) -> Tensor:
    """u + m, as a vector of its own; a memory that is too old is forgotten."""
    if "memory" not in state:
        return update.clone()
    age = context.round - int(state["updated"])
    if restart_after is not None and context.round >= restart_from and age > restart_after:
        return update.clone()
    return update + state["memory"].to(update.device)


def remember(target: Tensor, arrived: Payload, context: RoundContext) -> State:
    """m = x - what arrived; `target` is used up."""
    arrived.add_to(target, -1.0)
    return {"memory": target, "updated": torch.tensor(context.round)}
