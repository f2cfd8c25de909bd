"""Minibatch SGD: the baseline for local SGD with the same number of gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from laconic.algorithms.methods.base import LocalMethod, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.part import BOUNDED


@method("minibatch_sgd")
class MinibatchSGD(LocalMethod):
    """One step with the mean gradient at w over the K batches of a round: u = -a mean(g(w, batch))."""

    sensitivity = BOUNDED

    def local(self, cohort: Cohort) -> Tensor:
        total = torch.zeros_like(cohort.models)
        for step in self.steps(cohort):
            total += self.gradients(cohort, cohort.models, step)
        counts = total.new_tensor([[self.step_count(size)] for size in cohort.sizes])
        return -self.rate(cohort.round) * total / counts
