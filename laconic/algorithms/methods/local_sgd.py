"""Local SGD: the client's work in FedAvg (McMahan et al., 2017, Algorithm 1) and in most methods built on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.schedules import LARGEST


@method("local_sgd")
class LocalSGD(LocalMethod):
    """W <- w; then K times W -= a (g(W, batch) + mu (W - w)), with mu = 0 unless it is FedProx (Li et al., 2020)."""

    proximal: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """mu: how strongly a client is pulled to the model it was sent."""

    def local(self, cohort: Cohort) -> Tensor:
        rate = self.rate(cohort.round)
        models = cohort.models.clone()
        for step in self.steps(cohort):
            if not self.proximal and self.clip_norm is None:
                cohort.descend(models, step, rate)
                continue
            gradients = self.gradients(cohort, models, step)
            if self.proximal:
                # A client that has finished has a zero gradient, and must not be pulled either.
                away = (models - cohort.models) * step.working(models)
                gradients.add_(away, alpha=self.proximal)
            models.sub_(gradients, alpha=rate)
        return models.sub_(cohort.models)
