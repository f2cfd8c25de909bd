"""The whole training loop of every algorithm that is local SGD plus links plus a server optimizer."""

from __future__ import annotations

import numpy as np

from .compressors import Compress
from .links import (
    LAG,
    Accelerated,
    Broadcast,
    Downlink,
    ErrorFeedback,
    Lazy,
    Mirrored,
    Plain,
    Shifted,
    Threshold,
    Uplink,
)
from .optimizers import AMS, SGD, FedEFAMSGrad, Optimizer
from .problem import History, Problem, Vector, local_update, mean, snapshot


def train(problem: Problem, uplink: Uplink, optimizer: Optimizer, downlink: Downlink | None = None) -> History:
    """Down, K local steps, up, mean, optimizer step, every round; a round without replies changes nothing."""
    downlink = downlink or Downlink()
    history = History()
    w = problem.initial.copy()
    for t in range(len(problem.participants)):
        updates = {}
        used = {}
        for client in problem.participants[t]:
            start = downlink.start(t, client, w)
            updates[client] = local_update(problem, t, client, start)
            used[client] = uplink.send(t, client, updates[client])
        if used:
            step = optimizer.increment(mean(problem, used))
            w = w + downlink.advance(t, step)
        history.models.append(w.copy())
        history.updates.append(updates)
        history.used.append(used)
        history.memories.append(snapshot(uplink.memory))
        history.references.append(snapshot(uplink.reference))
        history.skips.append([client for round, client in uplink.fired if round == t])
        history.mirrors.append(snapshot(downlink.mirrors))
        if downlink.phi is not None:
            history.server_memory.append(downlink.phi.copy())
    return history


def fed_cams(problem: Problem, compress: Compress, optimizer: Optimizer | None = None) -> History:
    """FedCAMS (Wang et al. 2022, Algorithm 2)."""
    return train(problem, ErrorFeedback(compress), optimizer or AMS())


def fed_ef_sgd(
    problem: Problem,
    compress: Compress,
    server_rate: float = 1.0,
    restart_after: int | None = None,
    restart_from: int = 0,
    broadcast: Compress | None = None,
) -> History:
    """Fed-EF-SGD (Li and Li 2023, Algorithm 1); with `broadcast` the two-way form (Algorithm 3)."""
    uplink = ErrorFeedback(compress, restart_after, restart_from)
    return train(problem, uplink, SGD(server_rate), Broadcast(broadcast) if broadcast else None)


def fed_ef_ams(
    problem: Problem,
    compress: Compress,
    server_rate: float = 0.03,
    restart_after: int | None = None,
    restart_from: int = 0,
    broadcast: Compress | None = None,
) -> History:
    """Fed-EF-AMS (Li and Li 2023, Algorithm 1); with `broadcast` the two-way form (Algorithm 3)."""
    uplink = ErrorFeedback(compress, restart_after, restart_from)
    return train(problem, uplink, FedEFAMSGrad(server_rate), Broadcast(broadcast) if broadcast else None)


def qsparse_local_sgd(problem: Problem, compress: Compress) -> History:
    """Qsparse-local-SGD (Basu, Data, Karakus and Diggavi 2019, Algorithm 1, synchronous), in its own signs.

    x is the master's model, x_hat[r] a worker's, m[r] its memory; the workers of a round are its participants. A round is
    the time between two synchronization indices of I_T; a worker that is away keeps its memory.
    """
    history = History()
    x = problem.initial.copy()
    m: dict[int, Vector] = {}
    for t in range(len(problem.participants)):
        workers = problem.participants[t]
        g = {}
        for r in workers:
            x_hat = x.copy()
            for batch in problem.batches[t][r]:
                x_hat = x_hat - problem.local_rate * problem.gradient(r, x_hat, batch)
            before = m.get(r, np.zeros_like(x))
            g[r] = compress(t, r, before + x - x_hat)
            m[r] = before + x - x_hat - g[r]
        total = np.zeros_like(x)
        for r in workers:
            total = total + g[r]
        x = x - total / len(workers)
        history.models.append(x.copy())
        history.memories.append(snapshot(m))
    return history


def fed_com(
    problem: Problem, compress: Compress, optimizer: Optimizer | None = None, down_compress: Compress | None = None
) -> History:
    """FedCOM (Haddadpour et al. 2021, Algorithm 1); with rate 1 it is FedPAQ. With mirrors and short steps: fed_laconic."""
    downlink = None if down_compress is None else Mirrored(problem.initial, down_compress)
    return train(problem, Plain(compress), optimizer or SGD(), downlink)


def fed_com_shifted(problem: Problem, compress: Compress, rate: float) -> History:
    """FedCOM with a shift per client on both sides."""
    return train(problem, Shifted(compress, rate), SGD())


def fed_nlaa(problem: Problem, threshold: Threshold, optimizer: Optimizer | None = None) -> History:
    """FedNLAA (FedBNLACA's paper, Algorithm 1 with NLA)."""
    return train(problem, Lazy(Plain(), threshold), optimizer or AMS())


def fed_aa(problem: Problem, threshold: Threshold, optimizer: Optimizer | None = None) -> History:
    """FedAA (FedBNLACA's paper, Algorithm 1 with AA)."""
    return train(problem, Accelerated(Plain(), threshold), optimizer or AMS())


def fed_nlaca(
    problem: Problem,
    compress: Compress,
    threshold: Threshold,
    optimizer: Optimizer | None = None,
    feedback: str = "used",
    restart_after: int | None = None,
    restart_from: int = 0,
) -> History:
    """FedNLACA (FedBNLACA's paper, Algorithm 3 with NLA); a restart forgets the memory, never the reference."""
    inner = ErrorFeedback(compress, restart_after, restart_from)
    return train(problem, Lazy(inner, threshold, feedback), optimizer or AMS())


def lag(
    problem: Problem, alpha: float, window: int, xi: float | list[float], smoothness: float | None = None
) -> History:
    """Local SGD with the rule of LAG (FedBNLACA's paper, equations (1) and (2)), everybody in every round, server SGD."""
    models: list[Vector] = []

    class Watched(Downlink):
        def start(self, round: int, client: int, w: Vector) -> Vector:
            if len(models) == round:
                models.append(w.copy())
            return w

    return train(problem, LAG(models, problem.clients, alpha, window, xi, smoothness), SGD(), Watched())


def fed_aca(
    problem: Problem,
    compress: Compress,
    threshold: Threshold,
    optimizer: Optimizer | None = None,
    feedback: str = "sent",
    restart_after: int | None = None,
    restart_from: int = 0,
) -> History:
    """FedACA (FedBNLACA's paper, Algorithm 3 with AA); a restart forgets the memory, never the reference."""
    inner = ErrorFeedback(compress, restart_after, restart_from)
    return train(problem, Accelerated(inner, threshold, feedback), optimizer or AMS())


def fed_bnlaca(
    problem: Problem,
    compress: Compress,
    threshold: Threshold,
    down_compress: Compress,
    down_threshold: Threshold | None = None,
    optimizer: Optimizer | None = None,
    literal: bool = False,
    zero: bool = False,
) -> History:
    """FedBNLACA (Algorithm 2 with NLA): lazy both ways; with `zero`, theta_0 = 0 as in the input of Algorithm 2."""
    first = np.zeros_like(problem.initial) if zero else problem.initial
    downlink = Mirrored(first, down_compress, down_threshold, literal)
    return train(problem, Lazy(ErrorFeedback(compress), threshold), optimizer or AMS(), downlink)


def fed_baca(
    problem: Problem,
    compress: Compress,
    threshold: Threshold,
    down_compress: Compress,
    optimizer: Optimizer | None = None,
    feedback: str = "sent",
    literal: bool = False,
    down_threshold: Threshold | None = None,
) -> History:
    """FedBACA (Algorithm 2 with AA); with `down_threshold` also on the downlink (Example 6)."""
    downlink = Mirrored(problem.initial, down_compress, down_threshold, literal, accelerated=True)
    uplink = Accelerated(ErrorFeedback(compress), threshold, feedback)
    return train(problem, uplink, optimizer or AMS(), downlink)
