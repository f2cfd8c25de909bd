"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, ICML 2020, Algorithm 1, option II)."""

from __future__ import annotations

from typing import ClassVar

import torch

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import TRAIN, UPDATE, Answer, Exchange, Phase
from laconic.algorithms.methods.shared_state import SharedState, first_pass
from laconic.algorithms.uplinks.base import Uplink
from laconic.compression import AnyGroupedCompressor
from laconic.core.part import State

FIRST = "first gradient"


@method("control_variates")
class ControlVariates(LocalMethod):
    """K times W -= a (g(W, batch) - c_i + c); c_i_new = c_i - c - u_i / (K a); the server: c += sum(c_i_new - c_i) / N.

    On failure: a lost difference changes neither c nor c_i. A client that loses its state restarts with c_i = 0; its earlier
    c_i remains in c.
    """

    control = SharedState(down=True, draw="CONTROL")
    warm_start: bool = False
    """c_i starts at the client's full gradient at w_0 instead of 0."""
    mean_compressor: AnyGroupedCompressor | None = None
    """Compresses c for clients; dense by default. Without memory it should be unbiased, such as qsgd:8@layer."""
    equal_clients: ClassVar[bool] = True
    sensitivity = "its stream 'control' has neither clip nor noise"

    def local(self, cohort: Cohort) -> Answer:
        rate, mean = self.rate(cohort.round), cohort.received.control
        correction = mean - cohort.state.control
        models = cohort.start()
        for step in self.steps(cohort):
            models.sub_(self.gradients(cohort, models, step).add_(correction), alpha=rate)
        updates = models.sub_(cohort.models)
        if rate == 0:  # at the end of a schedule: such steps contain no information about the gradients
            return Answer(updates, control=torch.zeros_like(updates))
        return Answer(updates, control=-mean - updates / (self.step_count(cohort.sizes[0]) * rate))

    def _first_gradient(self, cohort: Cohort) -> Answer:
        gradients = cohort.large_gradients([cohort.models], clip_norm=self.clip_norm)[0]
        return Answer(control=gradients - cohort.state.control)

    def phases(self, uplink: Uplink) -> tuple[Phase, ...]:
        up, down = (UPDATE, self.control.difference(uplink)), (self.control.mean(self.mean_compressor),)
        train = Phase(TRAIN, self.local, self.nominal_gradients, up, down)
        return (train, Phase(FIRST, self._first_gradient, self.nominal_gradients, up=(self.control.exact(),)))

    def exchanges(self, context: RoundContext, state: State) -> tuple[Exchange, ...]:
        return (first_pass(FIRST), Exchange()) if self.warm_start and context.starts else (Exchange(),)
