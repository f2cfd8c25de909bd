"""Methods whose clients do more than local SGD. Means are uniform, and K is the same for all clients."""

from __future__ import annotations

import math

import numpy as np

from .compressors import Compress, dense, fixed
from .links import Plain, Uplink
from .optimizers import SGD, Optimizer
from .problem import History, Indices, PerClient, Problem, Vector, mean, snapshot

LargeBatches = list[dict[int, Indices]]
"""large[t][client]: the large batch that this client uses when it needs one in round t."""


def common_steps(problem: Problem, round: int) -> int:
    """K, which must be the same for everybody who takes part."""
    counts = {len(problem.batches[round][client]) for client in problem.participants[round]}
    if len(counts) != 1 or problem.sizes is not None:
        raise ValueError("these methods need one K for all clients and uniform weights")
    return counts.pop()


def gradient_tracking(
    problem: Problem,
    compress: Compress | None = None,
    memory: str | None = None,
    tracker_rate: float = 1.0,
    optimizer: Optimizer | None = None,
) -> History:
    """FedGATE and FedCOMGATE (Haddadpour et al. 2021, Algorithms 3 and 4), update = end - start.

    memory None: q_i = C(u_i). "standard": q_i = C(u_i + e_i), e_i = u_i + e_i - q_i. "global" (their code):
    e_i = u_i + e_i - q with q the mean that came back. Participants: T_i += tracker_rate ((q - q_i) / a) / K.
    """
    compress = compress or fixed(dense)
    optimizer = optimizer or SGD()
    history = History()
    w = problem.initial.copy()
    trackers = {client: np.zeros_like(w) for client in range(problem.clients)}
    memories = {client: np.zeros_like(w) for client in range(problem.clients)}
    for t in range(len(problem.participants)):
        a = problem.rate(t)
        updates: PerClient = {}
        sent: PerClient = {}
        for client in problem.participants[t]:
            W = w.copy()
            for batch in problem.batches[t][client]:
                W = W - a * (problem.short_gradient(client, W, batch) - trackers[client])
            updates[client] = W - w
            sent[client] = compress(t, client, updates[client] + memories[client])
        if sent:
            K = common_steps(problem, t)
            q = mean(problem, sent)
            for client in problem.participants[t]:
                trackers[client] = trackers[client] + tracker_rate * ((q - sent[client]) / a) / K
                if memory == "standard":
                    memories[client] = updates[client] + memories[client] - sent[client]
                if memory == "global":
                    memories[client] = updates[client] + memories[client] - q
            w = optimizer.step(w, q)
        history.models.append(w.copy())
        history.updates.append(updates)
        history.used.append(sent)
        history.trackers.append(snapshot(trackers))
        history.memories.append(snapshot(memories))
    return history


def control_variates(
    problem: Problem,
    full_batches: dict[int, Indices] | None = None,
    uplink: Uplink | None = None,
    compress_difference: Compress | None = None,
    optimizer: Optimizer | None = None,
) -> History:
    """SCAFFOLD, option II (Karimireddy et al. 2020, Algorithm 1).

    c and c_i start at 0, or with full_batches (one for all N clients) at the gradients at w_0. The difference
    of c_i is a state difference: what arrives of it is added on both sides.
    """
    uplink = uplink or Plain()
    compress_difference = compress_difference or fixed(dense)
    optimizer = optimizer or SGD()
    history = History()
    w = problem.initial.copy()
    N = problem.clients
    c_i = {client: np.zeros_like(w) for client in range(N)}
    if full_batches is not None:
        for client in range(N):
            c_i[client] = problem.short_gradient(client, w, full_batches[client])
    c = _mean_of_all(c_i, N)
    for t in range(len(problem.participants)):
        a = problem.rate(t)
        used: PerClient = {}
        updates: PerClient = {}
        differences = np.zeros_like(w)
        for client in problem.participants[t]:
            K = common_steps(problem, t)
            W = w.copy()
            for batch in problem.batches[t][client]:
                W = W - a * (problem.short_gradient(client, W, batch) - c_i[client] + c)
            updates[client] = W - w
            used[client] = uplink.send(t, client, updates[client])
            c_i_new = c_i[client] - c - updates[client] / (K * a)
            difference = compress_difference(t, client, c_i_new - c_i[client])
            c_i[client] = c_i[client] + difference
            differences = differences + difference
        if used:
            w = optimizer.step(w, mean(problem, used))
            c = c + differences / N
        history.models.append(w.copy())
        history.updates.append(updates)
        history.used.append(used)
        history.memories.append(snapshot(uplink.memory))
        history.client_states.append(snapshot(c_i))
        history.server_state.append(c.copy())
    return history


def miner(problem: Problem, round: int, client: int, w: Vector, start_gradient: Vector) -> Vector:
    """FedAMD, Algorithm 1, lines 10 to 17: one batch for both gradients of a step, a new one every step."""
    W_before = w.copy()
    W = w.copy()
    g = start_gradient.copy()
    for batch in problem.batches[round][client]:
        g = g + problem.gradient(client, W, batch) - problem.gradient(client, W_before, batch)
        W_before = W
        W = W - problem.rate(round) * problem.shortened(g)
    return W - w


def anchor_sampling(
    problem: Problem,
    anchors: list[set[int]],
    initial_batches: dict[int, Indices],
    large: LargeBatches,
    server_keeps: str = "mean",
    uplink: Uplink | None = None,
    compress_difference: Compress | None = None,
    optimizer: Optimizer | None = None,
) -> History:
    """FedAMD (Wu et al. 2023, Algorithm 1). anchors[t]: those who are anchors; the other participants mine.

    server_keeps "all": the server has every v_i, replaced by what an anchor sends, and takes their mean at
    the start of each round. "mean": the form for many clients, vbar only, plus the anchors' differences over N.
    A compressor acts on the differences in either form.
    """
    uplink = uplink or Plain()
    optimizer = optimizer or SGD()
    history = History()
    w = problem.initial.copy()
    N = problem.clients
    v = {client: problem.short_gradient(client, w, initial_batches[client]) for client in range(N)}
    v_server = snapshot(v)
    vbar = _mean_of_all(v, N)
    for t in range(len(problem.participants)):
        if server_keeps == "all":
            vbar = _mean_of_all(v_server, N)
        differences = np.zeros_like(w)
        updates: PerClient = {}
        used: PerClient = {}
        for client in problem.participants[t]:
            if client in anchors[t]:
                v_new = problem.short_gradient(client, w, large[t][client])
                difference = v_new - v[client]
                if compress_difference is not None:
                    difference = compress_difference(t, client, difference)
                    v_new = v[client] + difference
                v[client] = v_new
                v_server[client] = v_new.copy()
                differences = differences + difference
            else:
                updates[client] = miner(problem, t, client, w, vbar)
                used[client] = uplink.send(t, client, updates[client])
        if server_keeps == "mean":
            vbar = vbar + differences / N
        if used:
            w = optimizer.step(w, mean(problem, used))
        history.models.append(w.copy())
        history.updates.append(updates)
        history.used.append(used)
        history.memories.append(snapshot(uplink.memory))
        history.client_states.append(snapshot(v))
        history.server_state.append(_mean_of_all(v_server, N) if server_keeps == "all" else vbar.copy())
    return history


def optimal_probability(n: int, c: float = 1.0) -> float:
    """FedAMD, Corollary 4.9: (2/(n+2))^(1/n) / c."""
    return math.pow(2 / (n + 2), 1 / n) / c


def optimal_probability_pl(n: int, mu: float, c: float = 1.0) -> float:
    """FedAMD's probability under the PL condition with constant mu."""
    half = (n + 1) / (2 * mu**2)
    root = math.sqrt(half**2 + n / mu**2)
    return math.pow(1 + half - root, 1 / n) / c


def bvr_l_sgd(problem: Problem, large: LargeBatches, optimizer: Optimizer | None = None) -> History:
    """BVR-L-SGD as FedAMD uses it: large-batch gradients, their mean to everybody, then the miner's steps."""
    optimizer = optimizer or SGD()
    history = History()
    w = problem.initial.copy()
    for t in range(len(problem.participants)):
        gradients = {}
        for client in problem.participants[t]:
            gradients[client] = problem.short_gradient(client, w, large[t][client])
        if gradients:
            g = mean(problem, gradients)
            updates = {}
            for client in problem.participants[t]:
                updates[client] = miner(problem, t, client, w, g)
            w = optimizer.step(w, mean(problem, updates))
            history.server_state.append(g)
        history.models.append(w.copy())
    return history


def fed_page(problem: Problem, coins: list[bool], large: LargeBatches, optimizer: Optimizer | None = None) -> History:
    """FedPAGE (Zhao et al. 2021): a server gradient estimate g, renewed by all N clients if the coin says so.

    Otherwise the participants send grad(w) - grad(w_previous) on one large batch each and g += their mean,
    with w_previous the model that g belongs to: that of the round before, unless nobody answered then. Then they
    take the miner's steps from g. The first round renews. In a round without participants nobody at all answers.
    """
    optimizer = optimizer or SGD()
    history = History()
    w = problem.initial.copy()
    w_previous = None
    g = np.zeros_like(w)
    for t in range(len(problem.participants)):
        if not problem.participants[t]:
            history.models.append(w.copy())
            history.server_state.append(g.copy())
            continue
        if w_previous is None or coins[t]:
            gradients = {}
            for client in range(problem.clients):
                gradients[client] = problem.short_gradient(client, w, large[t][client])
            g = mean(problem, gradients)
        else:
            changes = {}
            for client in problem.participants[t]:
                batch = large[t][client]
                changes[client] = problem.short_gradient(client, w, batch) - problem.short_gradient(
                    client, w_previous, batch
                )
            g = g + mean(problem, changes)
        updates = {}
        for client in problem.participants[t]:
            updates[client] = miner(problem, t, client, w, g)
        w_previous = w.copy()
        w = optimizer.step(w, mean(problem, updates))
        history.models.append(w.copy())
        history.server_state.append(g.copy())
    return history


def minibatch_sgd(problem: Problem, rate: float) -> History:
    """One step a round with the mean gradient at w: over the participants, and over each one's K batches."""
    history = History()
    w = problem.initial.copy()
    for t in range(len(problem.participants)):
        gradients = {}
        for client in problem.participants[t]:
            total = w * 0.0
            for batch in problem.batches[t][client]:
                total = total + problem.short_gradient(client, w, batch)
            gradients[client] = total / len(problem.batches[t][client])
        if gradients:
            w = w - rate * mean(problem, gradients)
        history.models.append(w.copy())
    return history


def ef21(problem: Problem, compress: Compress, full_batches: dict[int, Indices], rate: float) -> History:
    """EF21 with partial participation (Fatkhullin et al. 2021, Algorithm 5): absent clients keep g_i; g_i starts at 0."""
    history = History()
    w = problem.initial.copy()
    N = problem.clients
    g_i = {client: np.zeros_like(w) for client in range(N)}
    for t in range(len(problem.participants)):
        for client in problem.participants[t]:
            c = compress(t, client, problem.short_gradient(client, w, full_batches[client]) - g_i[client])
            g_i[client] = g_i[client] + c
        w = w - rate * _mean_of_all(g_i, N)
        history.models.append(w.copy())
        history.client_states.append(snapshot(g_i))
    return history


def diana(problem: Problem, compress: Compress, full_batches: dict[int, Indices], rate: float, alpha: float) -> History:
    """DIANA (Mishchenko et al. 2019, Algorithm 1); absent clients keep h_i, and h is the mean of all of them."""
    history = History()
    w = problem.initial.copy()
    N = problem.clients
    h_i = {client: np.zeros_like(w) for client in range(N)}
    for t in range(len(problem.participants)):
        h = _mean_of_all(h_i, N)
        messages = {}
        for client in problem.participants[t]:
            m = compress(t, client, problem.short_gradient(client, w, full_batches[client]) - h_i[client])
            messages[client] = m
            h_i[client] = h_i[client] + alpha * m
        w = w - rate * (h + mean(problem, messages))
        history.models.append(w.copy())
        history.client_states.append(snapshot(h_i))
    return history


def marina(
    problem: Problem, compress: Compress, coins: list[bool], full_batches: dict[int, Indices], rate: float
) -> History:
    """PP-MARINA (Gorbunov et al. 2021, Algorithm 4): all clients if the coin says so, compressed differences otherwise.

    In a round without participants nobody at all answers: g stays, and goes on belonging to the model that it belongs to.
    """
    history = History()
    w = problem.initial.copy()
    w_previous = None
    g = np.zeros_like(w)
    for t in range(len(problem.participants)):
        if not problem.participants[t]:
            history.models.append(w.copy())
            history.server_state.append(g.copy())
            continue
        if w_previous is None or coins[t]:
            everybody = {c: problem.short_gradient(c, w, full_batches[c]) for c in range(problem.clients)}
            g = mean(problem, everybody)
        else:
            changes = {}
            for client in problem.participants[t]:
                batch = full_batches[client]
                difference = problem.short_gradient(client, w, batch) - problem.short_gradient(
                    client, w_previous, batch
                )
                changes[client] = compress(t, client, difference)
            g = g + mean(problem, changes)
        w_previous = w.copy()
        w = w - rate * g
        history.models.append(w.copy())
        history.server_state.append(g.copy())
    return history


def _mean_of_all(vectors: PerClient, N: int) -> Vector:
    total = np.zeros_like(vectors[0])
    for client in range(N):
        total = total + vectors[client]
    return total / N
