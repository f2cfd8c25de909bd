"""Where in a run a link is asked to act: what it may need beyond its own parameters and state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laconic.core.layout import Layout
from laconic.core.randomness import GLOBAL, Randomness


@dataclass(frozen=True)
class RoundContext:
    """One client (or, for what goes to all, no client) in one round."""

    layout: Layout
    randomness: Randomness
    round: int
    client: int = GLOBAL
    invited: int = 1
    """n, the clients of this round."""
    population: int = 1
    """N, all clients."""

    def generator(self, purpose: str) -> np.random.Generator:
        """The draws of a compressor on this context."""
        return self.randomness.numpy(purpose, self.round, self.client)
