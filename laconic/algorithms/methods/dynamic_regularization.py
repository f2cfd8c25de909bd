"""FedDyn (Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, ICLR 2021, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from laconic.algorithms.context import RoundContext
from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.exchange import MODEL, Exchange
from laconic.algorithms.methods.received import Received
from laconic.compression import Payload
from laconic.core.part import State
from laconic.core.schedules import LARGEST


@method("fed_dyn")
class FedDyn(LocalMethod):
    """K times W -= a (g(W, batch) - h_i + alpha (W - w)); h_i -= alpha u_i; w += b (mean u_i - h / alpha).

    u_i is the client's update as the server decodes it. The server keeps h, the mean of all h_i: h -= alpha sum(u_i) / N.
    At a fixed point h_i is the client's gradient, so that local and global optima agree.

    On failure: a lost update changes neither h_i nor h. A client that loses its state restarts with h_i = 0.
    """

    alpha: Annotated[float, Field(gt=0, le=LARGEST)] = 0.1
    """The weight of the regularizer."""
    equal_weights: ClassVar[bool] = True
    exact_sums: ClassVar[str | None] = "its h is the mean of the clients' h_i only if the sum of updates is exact"
    sensitivity = "its server adds up all updates of all rounds, and with them their noise"

    def local(self, cohort: Cohort) -> Tensor:
        rate, duals = self.rate(cohort.round), cohort.stacked("dual")
        models = cohort.start()
        for step in self.steps(cohort):
            gradients = self.gradients(cohort, models, step)
            # A client that has finished must not move.
            pull = torch.sub(self.alpha * (models - cohort.models), duals) * step.working(models)
            models.sub_(gradients.add_(pull), alpha=rate)
        return models.sub_(cohort.models)

    def remember(self, cohort: Cohort, row: int, decoded: Mapping[str, Payload]) -> State:
        """h_i -= alpha u_i."""
        state = cohort.states[row]
        dual = state["dual"].clone() if "dual" in state else cohort.zeros()
        decoded[MODEL].add_to(dual, -self.alpha)
        return state | {"dual": dual}

    def init(self, model: Tensor) -> State:
        return {"dual": torch.zeros_like(model)}

    def gather(self, exchange: Exchange, state: State, received: Received, context: RoundContext) -> State:
        return {"dual": state["dual"] - self.alpha * received.sum(MODEL) / context.population}

    def update(self, received: Received, state: State) -> Tensor | None:
        mean = received.mean(MODEL)
        return None if mean is None else mean - state["dual"] / self.alpha
