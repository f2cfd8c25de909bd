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
from laconic.algorithms.methods.exchange import TRAIN, Answer, Exchange, Phase, Stream
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.recursion import recursive_steps
from laconic.algorithms.methods.unbiased import unbiased_compressor
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor
from laconic.core.part import State, checked
from laconic.core.randomness import Draw

GRADIENT, RENEWAL, CHANGE = "gradient", "renewal", "change"
PREVIOUS = "previous"


@checked
class EstimatedGradient(Method):
    """Clients send gradients at w, from which the server makes g, the entry `gradient` of its state.

    On failure: g uses the gradients that arrive. If none does, g stays as it is.
    """

    anchor_batch: Count | Literal["full"] = "full"
    """b, the examples of a large batch."""
    clip_norm: ClipNorm = None
    """Longer gradients are scaled to this norm, before any difference is taken."""

    @property
    def order(self) -> BatchOrder:
        """The order of the client's data, from which a large batch is drawn."""
        return "shuffled"

    def init(self, model: Tensor) -> State:
        return {GRADIENT: torch.zeros_like(model)}

    def _gradient(self, cohort: Cohort) -> Answer:
        return Answer(gradient=self._large_gradients(cohort, cohort.models)[0])

    def _large_gradients(self, cohort: Cohort, *models: Tensor) -> list[Tensor]:
        return cohort.large_gradients(models, self.anchor_batch, self.clip_norm, self.order)

    def _examples(self, size: int) -> int:
        return batch_examples(size, self.anchor_batch)


@checked
class TwoExchanges(EstimatedGradient, LocalMethod):
    """First gradients, from which the server makes g; then K steps of the recursion from g."""

    gradient_compressor: AnyGroupedCompressor | None = None
    """How gradients are compressed, as qsgd:8@layer; dense when not given."""

    @property
    def order(self) -> BatchOrder:
        return self.batch_order

    def local(self, cohort: Cohort) -> Tensor:
        return recursive_steps(self, cohort, cohort.received.gradient)

    def nominal_gradients(self, size: int) -> int:
        """2 K b'."""
        return 2 * super().nominal_gradients(size)

    def _train(self) -> Phase:
        return Phase(TRAIN, self.local, self.nominal_gradients, down=(Stream(GRADIENT),))


@method("bvr_l_sgd")
class BVRLSGD(TwoExchanges):
    """Participants send large-batch gradients at w, get their mean as g, and run the recursion from it."""

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        up = (Stream(GRADIENT, self.gradient_compressor),)
        return (Phase(GRADIENT, self._gradient, self._examples, up, keeps_model=True), self._train())

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (Exchange(GRADIENT), Exchange(TRAIN, who="answered", model=False))

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(GRADIENT)
        return state if mean is None else {GRADIENT: mean}


@checked
class RenewedGradient(EstimatedGradient):
    """An estimate g that all clients renew now and then, and that participants carry along by differences in between.

    With probability p, and while there is no g, all N send their gradient at w and g is the mean. Otherwise participants
    also receive w_previous, the model that g belongs to, send grad(w) - grad(w_previous) on one batch, and g += the mean.
    w_previous is the model of the round before, or of an earlier one if nobody has answered since.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5

    def _change(self, cohort: Cohort) -> Answer:
        before, now = self._large_gradients(cohort, cohort.received.previous, cohort.models)
        return Answer(gradient=now.sub_(before))

    def _change_examples(self, size: int) -> int:
        return 2 * self._examples(size)

    def _estimate_phases(
        self, renewal: GroupedCompressor | None, change: GroupedCompressor | None, keeps_model: bool
    ) -> tuple[Phase, ...]:
        up, previous = (Stream(GRADIENT, change),), (Stream(PREVIOUS),)
        return (
            Phase(RENEWAL, self._gradient, self._examples, (Stream(GRADIENT, renewal),), keeps_model=keeps_model),
            Phase(CHANGE, self._change, self._change_examples, up, previous, keeps_model),
        )

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        renewed = PREVIOUS not in state or context.generator(Draw.RENEWAL).random() < self.probability
        return (Exchange(RENEWAL, who="everyone") if renewed else Exchange(CHANGE),)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(GRADIENT)
        if mean is None or exchange.phase not in (RENEWAL, CHANGE):
            return state
        gradient = mean if exchange.phase == RENEWAL else state[GRADIENT] + mean
        return state | {GRADIENT: gradient, "current": torch.ones((), dtype=torch.bool)}

    def close(self, state: State, model: Tensor) -> State:
        # A g that is up to date belongs to the round's model; if nobody answered, it belongs to the previous one still.
        return {GRADIENT: state[GRADIENT], PREVIOUS: model} if "current" in state else state


@method("fed_page")
class FedPAGE(RenewedGradient, TwoExchanges):
    """The estimate of `RenewedGradient`, and participants that run the recursion from it."""

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        compressor = self.gradient_compressor
        return (*self._estimate_phases(compressor, compressor, keeps_model=True), self._train())

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (*super().exchanges(context, state), Exchange(TRAIN, who="answered", model=False))


@method("marina")
class MARINA(RenewedGradient):
    """The model moves by -g. The uplink's compressor compresses differences, without memory; it must be unbiased."""

    probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    absent: ClassVar[Mapping[str, str]] = ONE_STEP

    def fitted(self, uplink: Uplink) -> Self:
        unbiased_compressor(self, uplink)
        return self

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        return self._estimate_phases(None, uplink.compression, keeps_model=False)

    def update(self, received: Received, state: State) -> Tensor | None:
        return -state[GRADIENT] if GRADIENT in received.heard else None
