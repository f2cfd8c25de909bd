"""Local SGD, as in FedAvg (McMahan et al., 2017, Algorithm 1), optionally with the proximal term of FedProx."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor

from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.part import BOUNDED
from laconic.core.schedules import LARGEST


@method("local_sgd")
class LocalSGD(LocalMethod):
    """W <- w; then K times W -= a (g(W, batch) + mu (W - w)), with mu > 0 for FedProx (Li et al., 2020)."""

    proximal: Annotated[float, Field(ge=0, le=LARGEST)] = 0.0
    """mu, the weight of the proximal term, which pulls a client toward the server's model."""
    sensitivity = BOUNDED

    def local(self, cohort: Cohort) -> Tensor:
        rate = self.rate(cohort.round)
        models = cohort.models.clone()
        for step in self.steps(cohort):
            if not self.proximal and self.clip_norm is None:
                cohort.descend(models, step, rate)
                continue
            gradients = self.gradients(cohort, models, step)
            if self.proximal:
                # A client that has finished must not move.
                drift = (models - cohort.models) * step.working(models)
                gradients.add_(drift, alpha=self.proximal)
            models.sub_(gradients, alpha=rate)
        return models.sub_(cohort.models)
