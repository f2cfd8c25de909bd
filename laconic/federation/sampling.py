"""Sampling of a round's participants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laconic.core.randomness import Draw, Randomness
from laconic.federation.settings import AnySampling


def of_attempt(purpose: str, attempt: int) -> str:
    """The name of a round's draw. A round that is repeated is drawn again: every attempt but the first has its own name.

    >>> of_attempt("participants", 0), of_attempt("participants", 2)
    ('participants', 'participants/attempt 2')
    """
    return f"{purpose}/attempt {attempt}" if attempt else purpose


def limited(sizes: np.ndarray, limit: float | None) -> np.ndarray:
    """The clients' sizes as weights, each at most `limit` times their median, so that no client decides alone.

    >>> limited(np.array([10, 20, 2**52]), 5).tolist()
    [10.0, 20.0, 100.0]
    """
    weights = np.asarray(sizes, dtype=np.float64)
    return weights if limit is None or not len(weights) else np.minimum(weights, limit * np.median(weights))


def participants(
    kind: AnySampling,
    clients: int,
    count: int,
    round: int,
    randomness: Randomness,
    sizes: Callable[[], np.ndarray],
    attempt: int = 0,
) -> list[int]:
    """Sample `count` distinct clients, in ascending order (the order in which updates are summed).

    - uniform: every subset is equally likely. The cost depends on `count` only.
    - weighted: drawn one after the other, with probability proportional to the number of examples.
    - poisson: each client is included independently, and `count` is the expected number. Differential privacy has its
      tightest bounds with it.
    - a tuple of probabilities p_i: each client i is included independently with p_i, so that the number of participants
      varies (FedCAMS, Wang et al., 2022, section 4.2: p_i = w_i).

    >>> participants("uniform", 1_000_000, 3, 0, Randomness(1), lambda: np.zeros(0))
    [170714, 399605, 713486]
    """
    if count == clients and isinstance(kind, str):
        return list(range(clients))
    generator = randomness.numpy(of_attempt(Draw.PARTICIPANTS, attempt), round)
    if not isinstance(kind, str):
        return np.flatnonzero(generator.random(clients) < np.asarray(kind)).tolist()
    if kind == "poisson":
        return np.flatnonzero(generator.random(clients) < count / clients).tolist()
    if kind == "uniform":
        chosen = generator.choice(clients, count, replace=False, shuffle=False)
    else:
        weights = np.asarray(sizes(), dtype=np.float64)
        chosen = generator.choice(clients, count, replace=False, shuffle=False, p=weights / weights.sum())
    return sorted(int(client) for client in chosen)
