"""BVR-L-SGD and FedPAGE: a gradient estimate on the server, and clients that walk on from it.

BVR-L-SGD is Murata and Suzuki (2021), as FedAMD's paper uses it; FedPAGE is Zhao, Li and Richtarik (2021). MARINA is
Gorbunov, Burlachenko, Li and Richtarik (2021): the same estimate with compressed differences, and no local steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import ONE_STEP, ClipNorm, Count, LocalMethod, Method, Vectors
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.differences import unbiased_compressor
from laconic.algorithms.methods.exchange import TRAIN, Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.recursion import large_batch, recursive_steps
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor
from laconic.compression.packet import Stream
from laconic.core.part import State, checked, part
from laconic.core.randomness import Draw

GRADIENT, RENEWAL, CHANGE = "gradient", "renewal", "change"
BESIDE = "its gradients travel beside the updates, and would pass undefended"


@checked
class TwoExchanges(LocalMethod):
    """First gradients, from which the server makes its estimate g; then K steps of the recursion from g."""

    anchor_batch: Count | Literal["full"] = "full"
    """b, the examples of a large batch."""
    gradient_compressor: AnyGroupedCompressor | None = None
    """How gradients are compressed, as `qsgd:8@layer`; dense when not given, and by model without an `@`."""
    exact_sums: ClassVar[str | None] = BESIDE

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """Gradients have their own."""
        return self.gradient_compressor

    def init(self, model: Tensor) -> State:
        """g before anybody was heard."""
        return {"gradient": torch.zeros_like(model)}

    def send(self, phase: str, state: State) -> Vectors:
        """The estimate g, to those who walk on from it."""
        return {Stream.GRADIENT: state["gradient"]} if phase == TRAIN else {}

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """A gradient first, an update then."""
        return (Stream.MODEL,) if phase == TRAIN else (Stream.GRADIENT,)

    def nominal_gradients(self, size: int, phase: str) -> int:
        """2 K b' for the recursion, b for a gradient, 2 b for a difference."""
        if phase == TRAIN:
            return 2 * super().nominal_gradients(size, phase)
        large = size if self.anchor_batch == "full" else min(size, self.anchor_batch)
        return 2 * large if phase == CHANGE else large


@part("method", "bvr_l_sgd")
class BVRLSGD(TwoExchanges):
    """Participants send large-batch gradients at w, get their mean as g, and run the recursion from it."""

    keeps_model: ClassVar[frozenset[str]] = frozenset({GRADIENT})

    def answer(self, cohort: Cohort) -> Vectors:
        """The large-batch gradient, or u_i."""
        if cohort.phase == TRAIN:
            return {Stream.MODEL: recursive_steps(self, cohort, cohort.received[Stream.GRADIENT])}
        settings = (large_batch(self.anchor_batch), self.clip_norm, self.batch_order)
        return {Stream.GRADIENT: cohort.large_gradients([cohort.models], *settings)[0]}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """Gradients, then updates of those whose gradient has come."""
        return (Exchange(GRADIENT), Exchange(TRAIN, who="answered", model=False))

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """The mean of the gradients."""
        mean = received.mean(Stream.GRADIENT)
        return state if mean is None else {"gradient": mean}


@checked
class Renewed(Method):
    """An estimate g that all clients renew now and then, and that participants carry along by differences in between.

    With probability p, and while there is no g, all N send their gradient at w and g is the mean. Otherwise participants,
    who are sent w_previous too, the model that g belongs to, send grad(w) - grad(w_previous) on one batch, and g += the
    mean. w_previous is the model of the round before, or of an earlier one if nobody has answered since.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    anchor_batch: Count | Literal["full"] = "full"
    clip_norm: ClipNorm = None
    """Gradients that are longer are brought to this length, before any difference is taken."""
    exact_sums: ClassVar[str | None] = BESIDE

    def first(self, context: RoundContext, state: State) -> Exchange:
        """The exchange that brings g up to date, by the coin of the round."""
        renewed = "previous" not in state or context.generator(Draw.RENEWAL).random() < self.probability
        return Exchange(RENEWAL, who="everyone") if renewed else Exchange(CHANGE)

    def measured(self, cohort: Cohort) -> Tensor:
        """The gradient at w, or its change since the model that g belongs to."""
        order = self.batch_order if isinstance(self, LocalMethod) else "shuffled"
        settings = (large_batch(self.anchor_batch), self.clip_norm, order)
        if cohort.phase == RENEWAL:
            return cohort.large_gradients([cohort.models], *settings)[0]
        models = [cohort.received[Stream.PREVIOUS], cohort.models]
        before, now = cohort.large_gradients(models, *settings)
        return now.sub_(before)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """g, renewed or carried along."""
        mean = received.mean(Stream.GRADIENT)
        if mean is None or exchange.phase not in (RENEWAL, CHANGE):
            return state
        gradient = mean if exchange.phase == RENEWAL else state["gradient"] + mean
        return state | {"gradient": gradient, "current": torch.ones((), dtype=torch.bool)}

    def close(self, state: State, model: Tensor) -> State:
        """If g was brought up to date, it belongs to the round's model; if nobody answered, to the one before still."""
        return {"gradient": state["gradient"], "previous": model} if "current" in state else state


@part("method", "fed_page")
class FedPAGE(Renewed, TwoExchanges):
    """The estimate of `Renewed`, and participants that run the recursion from it."""

    keeps_model: ClassVar[frozenset[str]] = frozenset({RENEWAL, CHANGE})

    def answer(self, cohort: Cohort) -> Vectors:
        """A gradient or its change; then u_i."""
        if cohort.phase == TRAIN:
            return {Stream.MODEL: recursive_steps(self, cohort, cohort.received[Stream.GRADIENT])}
        return {Stream.GRADIENT: self.measured(cohort)}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """The estimate, then updates of those participants who were heard."""
        return (self.first(context, state), Exchange(TRAIN, who="answered", model=False))

    def send(self, phase: str, state: State) -> Vectors:
        """The model before, or g."""
        return {Stream.PREVIOUS: state["previous"]} if phase == CHANGE else super().send(phase, state)


@part("method", "marina")
class MARINA(Renewed):
    """The model moves by -g; differences are compressed, without memory, by the uplink's compressor.

    Gorbunov et al. (2021), Algorithm 1; with few participants their PP-MARINA, Algorithm 4.
    """

    probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    absent: ClassVar[Mapping[str, str]] = ONE_STEP
    plain_uplink: ClassVar[str | None] = "clients send gradients and their changes, each compressed by itself"

    def fitted(self, uplink: Uplink) -> Self:
        """As it is; but only with an unbiased compressor."""
        unbiased_compressor(self, uplink)
        return self

    def answer(self, cohort: Cohort) -> Vectors:
        """A gradient, or its change."""
        return {Stream.GRADIENT: self.measured(cohort)}

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """Renewals are dense, changes as the uplink says."""
        return uplink.compression if phase == CHANGE else None

    def init(self, model: Tensor) -> State:
        """G before anybody was heard."""
        return {"gradient": torch.zeros_like(model)}

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        """One."""
        return (self.first(context, state),)

    def send(self, phase: str, state: State) -> Vectors:
        """The model before."""
        return {Stream.PREVIOUS: state["previous"]} if phase == CHANGE else {}

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """Gradients only."""
        return (Stream.GRADIENT,)

    def update(self, received: Received, state: State) -> Tensor | None:
        """-g."""
        return -state["gradient"] if Stream.GRADIENT in received.heard else None

    def nominal_gradients(self, size: int, phase: str) -> int:
        """The batch, or twice that for a difference."""
        large = size if self.anchor_batch == "full" else min(size, self.anchor_batch)
        return 2 * large if phase == CHANGE else large
