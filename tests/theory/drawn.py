"""Values of quantities."""

from __future__ import annotations

import random

from laconic.theory.quantities import QUANTITIES


def drawn(seed: int) -> dict[str, float]:
    """A value of every quantity."""
    rng = random.Random(seed)
    values = {quantity.symbol: rng.uniform(0.2, 3.0) for quantity in QUANTITIES.values()}
    values |= {name: rng.uniform(0.1, 0.9) for name in ("q", "p", "beta1", "beta2", "eps", "gamma", "lam", "h")}
    values |= {"N": rng.randint(4, 60), "K": rng.randint(1, 9), "T": rng.randint(10, 1000), "d": 50, "tau": 3, "B": 7.0}
    values |= {"n": rng.randint(2, int(values["N"])), "mu": values["L"] / 5}
    return values
