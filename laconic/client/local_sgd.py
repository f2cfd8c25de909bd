"""Local SGD: the client's work in FedAvg (McMahan et al., 2017, Algorithm 1) and in most methods built on it."""

from __future__ import annotations

from torch import Tensor

from laconic.client.cohort import Cohort
from laconic.client.method import LocalMethod
from laconic.parts import part


@part("method", "local_sgd")
class LocalSGD(LocalMethod):
    """W <- w; then K times W -= a g(W, batch)."""

    def local(self, cohort: Cohort) -> Tensor:
        """The updates W - w."""
        models = cohort.models.clone()
        for step in self.steps(cohort):
            models.sub_(cohort.gradients(models, step), alpha=self.local_lr)
        return models.sub_(cohort.models)
