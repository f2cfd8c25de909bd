"""Who takes part in a round."""

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
    """`count` different clients, in ascending order, which is the order in which everything is summed.

    uniform: every set is equally likely, at a cost that depends on `count` only. weighted: drawn one after the other with
    probabilities in proportion to the clients' numbers of examples. poisson: each by a coin of its own, so that `count` is
    the number on average; differential privacy counts best with it.

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
