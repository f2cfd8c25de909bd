"""Methods that send gradients, compressed against a state that both sides keep, and take no local steps.

EF21 is Richtarik, Sokolov and Fatkhullin (2021), with few participants as in Fatkhullin et al. (2021), Algorithm 5; DIANA
is Mishchenko, Gorbunov, Takac and Richtarik (2019), with few participants as in COFIG (Zhao et al., 2021). Minibatch SGD is
what both become without compression.
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
from laconic.algorithms.methods.differences import add_difference, difference_compressor, unbiased_compressor
from laconic.algorithms.methods.exchange import Exchange
from laconic.algorithms.methods.received import Received
from laconic.algorithms.methods.recursion import large_batch
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor, GroupedCompressor, Payload
from laconic.compression.packet import Stream
from laconic.core.layout import Layout
from laconic.core.part import State, checked, part


@part("method", "minibatch_sgd")
class MinibatchSGD(LocalMethod):
    """One step with the mean gradient at w over the K batches of a round: u = -a mean(g(w, batch))."""

    def local(self, cohort: Cohort) -> Tensor:
        """The step that all K batches agree on."""
        total = torch.zeros_like(cohort.models)
        for step in self.steps(cohort):
            total += self.gradients(cohort, cohort.models, step)
        counts = total.new_tensor([[self.step_count(size)] for size in cohort.sizes])
        return -self.rate(cohort.round) * total / counts


@checked
class CompressedGradients(Method):
    """A client sends C(gradient - state); the server moves the model by minus its estimate of the mean gradient."""

    batch_size: Count | Literal["full"] = "full"
    clip_norm: ClipNorm = None
    """Gradients that are longer are brought to this length."""
    absent: ClassVar[Mapping[str, str]] = ONE_STEP
    equal_weights: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "what clients change in their own state must be added as it is, undefended"
    plain_uplink: ClassVar[str | None] = "clients send differences to a state that both sides keep, which is its memory"

    def answer(self, cohort: Cohort) -> Vectors:
        """The gradient at w, less what the server has of it."""
        fresh = cohort.large_gradients([cohort.models], large_batch(self.batch_size), self.clip_norm)[0]
        return {Stream.GRADIENT: fresh - cohort.stacked("gradient")}

    def init(self, model: Tensor) -> State:
        """The mean of the clients' states, and the estimate made with it."""
        return {"gradient": torch.zeros_like(model), "estimate": torch.zeros_like(model)}

    def streams(self, phase: str) -> tuple[Stream, ...]:
        """Gradients only."""
        return (Stream.GRADIENT,)

    def update(self, received: Received, state: State) -> Tensor | None:
        """Minus the estimate."""
        return -state["estimate"] if Stream.GRADIENT in received.heard else None

    def nominal_gradients(self, size: int, phase: str) -> int:
        """The examples of the batch."""
        return size if self.batch_size == "full" else min(size, self.batch_size)


@part("method", "ef21")
class EF21(CompressedGradients):
    """g_i += C(gradient_i - g_i), C contractive; g = mean of all g_i; w -= b g."""

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """g_i, moved by what arrived."""
        return add_difference(cohort, row, "gradient", used[Stream.GRADIENT])

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """The uplink's, in its contractive form."""
        return difference_compressor(uplink)

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """g += sum / N."""
        mean = state["gradient"] + received.take(Stream.GRADIENT) / context.population
        return {"gradient": mean, "estimate": mean}


@part("method", "diana")
class DIANA(CompressedGradients):
    """m_i = Q(gradient_i - h_i), Q unbiased; h_i += alpha m_i; w -= b (h + mean m); h += alpha sum(m) / N."""

    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """The rate of the shifts h_i; 1 / (1 + omega) of the compressor when not given."""
    quantizer: AnyGroupedCompressor | None = None
    """Whose omega that is: always the uplink's compressor, which takes this place before a run."""

    def fitted(self, uplink: Uplink) -> Self:
        """With the compressor that the rate of the shifts follows from."""
        return self.replace(quantizer=unbiased_compressor(self, uplink))

    def shift_rate(self, layout: Layout) -> float:
        """The rate alpha for a model of that layout."""
        if self.alpha is not None:
            return self.alpha
        return 1.0 if self.quantizer is None else 1 / (1 + self.quantizer.omega(layout))

    def remember(self, cohort: Cohort, row: int, used: Mapping[Stream, Payload]) -> State:
        """h_i, moved by a part of what arrived."""
        return add_difference(cohort, row, "gradient", used[Stream.GRADIENT], self.shift_rate(cohort.layout))

    def compressor(self, phase: str, uplink: Uplink) -> GroupedCompressor | None:
        """The uplink's, as it is."""
        return uplink.compression

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        """The estimate is made with h as it was."""
        mean = received.mean(Stream.GRADIENT)
        if mean is None:
            return state
        shift = state["gradient"]
        moved = shift + self.shift_rate(context.layout) * received.take(Stream.GRADIENT) / context.population
        return {"gradient": moved, "estimate": shift + mean}
