"""FedAMD: in every round some clients renew their cached gradient, and the others walk with the mean of all of them.

[A] is Wu, Guo, Qu, He, Liu and Gao, "Anchor sampling for federated learning with partial client
participation", ICML 2023, Algorithm 1, in the form for many clients: the server keeps the mean of the caches only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import Count, LocalMethod, Vectors
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.differences import add_difference, difference_compressor
from laconic.algorithms.methods.exchange import Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.recursion import large_batch, recursive_steps
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor, Payload
from laconic.compression.packet import Stream
from laconic.core.errors import ConfigError
from laconic.core.part import State, part
from laconic.core.randomness import Draw

FIRST_ANCHOR, ANCHOR, MINER = "first anchor", "anchor", "miner"


@part("method", "anchor_sampling")
class AnchorSampling(LocalMethod):
    """An anchor caches v_i, its large-batch gradient at w; a miner takes K steps of the recursion from vbar = mean(v_i).

    Every participant is an anchor with probability p, or with `period` all of them are in every round t with t mod
    period = 0. Before round 0 everybody is an anchor. An anchor sends the change of v_i as a state difference.
    """

    probability: Annotated[float, Field(ge=0, le=1)] | Literal["optimal", "optimal_pl"] = "optimal"
    """p: a number; `optimal` is (2 / (n + 2))^(1/n) / c [A, Corollary 4.9]; `optimal_pl` is that under the PL condition."""
    period: Annotated[int, Field(ge=2)] | None = None
    """tau of the sequential form; it takes the place of the probability."""
    anchor_batch: Count | Literal["full"] = "full"
    """b, the examples of a large batch."""
    first_pass: Literal["exact", "compressed"] = "exact"
    """Whether the first gradients of all clients are compressed as later ones are; the theory starts from exact ones."""
    probability_divisor: Annotated[float, Field(ge=1)] = 1.0
    """c."""
    pl_constant: Annotated[float, Field(gt=0)] = 1.0
    """mu of the PL condition."""
    mean_compressor: AnyGroupedCompressor | None = None
    """How vbar travels to miners; dense when not given. It has no memory: use an unbiased one, as `qsgd:8@layer`."""
    equal_weights: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "what clients change in their own state must be added as it is, undefended"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period is not None and self.probability != "optimal":
            given = f"method.probability = {self.probability}, period = {self.period}"
            raise ConfigError(f"{given}: the period takes the probability's place; only one of the two is allowed")

    def answer(self, cohort: Cohort) -> Vectors:
        """The change of v_i, or u_i."""
        if cohort.phase == MINER:
            return {Stream.MODEL: recursive_steps(self, cohort, cohort.received[Stream.ANCHOR])}
        # A draw of its own: anchors of round 0 would have nothing new to say on the batch of the first pass.
        purpose = Draw.FIRST_LARGE_BATCH if cohort.phase == FIRST_ANCHOR else Draw.LARGE_BATCH
        settings = (large_batch(self.anchor_batch), self.clip_norm, self.batch_order, purpose)
        fresh = cohort.large_gradients([cohort.models], *settings)[0]
        return {Stream.ANCHOR: fresh - cohort.stacked("anchor")}

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """v_i, moved by what arrived."""
        if cohort.phase == MINER:
            return cohort.states[row]
        return add_difference(cohort, row, "anchor", used[Stream.ANCHOR])

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """As the update is compressed, without memory; the first pass only if that was asked for."""
        exact = phase == FIRST_ANCHOR and self.first_pass == "exact"
        return None if exact else difference_compressor(uplink)

    def init(self, model: Tensor) -> State:
        """vbar before anybody was heard."""
        return {"anchor": torch.zeros_like(model)}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """One a round; before the first a pass over all clients, which the paper leaves out of its counts."""
        opening = (Exchange(FIRST_ANCHOR, who="everyone", counted=False),) if context.round == 0 else ()
        return (*opening, Exchange(MINER))

    def assign(self, exchange: Exchange, context: RoundContext) -> str:
        """Anchor or miner, by the coin of this round and client."""
        if exchange.phase == FIRST_ANCHOR:
            return FIRST_ANCHOR
        if self.period is not None:
            return MINER if context.round % self.period else ANCHOR
        return ANCHOR if context.generator(Draw.ANCHOR).random() < self.chance(context.invited) else MINER

    def chance(self, invited: int) -> float:
        """p, given n.

        >>> round(AnchorSampling().chance(20), 3)
        0.887
        """
        n, c = invited, self.probability_divisor
        if self.probability == "optimal":
            return math.pow(2 / (n + 2), 1 / n) / c
        if self.probability == "optimal_pl":
            # 1 + half - root with half = (n + 1) / (2 mu^2) and root = sqrt(half^2 + n / mu^2), without the cancellation of
            # two large numbers: ((1 + half)^2 - root^2) / (1 + half + root), whose numerator is 1 + 1 / mu^2; times mu^2.
            squared, half = self.pl_constant**2, (n + 1) / 2
            root = math.sqrt(half**2 + n * squared)
            return math.pow((squared + 1) / (squared + half + root), 1 / n) / c
        return self.probability

    def send(self, phase: str, state: State) -> Vectors:
        """Vbar, to miners only."""
        return {Stream.ANCHOR: state["anchor"]} if phase == MINER else {}

    def send_compressor(self, stream: Stream) -> GroupedCompressor | None:
        """As that was asked for."""
        return self.mean_compressor

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """A miner's update, or the change of an anchor's cache."""
        return (Stream.MODEL,) if phase == MINER else (Stream.ANCHOR,)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """vbar += sum of the changes / N."""
        return {"anchor": state["anchor"] + received.take(Stream.ANCHOR) / context.population}

    def nominal_gradients(self, size: int, phase: str) -> int:
        """B for an anchor, 2 K b' for a miner [A, Table 2]."""
        if phase == MINER:
            return 2 * super().nominal_gradients(size, phase)
        return size if self.anchor_batch == "full" else min(size, self.anchor_batch)
