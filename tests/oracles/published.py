"""Forms beside the default ones: BVR-L-SGD and FedPAGE (readings 1.5 and 1.6), FedCOMGATE's B.2, and VR-DIANA."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .compressors import Compress
from .methods import LargeBatches, miner
from .optimizers import SGD
from .problem import History, Indices, Problem, Vector, mean, snapshot

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


def fed_comgate_with_quantized_mean(
    problem: Problem, compress: Compress, quantize: Callable[[int, Vector], Vector], server_rate: float
) -> History:
    """FedCOMGATE (Haddadpour et al. 2021, Algorithm 4) whose server quantizes Delta_q before it broadcasts it (B.2).

    In the paper's signs: Delta_j = Q((w - w_j) / eta); Delta = Q(mean of Delta_j); delta_j += (Delta_j - Delta) / tau;
    w -= eta gamma Delta. Q does not depend on the scale of its input.
    """
    history = History()
    w = problem.initial.copy()
    delta = {j: np.zeros_like(w) for j in range(problem.clients)}
    eta = problem.local_rate
    for r in range(len(problem.participants)):
        sent = {}
        for j in problem.participants[r]:
            w_j = w.copy()
            for batch in problem.batches[r][j]:
                w_j = w_j - eta * (problem.gradient(j, w_j, batch) - delta[j])
            sent[j] = -compress(r, j, w_j - w) / eta
        Delta = -quantize(r, -eta * mean(problem, sent)) / eta
        for j in problem.participants[r]:
            delta[j] = delta[j] + (sent[j] - Delta) / len(problem.batches[r][j])
        w = w - eta * server_rate * Delta
        history.models.append(w.copy())
        history.trackers.append(snapshot(delta))
    return history


def fed_comgate_with_printed_memory(problem: Problem, compress: Compress, tracker_rate: float) -> History:
    """FedCOMGATE with sparsification as B.2 prints it, equations (8) and (9), in the paper's signs.

    Delta_j = top_k((w - w_j) + nu_j); nu_j += (1 / m) (w - w_j) - Delta, with m the number of all clients.
    """
    history = History()
    w = problem.initial.copy()
    m = problem.clients
    delta = {j: np.zeros_like(w) for j in range(m)}
    nu = {j: np.zeros_like(w) for j in range(m)}
    eta = problem.local_rate
    for r in range(len(problem.participants)):
        moved, sent = {}, {}
        for j in problem.participants[r]:
            w_j = w.copy()
            for batch in problem.batches[r][j]:
                w_j = w_j - eta * (problem.gradient(j, w_j, batch) - delta[j])
            moved[j] = w - w_j
            sent[j] = compress(r, j, moved[j] + nu[j])
        Delta = mean(problem, sent)
        for j in problem.participants[r]:
            tau = len(problem.batches[r][j])
            delta[j] = delta[j] + tracker_rate * (sent[j] - Delta) / (eta * tau)
            nu[j] = nu[j] + moved[j] / m - Delta
        w = w - Delta
        history.models.append(w.copy())
        history.memories.append(snapshot(nu))
    return history


def vr_diana(
    problem: Problem,
    compress: Compress,
    batches: LargeBatches,
    full: dict[int, Indices],
    coins: list[bool],
    rate: float,
    alpha: float,
) -> History:
    """VR-DIANA (Horvath et al. 2019, Algorithm 2, variant L-SVRG); absent clients keep h_i and w_i."""
    history = History()
    x = problem.initial.copy()
    N = problem.clients
    h = {i: np.zeros_like(x) for i in range(N)}
    w = {i: x.copy() for i in range(N)}
    mu = {i: problem.gradient(i, x, full[i]) for i in range(N)}
    for k in range(len(problem.participants)):
        mean_shift = np.zeros_like(x)
        for i in range(N):
            mean_shift = mean_shift + h[i] / N
        messages = {}
        for i in problem.participants[k]:
            batch = batches[k][i]
            g = problem.gradient(i, x, batch) - problem.gradient(i, w[i], batch) + mu[i]
            messages[i] = compress(k, i, g - h[i])
            h[i] = h[i] + alpha * messages[i]
            if coins[k]:
                w[i] = x.copy()
                mu[i] = problem.gradient(i, x, full[i])
        x = x - rate * (mean_shift + mean(problem, messages))
        history.models.append(x.copy())
        history.client_states.append(snapshot(h))
    return history
