"""BVR-L-SGD, FedPAGE and MARINA: the server keeps an estimate g of the mean gradient at the model.

BVR-L-SGD is Murata and Suzuki (2021), as FedAMD's paper uses it. FedPAGE is Zhao, Li and Richtarik (2021). MARINA is
Gorbunov, Burlachenko, Li and Richtarik (2021), Algorithm 1, and with few participants their PP-MARINA, Algorithm 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import ONE_STEP, ClipNorm, Count, LocalMethod, Method, method
from laconic.algorithms.methods.batches import BatchOrder, batch_examples
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import MODEL, TRAIN, Answer, Exchange, Phase, Stream
from laconic.algorithms.methods.received import Received
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor
from laconic.core.part import State, checked
from laconic.core.randomness import Draw
from laconic.core.schedules import clipped

GRADIENT, RENEWAL, CHANGE = "gradient", "renewal", "change"
PREVIOUS = "previous"
PREVIOUS_MODEL = Stream(PREVIOUS, draw="PREVIOUS")


def gradient_stream(compressor: GroupedCompressor | None = None) -> Stream:
    """The stream of the estimate g, or of its change."""
    return Stream(GRADIENT, compressor, draw="GRADIENT")


def recursive_steps(method: LocalMethod, cohort: Cohort, start: Tensor, first: bool = False) -> Tensor:
    """K times g += grad(W, batch) - grad(W_before, batch); W_before <- W; W -= a g. Returns W - w.

    FedAMD, Algorithm 1, lines 10 to 17. Both gradients of a step use the same batch. In the first step W = W_before, so
    g = `start`. With `first`, a step W -= a `start` comes before the K steps.
    """
    rate = method.rate(cohort.round)
    models, before, gradient = cohort.start(), cohort.models, start.clone()
    if first:
        models.sub_(clipped(gradient.clone(), method.clip_norm), alpha=rate)
    for step in method.steps(cohort):
        # The previous point first: batch norm must keep the statistics of the current one.
        previous = cohort.gradients(before, step, training=False)
        gradient.add_(cohort.gradients(models, step).sub_(previous))
        before = models
        models = models - rate * clipped(gradient.clone(), method.clip_norm) * step.working(models)
    return models - cohort.models


@checked
class EstimatedGradient(Method):
    """Clients send gradients at w; from them the server computes g, the entry `gradient` of its state.

    On failure: g uses the gradients that arrive. If none arrives, g does not change.
    """

    anchor_batch: Count | Literal["full"] = "full"
    """b, the number of examples in a large batch."""
    clip_norm: ClipNorm = None
    """Gradients with a larger norm are scaled to this norm, before differences are taken."""
    sensitivity = "its stream 'gradient' has neither clip nor noise"

    @property
    def order(self) -> BatchOrder:
        """The order of the client's data in large batches."""
        return "shuffled"

    def init(self, model: Tensor) -> State:
        return {GRADIENT: torch.zeros_like(model)}

    def _gradient(self, cohort: Cohort) -> Answer:
        return Answer(gradient=self._large_gradients(cohort, cohort.models)[0])

    def _large_gradients(self, cohort: Cohort, *models: Tensor, training: bool = True) -> list[Tensor]:
        return cohort.large_gradients(models, self.anchor_batch, self.clip_norm, self.order, training=training)

    def _examples(self, size: int) -> int:
        return batch_examples(size, self.anchor_batch)


@checked
class TwoExchanges(EstimatedGradient, LocalMethod):
    """First clients send gradients, from which the server computes g; then they take K steps of the recursion from g."""

    gradient_compressor: AnyGroupedCompressor | None = None
    """Compresses gradients, such as qsgd:8@layer; dense by default."""

    @property
    def order(self) -> BatchOrder:
        return self.batch_order

    def local(self, cohort: Cohort) -> Tensor:
        return recursive_steps(self, cohort, cohort.received.gradient)

    def nominal_gradients(self, size: int) -> int:
        return 2 * super().nominal_gradients(size)

    def _train(self) -> Phase:
        return Phase(TRAIN, self.local, self.nominal_gradients, down=(gradient_stream(),))


@checked
class UpdatedGradient(EstimatedGradient):
    """An estimate g that clients renew in some rounds, and update by differences in the others.

    For an update, participants also receive w_previous, the model of the current g, and send grad(w) - grad(w_previous) on
    the same examples; g += the mean. w_previous is the model of the last round in which a client answered.
    """

    def _change(self, cohort: Cohort) -> Answer:
        before, now = self._large_gradients(cohort, cohort.received.previous, cohort.models)
        return Answer(gradient=now.sub_(before))

    def _change_examples(self, size: int) -> int:
        return 2 * self._examples(size)

    def _estimate_phases(
        self, renewal: GroupedCompressor | None, change: GroupedCompressor | None, keeps_model: bool
    ) -> tuple[Phase, ...]:
        up, previous = (gradient_stream(change),), (PREVIOUS_MODEL,)
        return (
            Phase(RENEWAL, self._gradient, self._examples, (gradient_stream(renewal),), keeps_model=keeps_model),
            Phase(CHANGE, self._change, self._change_examples, up, previous, keeps_model),
        )

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(GRADIENT)
        if mean is None or exchange.phase not in (RENEWAL, CHANGE):
            return state
        gradient = mean if exchange.phase == RENEWAL else state[GRADIENT] + mean
        return state | {GRADIENT: gradient, "current": torch.ones((), dtype=torch.bool)}

    def close(self, state: State, model: Tensor) -> State:
        # If no client answered, g is still the estimate at the previous model.
        return {GRADIENT: state[GRADIENT], PREVIOUS: model} if "current" in state else state


@method("bvr_l_sgd")
class BVRLSGD(UpdatedGradient, TwoExchanges):
    """Participants send large-batch gradients at w, receive their mean g, and take steps from g.

    The steps are those of the recursion (see AnchorSampling).

    With `period` T and `trainers="one"` it is the algorithm of Murata and Suzuki (2021, Algorithms 1 and 2), with sampled
    clients: large batches in every T-th round only, and one client that takes the steps.
    """

    period: Count = 1
    """T: rounds t with t mod T = 0 have large batches. In the others, clients send the change of their gradients over K
    batches of `batch_size` examples, and g moves by the mean change."""
    trainers: Literal["all", "one"] = "all"
    """Who takes the steps: all participants, or one that is drawn."""

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        phases = self._estimate_phases(self.gradient_compressor, self.gradient_compressor, keeps_model=True)
        return (*phases[: 1 if self.period == 1 else 2], self._train())

    def _change(self, cohort: Cohort) -> Answer:
        models = [cohort.received.previous, cohort.models]
        before, now = cohort.batch_gradients(models, self.batches, self.clip_norm)
        return Answer(gradient=now.sub_(before))

    def _change_examples(self, size: int) -> int:
        return self.nominal_gradients(size)  # two gradients for each of K b' examples

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        renewed = context.round % self.period == 0 or PREVIOUS not in state
        who: Literal["answered", "one"] = "answered" if self.trainers == "all" else "one"
        return (Exchange(RENEWAL if renewed else CHANGE), Exchange(TRAIN, who=who, model=False))

    def close(self, state: State, model: Tensor) -> State:
        return {GRADIENT: state[GRADIENT]} if self.period == 1 else super().close(state, model)


@checked
class RenewedGradient(UpdatedGradient):
    """An estimate g that all N clients renew with probability p; the first g needs a renewal, too."""

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    """p, the probability that a round renews g."""

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        renewed = PREVIOUS not in state or context.generator(Draw.RENEWAL).random() < self.probability
        return (Exchange(RENEWAL, who="everyone") if renewed else Exchange(CHANGE),)


@method("fed_page")
class FedPAGE(RenewedGradient, TwoExchanges):
    """The server keeps an estimate g of the mean gradient; participants take steps that start from g.

    With probability p all N clients renew g. Otherwise participants send the change of their gradients since the last model,
    and g changes by the mean. Then participants take the steps of the recursion (see AnchorSampling) from g.

    With `steps_from="own"` a round has one exchange, as FedAMD's paper counts it. In a renewal the server takes a step along
    -g, and there are no local steps. Otherwise a participant starts from g plus its own difference of large-batch gradients:
    one step along it, then K of the recursion. It sends its mean step (W - w) / (a (K + 1)), and g becomes minus the mean of
    these. So the server's rate multiplies a gradient: use 0.1 rather than 1.
    """

    steps_from: Literal["mean", "own"] = "mean"
    """Where the recursion starts: at the mean estimate, in a second exchange, or at each client's own."""

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        compressor = self.gradient_compressor
        if self.steps_from == "mean":
            return (*self._estimate_phases(compressor, compressor, keeps_model=True), self._train())
        renewal, _ = self._estimate_phases(compressor, compressor, keeps_model=False)
        return renewal, Phase(TRAIN, self._own, self._own_gradients, down=(PREVIOUS_MODEL, gradient_stream()))

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        (estimate,) = super().exchanges(context, state)
        if self.steps_from == "mean":
            return (estimate, Exchange(TRAIN, who="answered", model=False))
        return (estimate if estimate.phase == RENEWAL else Exchange(TRAIN),)

    def _own(self, cohort: Cohort) -> Tensor:
        before, now = self._large_gradients(cohort, cohort.received.previous, cohort.models, training=False)
        moved = recursive_steps(self, cohort, cohort.received.gradient + now - before, first=True)
        lengths = moved.new_tensor([[self.rate(cohort.round) * (self.step_count(size) + 1)] for size in cohort.sizes])
        return moved / lengths.where(lengths > 0, 1)  # a is 0 at the end of some schedules

    def _own_gradients(self, size: int) -> int:
        return self._change_examples(size) + self.nominal_gradients(size)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(MODEL)
        if self.steps_from == "mean" or mean is None:
            return super().gather(exchange, state, received, context)
        return state | {GRADIENT: -mean, "current": torch.ones((), dtype=torch.bool)}

    def update(self, received: Received, state: State) -> Tensor | None:
        renewed = self.steps_from == "own" and GRADIENT in received.arrived
        return -state[GRADIENT] if renewed else super().update(received, state)


@method("marina")
class MARINA(RenewedGradient):
    """w -= b g, with g an estimate of the mean gradient.

    With probability p all clients send their gradients. Otherwise participants send the differences of their gradients at
    the new and the last model, compressed without memory. The uplink's compressor must be unbiased.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    """p, the probability that a round renews g."""
    absent: ClassVar[Mapping[str, str]] = ONE_STEP

    def resolve(self, uplink: Uplink) -> Self:
        uplink.unbiased_compression(self.name)
        return self

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        return self._estimate_phases(None, uplink.compression, keeps_model=False)

    def update(self, received: Received, state: State) -> Tensor | None:
        return -state[GRADIENT] if GRADIENT in received.arrived else None
