"""Dense FedAvg-type training: fed_avg, fed_sgd, fed_adagrad, fed_adam, fed_yogi, fed_amsgrad, fed_ams."""

from __future__ import annotations

from .optimizers import Optimizer
from .problem import History, Problem, local_update, mean


def local_sgd(problem: Problem, optimizer: Optimizer) -> History:
    """Every participant trains K steps from w; the optimizer takes the mean of their updates."""
    history = History()
    w = problem.initial.copy()
    for t in range(len(problem.participants)):
        updates = {}
        for client in problem.participants[t]:
            updates[client] = local_update(problem, t, client, w)
        if updates:
            w = optimizer.step(w, mean(problem, updates))
        history.models.append(w.copy())
        history.updates.append(updates)
    return history
