"""The round and client for which a part is called."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.randomness import GLOBAL, Randomness


@dataclass(frozen=True)
class RoundContext:
    """One client in one round, or all clients (`client` is GLOBAL)."""

    layout: Layout
    randomness: Randomness
    round: int
    client: int = GLOBAL
    invited: int = 1
    """n, the number of participants; with privacy noise the expected number: the actual one depends on who takes part."""
    population: int = 1
    """N, the number of clients."""
    model: Tensor | None = None
    """On a client that encodes its answer: the model that it started from."""

    @property
    def starts(self) -> bool:
        """Whether all states are reset in this round."""
        return self.layout.starts(self.round)

    def generator(self, purpose: str) -> np.random.Generator:
        """The random generator of this round and client for one purpose."""
        return self.randomness.numpy(purpose, self.round, self.client)
