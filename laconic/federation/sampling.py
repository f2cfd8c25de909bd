"""Sampling of a round's participants."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from laconic.core.randomness import Draw, Randomness
from laconic.federation.settings import Sampling


def participants(
    kind: Sampling,
    clients: int,
    count: int,
    round: int,
    randomness: Randomness,
    sizes: Callable[[], np.ndarray],
) -> list[int]:
    """Sample `count` distinct clients, in ascending order (the order in which updates are summed).

    - uniform: every subset is equally likely. The cost depends on `count` only.
    - weighted: drawn one after the other, with probability proportional to the number of examples.
    - poisson: each client is included independently, and `count` is the expected number. Differential privacy has its
      tightest bounds with it.

    >>> participants("uniform", 1_000_000, 3, 0, Randomness(1), lambda: np.zeros(0))
    [170714, 399605, 713486]
    """
    if count == clients:
        return list(range(clients))
    generator = randomness.numpy(Draw.PARTICIPANTS, round)
    if kind == "poisson":
        return np.flatnonzero(generator.random(clients) < count / clients).tolist()
    if kind == "uniform":
        chosen = generator.choice(clients, count, replace=False, shuffle=False)
    else:
        weights = np.asarray(sizes(), dtype=np.float64)
        chosen = generator.choice(clients, count, replace=False, shuffle=False, p=weights / weights.sum())
    return sorted(int(client) for client in chosen)
