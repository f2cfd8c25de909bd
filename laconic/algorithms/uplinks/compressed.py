"""The compressed uplink, with or without error feedback.

[E] is Fed-EF (Li and Li, 2023), [C] FedCAMS (Wang, Lin and Chen, 2022), [G] FedCOM (Haddadpour et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.link import CompressedLink
from laconic.algorithms.uplinks.base import Encoded, Uplink
from laconic.compression import Payload, decode_body
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError
from laconic.core.part import BOUNDED, STATEFUL, State, checked, part
from laconic.core.randomness import Draw


@checked
class CompressedUplink(CompressedLink, Uplink):
    """The base of uplinks that compress. Without memory they send C(u); with memory x = u + e as C(x), and e = x - C(x).

    With memory C must be contractive: an unbiased C is scaled by 1 / (1 + omega). Absent clients keep e.
    """

    memory: bool | Literal["auto"] = False
    """Error feedback: add the compression error to the next update. `auto`: if C is biased, unless it only rounds."""
    restart_after: Annotated[int, Field(ge=0)] | None = None
    """Reset e to 0 if it is older than this number of rounds [E, section 5]."""
    restart_from: Annotated[int, Field(ge=0)] = 0
    """The first round in which e may be reset."""
    memory_decay: Annotated[float, Field(ge=0, le=1)] = 1.0
    """x = u + decay e. Below 1 the memory forgets; with few kept entries it then acts like momentum (SparseLoCo)."""

    def __post_init__(self) -> None:
        if self.has_memory:
            try:
                self.compressor.scaled_for_feedback()
            except ConfigError as error:
                raise ConfigError(f"{error}; use it without error feedback: memory=False, --no-memory") from None

    @property
    def has_memory(self) -> bool:
        if self.memory == "auto":
            return self.compressor.biased and not self.compressor.rounds_entries
        return self.memory

    def target(self, update: Tensor, state: State, context: RoundContext) -> Tensor:
        """u without memory; with memory u + decay e, in a new tensor. An expired memory counts as 0."""
        if not self.has_memory:
            return update
        if "memory" not in state:
            return update.clone()
        age = context.round - int(state["updated"])
        if self.restart_after is not None and context.round >= self.restart_from and age > self.restart_after:
            return update.clone()
        return torch.add(update, state["memory"].to(update.device), alpha=self.memory_decay)

    def compress(self, target: Tensor, context: RoundContext) -> Body:
        """C(x), with the random draws of this round and client."""
        assert self.effective is not None
        return self.effective.encode(target, context.layout, context.generator(Draw.UPLINK), context.invited)

    def remember(self, target: Tensor, decoded: Payload, context: RoundContext) -> State:
        """e = x - C(x). Overwrites `target`."""
        if not self.has_memory:
            return {}
        decoded.add_to(target, -1.0)
        return {"memory": target, "updated": torch.tensor(context.round)}


@part("uplink", "compressed")
class Compressed(CompressedUplink):
    """C(u), for unbiased compressors (FedCOM, FedPAQ [G, Algorithm 1]); with memory C(u + e), error feedback.

    Error feedback follows [C, Algorithm 2; E, Algorithm 1, lines 11 and 12].
    """

    named: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "compressed": {"memory": False},
        "error_feedback": {"memory": True},
    }

    @property
    def sensitivity(self) -> str:
        return STATEFUL if self.has_memory else BOUNDED

    def encode(self, update: Tensor, state: State, context: RoundContext) -> Encoded:
        target = self.target(update, state, context)
        body = self.compress(target, context)
        used = decode_body(body, context.layout, keep=True)
        return Encoded(body, self.remember(target, used, context), used)
