"""Later methods that the library is compared with, each written as its paper writes it, in the paper's own signs.

Each docstring says what the formulas were checked against: the authors' code, other public code, or a paper's text.
"""

from __future__ import annotations

import math

import numpy as np

from .compressors import Compress
from .optimizers import Optimizer
from .problem import History, Indices, PerClient, Problem, Vector, local_update, snapshot


def stc(problem: Problem, up: Compress, down: Compress) -> History:
    """Sparse ternary compression (Sattler et al. 2019, Algorithm 2).

    Checked against the authors' code (github.com/felisat/federated-learning): the same memories on both sides and the same
    compressor, ± the mean of the kept magnitudes. There it acts on each tensor, and clients copy the server's model; the
    download of missed updates is from memory.

    Every client has a model of its own. The server keeps its past compressed updates, and a client that comes back first
    downloads the sum of those that it has missed. dW = R + mean of the messages; dW~ = STC(dW); R = dW - dW~.
    """
    history = History()
    W_server = problem.initial.copy()
    W = {i: problem.initial.copy() for i in range(problem.clients)}
    A: PerClient = {}
    R = np.zeros_like(W_server)
    sent: list[Vector] = []
    seen = dict.fromkeys(range(problem.clients), 0)
    for t in range(len(problem.participants)):
        messages = []
        for i in problem.participants[t]:
            for missed in sent[seen[i] :]:
                W[i] = W[i] + missed
            seen[i] = len(sent)
            dW = A.get(i, np.zeros_like(R)) + local_update(problem, t, i, W[i])
            messages.append(up(t, i, dW))
            A[i] = dW - messages[-1]
        dW = R + np.mean(messages, axis=0)
        sent.append(down(t, -1, dW))
        R = dW - sent[-1]
        W_server = W_server + sent[-1]
        history.models.append(W_server.copy())
        history.memories.append(snapshot(A))
        history.server_memory.append(R.copy())
    return history


def ef21_p(problem: Problem, up: Compress, down: Compress, full: dict[int, Indices], rate: float) -> History:
    """EF21-P (Gruntkowska, Tyurin and Richtarik 2022) with EF21 up.

    Checked against the abstract and other authors' public code of EF21 up with EF21-P down (EF21-MuonSign); the authors' own
    code was not found.

    The server has x; it and the clients have w. g_i += C(grad f_i(w) - g_i); x -= rate mean g_i; w += C'(x - w).
    """
    history = History()
    x = problem.initial.copy()
    w = problem.initial.copy()
    g = {i: np.zeros_like(x) for i in range(problem.clients)}
    for t in range(len(problem.participants)):
        for i in problem.participants[t]:
            g[i] = g[i] + up(t, i, problem.gradient(i, w, full[i]) - g[i])
        x = x - rate * np.mean([g[i] for i in range(problem.clients)], axis=0)
        w = w + down(t, -1, x - w)
        history.models.append(w.copy())
        history.server_state.append(x.copy())
    return history


def ef21_bc(problem: Problem, up: Compress, down: Compress, full: dict[int, Indices], rate: float) -> History:
    """EF21-BC (Fatkhullin et al. 2021, Algorithm 5), checked against the paper's Table 2 and Section 3.

    Also against the authors' code (github.com/IgorSokoloff/ef21_b-w_experiements_source_code: ef21_bc.py, ef21_pp.py), which
    starts g~_i and g with the full gradients.

    g~_i += C_w(grad f_i(x) - g~_i); b = C_M(mean g~_i - g); g += b; x -= rate g. Everybody has g and x. Clients that are
    away keep g~_i, as in the paper's EF21-PP. All start at 0.
    """
    history = History()
    x = problem.initial.copy()
    g = np.zeros_like(x)
    g_tilde = {i: np.zeros_like(x) for i in range(problem.clients)}
    for t in range(len(problem.participants)):
        for i in problem.participants[t]:
            g_tilde[i] = g_tilde[i] + up(t, i, problem.gradient(i, x, full[i]) - g_tilde[i])
        b = down(t, -1, np.mean([g_tilde[i] for i in range(problem.clients)], axis=0) - g)
        g = g + b
        x = x - rate * g
        history.models.append(x.copy())
        history.server_state.append(g.copy())
    return history


def ef21_sgdm(
    problem: Problem, compress: Compress, batches: list[dict[int, Indices]], rate: float, eta: float
) -> History:
    """EF21-SGDM (Fatkhullin, Tyurin and Richtarik 2023, Algorithm 1).

    Checked against Algorithm 2 of Khirirat et al., "Error feedback under (L0, L1)-smoothness", which is this method with a
    step of normalized length.

    v_i = (1 - eta) v_i + eta grad f_i(x, batch); g_i += C(v_i - g_i); x -= rate mean of all g_i. The paper starts both with
    a gradient; here v_i is a client's first gradient, and g_i starts at 0, as in the other oracles of this family.
    """
    history = History()
    x = problem.initial.copy()
    v: PerClient = {}
    g = {i: np.zeros_like(x) for i in range(problem.clients)}
    for t in range(len(problem.participants)):
        for i in problem.participants[t]:
            gradient = problem.gradient(i, x, batches[t][i])
            v[i] = (1 - eta) * v[i] + eta * gradient if i in v else gradient
            g[i] = g[i] + compress(t, i, v[i] - g[i])
        x = x - rate * np.mean([g[i] for i in range(problem.clients)], axis=0)
        history.models.append(x.copy())
        history.client_states.append(snapshot(g))
    return history


def controlled_averaging(
    problem: Problem,
    compress: Compress,
    alpha: float | None = None,
    beta: float | None = None,
    server_rate: float = 1.0,
) -> History:
    """SCALLION (alpha) and SCAFCOM (beta) (Huang, Li and Li, ICLR 2024, Algorithms 2 and 3).

    The server's two lines were checked against other authors' public implementation for Flower: x -= rate (mean delta + c)
    and c += sum delta / N. The clients' lines are from memory; neither the paper's algorithms nor its authors' code were
    found.

    K local steps with g - c_i + c; gbar_i is the mean of the raw gradients along them.
    SCALLION: delta_i = C(alpha (gbar_i - c_i)). SCAFCOM: v_i = (1 - beta) v_i + beta gbar_i, delta_i = C(v_i - c_i), and a
    client's first v_i is its gbar_i. Both: c_i += delta_i; x -= server_rate eta_l K (mean delta + c).
    """
    history = History()
    x = problem.initial.copy()
    N = problem.clients
    c = np.zeros_like(x)
    c_i = {i: np.zeros_like(x) for i in range(N)}
    v: PerClient = {}
    for t in range(len(problem.participants)):
        eta = problem.rate(t)
        deltas = []
        K = 0
        for i in problem.participants[t]:
            y = x.copy()
            raw = []
            for batch in problem.batches[t][i]:
                raw.append(problem.gradient(i, y, batch))
                y = y - eta * (raw[-1] - c_i[i] + c)
            K = len(raw)
            gbar = np.mean(raw, axis=0)
            if alpha is not None:
                delta = compress(t, i, alpha * (gbar - c_i[i]))
            else:
                assert beta is not None
                v[i] = (1 - beta) * v[i] + beta * gbar if i in v else gbar
                delta = compress(t, i, v[i] - c_i[i])
            c_i[i] = c_i[i] + delta
            deltas.append(delta)
        x = x - server_rate * eta * K * (np.mean(deltas, axis=0) + c)
        c = c + np.sum(deltas, axis=0) / N
        history.models.append(x.copy())
        history.client_states.append(snapshot(c_i))
        history.server_state.append(c.copy())
    return history


def scaffnew(problem: Problem, p: float, compress: Compress | None = None) -> History:
    """Scaffnew (Mishchenko et al., ICML 2022, Algorithm 2), iteration by iteration.

    Checked against a public reproduction (github.com/Glebzok/ProxSkip): a geometric number of steps, the same for all.

    x^_i = x_i - gamma (g_i(x_i) - h_i); with probability p x_i = mean of all x^_i, otherwise x_i = x^_i;
    h_i += (p / gamma) (x_i - x^_i). A coin that comes up after K tosses is a round of K batches: the oracle is given the
    rounds. In the paper everybody takes part; here the mean is over the participants, and the others keep h_i.

    With a compressor, x^_i counts as what the server decodes, x + C(x^_i - x), x the last mean. CompressedScaffnew (Condat,
    Agarsky and Richtarik 2022) instead averages entries over those clients that a mask shared by all lets send them.
    """
    history = History()
    gamma = problem.local_rate
    center = problem.initial.copy()
    h = {i: np.zeros_like(center) for i in range(problem.clients)}
    for t in range(len(problem.participants)):
        everybody = problem.participants[t]
        x = {i: center.copy() for i in everybody}
        tosses = {len(problem.batches[t][i]) for i in everybody}
        (K,) = tosses
        for k in range(K):
            heads = k == K - 1
            x_hat = {}
            for i in everybody:
                x_hat[i] = x[i] - gamma * (problem.gradient(i, x[i], problem.batches[t][i][k]) - h[i])
                if heads and compress is not None:
                    x_hat[i] = center + compress(t, i, x_hat[i] - center)
            for i in everybody:
                x[i] = np.mean([x_hat[j] for j in everybody], axis=0) if heads else x_hat[i]
                h[i] = h[i] + (p / gamma) * (x[i] - x_hat[i])
        center = x[everybody[0]]
        history.models.append(center.copy())
        history.trackers.append(snapshot(h))
    return history


def fed_dyn(problem: Problem, alpha: float) -> History:
    """FedDyn (Acar et al., ICLR 2021, Algorithm 1), whose minimization is K steps of SGD.

    Checked against the authors' code (github.com/alpemreacar/FedDyn), which keeps -g_k / alpha and its mean, -h / alpha, and
    divides alpha by the relative size of a client's data.

    A client minimizes f_k(x) - <g_k, x> + alpha/2 |x - theta|^2, which gives theta_k; then g_k -= alpha (theta_k - theta).
    Server, over the m clients: h -= alpha (1/m) sum (theta_k - theta); theta = mean of theta_k - h / alpha.
    """
    history = History()
    theta = problem.initial.copy()
    m = problem.clients
    h = np.zeros_like(theta)
    g = {k: np.zeros_like(theta) for k in range(m)}
    for t in range(len(problem.participants)):
        ends = {}
        for k in problem.participants[t]:
            theta_k = theta.copy()
            for batch in problem.batches[t][k]:
                slope = problem.gradient(k, theta_k, batch) - g[k] + alpha * (theta_k - theta)
                theta_k = theta_k - problem.local_rate * slope
            g[k] = g[k] - alpha * (theta_k - theta)
            ends[k] = theta_k
        total = np.zeros_like(theta)
        for k in problem.participants[t]:
            total = total + (ends[k] - theta)
        h = h - alpha * total / m
        theta = np.mean(list(ends.values()), axis=0) - h / alpha
        history.models.append(theta.copy())
        history.client_states.append(snapshot(g))
        history.server_state.append(h.copy())
    return history


def flasc(problem: Problem, up: Compress, down: Compress, optimizer: Optimizer) -> History:
    """FLASC (Kuo, Raje, Rajesh and Smith 2024, Algorithm 1).

    Checked against the authors' code (github.com/imkevinkuo/flasc). Its server has AdamW, and it evaluates P~.

    Clients download the largest weights P~ = TopK(P), the others being 0, train all of them, and upload TopK(P_i - P~). The
    server adds the mean to P through its optimizer; P itself stays dense.
    """
    history = History()
    P = problem.initial.copy()
    for t in range(len(problem.participants)):
        P_tilde = down(t, -1, P)
        deltas = [up(t, i, local_update(problem, t, i, P_tilde)) for i in problem.participants[t]]
        P = P + optimizer.increment(np.mean(deltas, axis=0))
        history.models.append(P.copy())
    return history


class AdamW:
    """AdamW (Loshchilov and Hutter 2019, Algorithm 2), entry by entry; one for each worker, kept between rounds."""

    def __init__(self, rate: float, decay: float, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> None:
        self.rate, self.decay, self.b1, self.b2, self.eps = rate, decay, b1, b2, eps
        self.t = 0
        self.m: dict[int, float] = {}
        self.v: dict[int, float] = {}

    def step(self, w: Vector, g: Vector) -> Vector:
        self.t += 1
        result = w.copy()
        for j in range(len(w)):
            self.m[j] = self.b1 * self.m.get(j, 0.0) + (1 - self.b1) * g[j]
            self.v[j] = self.b2 * self.v.get(j, 0.0) + (1 - self.b2) * g[j] ** 2
            mhat, vhat = self.m[j] / (1 - self.b1**self.t), self.v[j] / (1 - self.b2**self.t)
            result[j] = w[j] - self.rate * self.decay * w[j] - self.rate * mhat / (math.sqrt(vhat) + self.eps)
        return result


def _inner(problem: Problem, t: int, i: int, theta: Vector, workers: dict[int, AdamW], rate: float) -> Vector:
    worker = workers.setdefault(i, AdamW(rate, 0.1))
    theta_i = theta.copy()
    for batch in problem.batches[t][i]:
        theta_i = worker.step(theta_i, problem.gradient(i, theta_i, batch))
    return theta_i


def diloco(problem: Problem, inner_rate: float, outer_rate: float = 0.7, mu: float = 0.9) -> History:
    """DiLoCo (Douillard et al. 2023, Algorithm 1).

    Checked against Prime Intellect's replication (github.com/PrimeIntellect-ai/diloco_simple): Nesterov of torch.optim.SGD;
    AdamW's state is kept between rounds.

    H steps of AdamW; Delta = mean of theta - theta_i; u = mu u + Delta; theta -= outer_rate (Delta + mu u).
    """
    history = History()
    theta = problem.initial.copy()
    u = np.zeros_like(theta)
    workers: dict[int, AdamW] = {}
    for t in range(len(problem.participants)):
        ends = [_inner(problem, t, i, theta, workers, inner_rate) for i in problem.participants[t]]
        delta = np.mean([theta - end for end in ends], axis=0)
        u = mu * u + delta
        theta = theta - outer_rate * (delta + mu * u)
        history.models.append(theta.copy())
    return history


def sparse_loco(
    problem: Problem, compress: Compress, inner_rate: float, beta: float, outer_rate: float = 1.0
) -> History:
    """SparseLoCo (Sarfi et al. 2025, Algorithm 1), checked against a public summary of its equations.

    Its predecessor's code (github.com/tplr-y/CCLoco) has the same memory, but averages an entry over those workers that have
    sent it; the equations divide by the number of all workers.

    Delta_r = theta - theta_r after H steps of AdamW; e_r = beta e_r + Delta_r; send Q(TopK(e_r)); e_r -= what was sent;
    theta -= outer_rate mean of what was sent.
    """
    history = History()
    theta = problem.initial.copy()
    workers: dict[int, AdamW] = {}
    e: PerClient = {}
    for t in range(len(problem.participants)):
        sent = []
        for r in problem.participants[t]:
            delta = theta - _inner(problem, t, r, theta, workers, inner_rate)
            e[r] = beta * e.get(r, np.zeros_like(theta)) + delta
            sent.append(compress(t, r, e[r]))
            e[r] = e[r] - sent[-1]
        theta = theta - outer_rate * np.mean(sent, axis=0)
        history.models.append(theta.copy())
        history.memories.append(snapshot(e))
    return history
