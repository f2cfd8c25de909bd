"""How a client's vector becomes bytes, and what the client remembers about what it did not send.

[E] is Fed-EF (Li and Li, 2023), [C] FedCAMS (Wang, Lin and Chen, 2022), [G] FedCOM (Haddadpour et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.link import CompressedLink
from laconic.compression import DENSE, DensePayload, GroupedCompressor, Payload, decode_body, encode_dense
from laconic.compression.packet import Body, Flag
from laconic.core.layout import Layout
from laconic.core.part import Part, State, checked, part
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
        return decode_body(body, layout), peer

    def paper_bits(self, body: Body, layout: Layout) -> int:
        """What the papers' formulas count for this body."""
        raise NotImplementedError

    @property
    def compression(self) -> GroupedCompressor | None:
        """C and its granularity; None if updates are not compressed."""
        return None

    @property
    def has_memory(self) -> bool:
        """Whether what was not sent is kept for later."""
        return False

    @property
    def has_reference(self) -> bool:
        """Whether what is sent, or what the server makes of it, depends on the last update that was sent."""
        return False

    @property
    def effective(self) -> GroupedCompressor | None:
        """C as it is really applied: with memory, scaled so that it contracts."""
        return self.compression.scaled_for_feedback() if self.compression and self.has_memory else self.compression

    @property
    def lossless(self) -> bool:
        """Whether every update arrives as it is."""
        return not self.has_reference and (self.compression is None or self.compression.compressor.lossless)


@part("uplink", "dense")
class DenseUplink(Uplink):
    """The update as it is: 32 d bits."""

    memory: bool | None = None
    """May be set, as for other uplinks; but nothing is left out, so there is nothing to remember."""

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        return Encoded(encode_dense(update, lent=True), state, DensePayload(update))

    def paper_bits(self, body: Body, layout: Layout) -> int:
        return DENSE.paper_bits(layout)


@checked
class CompressedUplink(CompressedLink, Uplink):
    """What uplinks that compress share: with memory x = u + m is sent as C(x), and m = x - what the server decodes.

    With memory C must be contractive; unbiased ones that are not are scaled by 1 / (1 + omega). Absent clients keep m.
    """

    memory: bool | Literal["auto"] = False
    """Error feedback: add what was not sent to the next update. `auto`: if C is biased and does more than round."""
    restart_after: Annotated[int, Field(ge=0)] | None = None
    """m = 0 when it was last updated more than so many rounds ago [E, section 5]."""
    restart_from: Annotated[int, Field(ge=0)] = 0
    """The first round in which a memory may be restarted."""

    def __post_init__(self) -> None:
        if self.has_memory:
            self.compressor.scaled_for_feedback()  # refuses what cannot contract, before any work

    @property
    def has_memory(self) -> bool:
        if self.memory == "auto":
            return self.compressor.biased and not self.compressor.rounds_entries
        return self.memory

    def target(self, update: Tensor, state: State, context: RoundContext) -> Tensor:
        """u without memory; with it u + m, as a vector of its own. A memory that is too old is forgotten."""
        if not self.has_memory:
            return update
        if "memory" not in state:
            return update.clone()
        age = context.round - int(state["updated"])
        if self.restart_after is not None and context.round >= self.restart_from and age > self.restart_after:
            return update.clone()
        return update + state["memory"].to(update.device)

    def compress(self, target: Tensor, context: RoundContext) -> Body:
        """C(x), with draws that are named after the context."""
        assert self.effective is not None
        return self.effective.encode(target, context.layout, context.generator(Draw.UPLINK))

    def remember(self, target: Tensor, arrived: Payload, context: RoundContext) -> State:
        """m = x - what arrived; `target` is used up."""
        if not self.has_memory:
            return {}
        arrived.add_to(target, -1.0)
        return {"memory": target, "updated": torch.tensor(context.round)}

    def paper_bits(self, body: Body, layout: Layout) -> int:
        return self.compression.paper_bits(layout)


@part("uplink", "compressed")
class Compressed(CompressedUplink):
    """C(u), right for unbiased compressors (FedCOM, FedPAQ [G, Algorithm 1]); or with memory C(u + m), error feedback.

    Error feedback is [C, Algorithm 2; E, Algorithm 1, lines 11 and 12].
    """

    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "compressed": {"memory": False},
        "error_feedback": {"memory": True},
    }

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        used = decode_body(body, context.layout)
        return Encoded(body, self.remember(target, used, context), used)
