"""EF21, EF21-SGDM, DIANA and VR-DIANA: clients send the difference between their gradient and a shared state.

EF21 is Richtarik, Sokolov and Fatkhullin (2021), with few participants as in Fatkhullin et al. (2021), Algorithm 5.
EF21-SGDM is Fatkhullin, Tyurin and Richtarik (2023), Algorithm 1. DIANA is Mishchenko, Gorbunov, Takac and Richtarik (2019),
with few participants as in COFIG (Zhao et al., 2021).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import ONE_STEP, ClipNorm, Count, Method, method
from laconic.algorithms.methods.batches import batch_examples
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import TRAIN, Answer, Exchange, Phase
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.shared_state import SharedState, first_pass
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor
from laconic.core.layout import Layout
from laconic.core.part import State, checked
from laconic.core.randomness import Draw

RENEWAL, FIRST_POINT = "renewal", "first point"


@checked
class CompressedGradients(Method):
    """A client sends C(gradient - state); the server takes a step along minus its estimate of the mean gradient.

    On failure: see `SharedState`. If no client answers, the model does not change.
    """

    gradient = SharedState(draw="GRADIENT")
    batch_size: Count | Literal["full"] = "full"
    """Examples per gradient; `full`: all of the client's examples."""
    clip_norm: ClipNorm = None
    """Gradients with a larger norm are scaled to this norm."""
    absent: ClassVar[Mapping[str, str]] = ONE_STEP
    equal_weights: ClassVar[bool] = True
    sensitivity = "its stream 'gradient' has neither clip nor noise"

    def local(self, cohort: Cohort) -> Answer:
        return Answer(gradient=self.target(cohort) - cohort.state.gradient)

    def target(self, cohort: Cohort) -> Tensor:
        """[C, d]: what the clients' states should become; their gradients at the model."""
        return cohort.large_gradients([cohort.models], self.batch_size, self.clip_norm)[0]

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        return (Phase(TRAIN, self.local, self.nominal_gradients, up=(self.gradient.difference(uplink),)),)

    def update(self, received: Received, state: State) -> Tensor | None:
        return -state["estimate"] if self.gradient.name in received.arrived else None

    def nominal_gradients(self, size: int) -> int:
        return batch_examples(size, self.batch_size)


@method("ef21")
class EF21(CompressedGradients):
    """g_i += C(gradient_i - g_i), C contractive; g = mean of all g_i; w -= b g."""

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        state = super().gather(exchange, state, received, context)
        return state | {"estimate": state["gradient"]}


@method("ef21_sgdm")
class EF21SGDM(EF21):
    """v_i = (1 - r) v_i + r gradient_i; g_i += C(v_i - g_i), C contractive; g = mean of all g_i; w -= b g.

    The average removes the noise of small batches, which C would otherwise amplify. A client's first v_i is its gradient.
    """

    batch_size: Count | Literal["full"] = 32
    """Examples per gradient; `full`: all of the client's examples."""
    momentum_rate: Annotated[float, Field(gt=0, le=1)] = 0.1
    """r, the weight of a new gradient in the average (eta in the paper); 1 is EF21."""
    sensitivity = CompressedGradients.sensitivity

    def target(self, cohort: Cohort) -> Tensor:
        return cohort.moving_average("average", super().target(cohort), self.momentum_rate)


@method("diana")
class DIANA(CompressedGradients):
    """m_i = Q(gradient_i - h_i), Q unbiased; h_i += alpha m_i; w -= b (h + mean m); h += alpha sum(m) / N."""

    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """The rate of the shifts h_i; by default 1 / (1 + omega) of the compressor."""
    quantizer: AnyGroupedCompressor | None = None
    """The compressor that defines omega. `resolve` sets it to the uplink's."""

    def shift_rate(self, layout: Layout) -> float:
        """alpha for a model with this layout."""
        if self.alpha is not None:
            return self.alpha
        return 1.0 if self.quantizer is None else 1 / (1 + self.quantizer.omega(layout))

    gradient = SharedState(contractive=False, draw="GRADIENT", rate=shift_rate)

    def resolve(self, uplink: Uplink) -> Self:
        return self.replace(quantizer=uplink.unbiased_compression(self.name))

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        mean = received.mean(self.gradient.name)
        if mean is None:
            return state
        # The estimate uses h from before this round.
        return super().gather(exchange, state, received, context) | {"estimate": state["gradient"] + mean}


@method("vr_diana")
class VRDIANA(DIANA):
    """DIANA on gradients with less variance: g_i = grad(w, batch) - grad(w_i, batch) + mu_i, mu_i the gradient at w_i.

    At first, w_i is the initial model. After a round, with probability p and for all its participants at once, w_i
    becomes the model of the round, and mu_i the client's gradient at w_i over all its data. [V] is Horvath, Kovalev,
    Mishchenko, Stich and Richtarik, "Stochastic distributed learning with gradient quantization and variance reduction"
    (2019), Algorithm 2, variant L-SVRG.

    On failure: a client that has no w_i, because it has lost its state or joined late, uses grad(w, batch) until the next
    renewal.
    """

    batch_size: Count | Literal["full"] = 32
    """Examples per gradient; `full`: all of the client's examples."""
    probability: Annotated[float, Field(ge=0, le=1)] = 0.1
    """p. [V] uses 1 over the number of examples, for batches of one example."""
    sensitivity = CompressedGradients.sensitivity

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        (train,) = super().phases(uplink)
        renewal = Phase(RENEWAL, self._renewal, lambda size: self.nominal_gradients(size) + size, up=train.up)
        return train, renewal, Phase(FIRST_POINT, self._first_point, lambda size: size, up=())

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (first_pass(FIRST_POINT), Exchange()) if context.starts else (Exchange(),)

    def assign(self, exchange: Exchange, context: RoundContext) -> str:
        if exchange.phase == FIRST_POINT:
            return FIRST_POINT
        drawn = context.randomness.numpy(Draw.RENEWAL, context.round).random()
        return RENEWAL if drawn < self.probability else TRAIN

    def target(self, cohort: Cohort) -> Tensor:
        points = [cohort.models, cohort.stacked("point")]
        now, then = cohort.large_gradients(points, self.batch_size, self.clip_norm)
        has_point = now.new_tensor([["point" in state] for state in cohort.states])
        return now - has_point * then + cohort.stacked("point_gradient")

    def _renewal(self, cohort: Cohort) -> Answer:
        answer = self.local(cohort)
        self._keep_point(cohort)
        return answer

    def _first_point(self, cohort: Cohort) -> Answer:
        self._keep_point(cohort)
        return Answer()

    def _keep_point(self, cohort: Cohort) -> None:
        (gradients,) = cohort.large_gradients([cohort.models], "full", self.clip_norm)
        cohort.kept |= {"point": cohort.models.clone(), "point_gradient": gradients}

    def nominal_gradients(self, size: int) -> int:
        return 2 * super().nominal_gradients(size)
