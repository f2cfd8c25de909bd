"""The local steps of FedAMD, BVR-L-SGD and FedPAGE: a gradient estimate that differences on one batch carry along."""

from __future__ import annotations

from torch import Tensor

from laconic.algorithms.methods.base import LocalMethod
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.schedules import clipped


def recursive_steps(method: LocalMethod, cohort: Cohort, start: Tensor) -> Tensor:
    """K times g += grad(W, batch) - grad(W_before, batch); W_before <- W; W -= a g. Returns W - w.

    FedAMD, Algorithm 1, lines 10 to 17: one batch for both gradients, a new one every step; the first step uses `start`
    as it is, since W = W_before there.
    """
    rate = method.rate(cohort.round)
    models, before, gradient = cohort.models.clone(), cohort.models, start.clone()
    for step in method.steps(cohort):
        # The old point first: batch norm must end with the statistics of the new one.
        old = cohort.gradients(before, step)
        gradient.add_(cohort.gradients(models, step).sub_(old))
        before = models
        models = models - rate * clipped(gradient.clone(), method.clip_norm) * step.working(models)
    return models - cohort.models
