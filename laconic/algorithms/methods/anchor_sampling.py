"""FedAMD: in every round some clients renew a cached gradient; the others take local steps with the mean of all caches.

[A] is Wu, Guo, Qu, He, Liu and Gao, "Anchor sampling for federated learning with partial client participation", ICML 2023,
Algorithm 1, in the form for many clients: the server keeps only the mean of the caches.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import Count, LocalMethod, method
from laconic.algorithms.methods.batches import batch_examples
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import Answer, Exchange, Phase
from laconic.algorithms.methods.probabilities import AnyProbabilities, ProbabilitySequence
from laconic.algorithms.methods.recursive_gradient import recursive_steps
from laconic.algorithms.methods.shared_state import SharedState, first_pass
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor
from laconic.core.errors import ConfigError
from laconic.core.part import State
from laconic.core.randomness import Draw

FIRST_ANCHOR, ANCHOR, MINER = "first anchor", "anchor", "miner"


@method("anchor_sampling")
class AnchorSampling(LocalMethod):
    """Anchors cache v_i, their large-batch gradients at w; miners take K steps that start from vbar = mean(v_i).

    A miner starts from g = vbar and W = W_before = w, and K times takes a step of the recursion: g += grad(W, batch) -
    grad(W_before, batch); W_before = W; W -= a g.

    A participant is an anchor with probability p. With `period`, all participants are anchors in every round t with
    t mod period = 0, and miners in the others. Before round 0 all clients are anchors.

    On failure: a lost difference changes neither vbar nor v_i. A client that loses its state restarts with v_i = 0; its
    earlier v_i remains in vbar.
    """

    anchor = SharedState(draw="ANCHOR")
    probability: Annotated[float, Field(ge=0, le=1)] | Literal["optimal", "optimal_pl"] | AnyProbabilities = "optimal"
    """p: a number; `optimal` is (2 / (n + 2))^(1/n) / c [A, Corollary 4.9]; `optimal_pl` is that under the PL condition. Or
    p_t of every round t: a list such as 1,0,0, which repeats, or a function of t."""
    period: Annotated[int, Field(ge=2)] | None = None
    """tau of the sequential form, instead of a probability."""
    anchor_batch: Count | Literal["full"] = "full"
    """b, the number of examples in a large batch."""
    first_pass: Literal["exact", "compressed"] = "exact"
    """Whether the first gradients are sent exactly, as the theory assumes, or compressed like later ones."""
    probability_divisor: Annotated[float, Field(ge=1)] = 1.0
    """c, a divisor of p."""
    pl_constant: Annotated[float, Field(gt=0)] = 1.0
    """mu of the PL condition."""
    mean_compressor: AnyGroupedCompressor | None = None
    """Compresses vbar for miners; dense by default. Without memory it should be unbiased, such as qsgd:8@layer."""
    equal_weights: ClassVar[bool] = True
    sensitivity = "its stream 'anchor' has neither clip nor noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.period is not None and self.probability != "optimal":
            settings = f"method.probability = {self.probability}, period = {self.period}"
            raise ConfigError(f"{settings}: only one of the two is allowed")

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        change = self.anchor.difference(uplink)
        first = self.anchor.exact() if self.first_pass == "exact" else change
        return (
            Phase(FIRST_ANCHOR, self._first_anchor, self._anchor_gradients, up=(first,)),
            Phase(ANCHOR, self._anchor, self._anchor_gradients, up=(change,)),
            Phase(MINER, self._miner, self._miner_gradients, down=(self.anchor.mean(self.mean_compressor),)),
        )

    def _first_anchor(self, cohort: Cohort) -> Answer:
        # A batch of its own: with that of round 0, the anchors of round 0 would send zeros.
        return self._anchor(cohort, Draw.FIRST_LARGE_BATCH)

    def _anchor(self, cohort: Cohort, purpose: str = Draw.LARGE_BATCH) -> Answer:
        settings = (self.anchor_batch, self.clip_norm, self.batch_order, purpose)
        return Answer(anchor=cohort.large_gradients([cohort.models], *settings)[0] - cohort.state.anchor)

    def _miner(self, cohort: Cohort) -> Tensor:
        return recursive_steps(self, cohort, cohort.received.anchor)

    def _anchor_gradients(self, size: int) -> int:
        return batch_examples(size, self.anchor_batch)

    def _miner_gradients(self, size: int) -> int:
        return 2 * self.nominal_gradients(size)  # two per step: [A, Table 2]

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (first_pass(FIRST_ANCHOR), Exchange(MINER)) if context.starts else (Exchange(MINER),)

    def assign(self, exchange: Exchange, context: RoundContext) -> str:
        if exchange.phase == FIRST_ANCHOR:
            return FIRST_ANCHOR
        if self.period is not None:
            return MINER if context.round % self.period else ANCHOR
        return (
            ANCHOR if context.generator(Draw.ANCHOR).random() < self.chance(context.invited, context.round) else MINER
        )

    def chance(self, invited: int, round: int = 0) -> float:
        """p for n participants in a round.

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
        return self.probability.at(round) if isinstance(self.probability, ProbabilitySequence) else self.probability
