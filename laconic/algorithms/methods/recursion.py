"""The local steps of FedAMD, BVR-L-SGD and FedPAGE: a recursive, variance-reduced gradient estimate."""

from __future__ import annotations

from torch import Tensor

from laconic.algorithms.methods.base import LocalMethod
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.schedules import clipped


def recursive_steps(method: LocalMethod, cohort: Cohort, start: Tensor) -> Tensor:
    """K times g += grad(W, batch) - grad(W_before, batch); W_before <- W; W -= a g. Returns W - w.

    FedAMD, Algorithm 1, lines 10 to 17. Both gradients of a step use the same batch. In the first step W = W_before, so
    g = `start`.
    """
    rate = method.rate(cohort.round)
    models, before, gradient = cohort.models.clone(), cohort.models, start.clone()
    for step in method.steps(cohort):
        # The previous point first: batch norm must keep the statistics of the current one.
        previous = cohort.gradients(before, step)
        gradient.add_(cohort.gradients(models, step).sub_(previous))
        before = models
        models = models - rate * clipped(gradient.clone(), method.clip_norm) * step.working(models)
    return models - cohort.models
