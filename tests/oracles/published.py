"""BVR-L-SGD and FedPAGE as their own papers, and the costs in FedAMD's Table 2, have them (readings 1.5 and 1.6)."""

from __future__ import annotations

import numpy as np

from .methods import LargeBatches, miner
from .optimizers import SGD
from .problem import History, Indices, Problem, Vector, mean

SmallBatches = list[dict[int, list[Indices]]]


def bvr_l_sgd_with_refreshes(
    problem: Problem, large: LargeBatches, small: SmallBatches, period: int, trainers: list[int] | None
) -> History:
    """BVR-L-SGD (Murata and Suzuki 2021, Algorithms 1 and 2) on sampled clients.

    Rounds t with t mod period = 0: g = mean of large-batch gradients at w. Otherwise g += mean of (1 / K) sum over K batches
    of grad(w) - grad(w_previous). Then trainers[t], or with None everybody, takes the recursive local steps.
    """
    history = History()
    w = problem.initial.copy()
    w_previous = w
    g = np.zeros_like(w)
    for t in range(len(problem.participants)):
        vectors = {}
        for client in problem.participants[t]:
            if t % period == 0:
                vectors[client] = problem.gradient(client, w, large[t][client])
            else:
                total = np.zeros_like(w)
                for batch in small[t][client]:
                    total = total + problem.gradient(client, w, batch) - problem.gradient(client, w_previous, batch)
                vectors[client] = total / len(small[t][client])
        g = mean(problem, vectors) if t % period == 0 else g + mean(problem, vectors)
        chosen = problem.participants[t] if trainers is None else [trainers[t]]
        updates = {client: miner(problem, t, client, w, g) for client in chosen}
        w_previous = w.copy()
        w = w + mean(problem, updates)
        history.models.append(w.copy())
        history.server_state.append(g.copy())
    return history


def fed_page_in_one_exchange(problem: Problem, coins: list[bool], large: LargeBatches, server_rate: float) -> History:
    """FedPAGE (Zhao, Li and Richtarik 2021), with a first step on the large batch and K on small ones.

    Renewal: g = mean of all clients' large-batch gradients. Otherwise each participant has g_i = g_previous + grad(w) -
    grad(w_previous), large batch; x_1 = x_0 - a g_i; then K PAGE steps; Delta_i = (x_0 - x_{K+1}) / (a (K + 1)); g = mean of
    Delta_i. In both cases w -= server_rate g.
    """
    history = History()
    optimizer = SGD(server_rate)
    w = problem.initial.copy()
    w_previous: Vector | None = None
    g = np.zeros_like(w)
    for t in range(len(problem.participants)):
        rate = problem.rate(t)
        if w_previous is None or coins[t]:
            g = mean(problem, {c: problem.gradient(c, w, large[t][c]) for c in range(problem.clients)})
        else:
            directions = {}
            for client in problem.participants[t]:
                batch = large[t][client]
                g_i = g + problem.gradient(client, w, batch) - problem.gradient(client, w_previous, batch)
                before, x = w, w - rate * g_i
                for small in problem.batches[t][client]:
                    g_i = g_i + problem.gradient(client, x, small) - problem.gradient(client, before, small)
                    before, x = x, x - rate * g_i
                directions[client] = (w - x) / (rate * (len(problem.batches[t][client]) + 1))
            g = mean(problem, directions)
        w_previous = w.copy()
        w = optimizer.step(w, -g)
        history.models.append(w.copy())
        history.server_state.append(g.copy())
    return history
