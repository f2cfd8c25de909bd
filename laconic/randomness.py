"""Randomness is named (design rule 6).

Every draw comes from a generator keyed by (seed, purpose, round, client). Nobody shares a generator, so a result cannot
depend on the engine, on the number of workers or on the order in which clients happen to finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch

GLOBAL = -1
"""Stands for "no particular round" or "no particular client" in a key."""


@dataclass(frozen=True)
class Randomness:
    """All the random draws of one run.

    >>> draw = lambda client: Randomness(7).numpy("batches", round=3, client=client).integers(10**9)
    >>> bool(draw(2) == draw(2)), bool(draw(2) == draw(1))
    (True, False)
    """

    seed: int

    def key(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> bytes:
        """The 16 bytes that name one stream of draws."""
        text = f"{self.seed}/{purpose}/{round}/{client}"
        return blake2b(text.encode(), digest_size=16, person=b"laconic").digest()

    def numpy(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> np.random.Generator:
        """A NumPy generator for one purpose (indices, masks, roundings on the host)."""
        key = int.from_bytes(self.key(purpose, round, client), "little")
        return np.random.Generator(np.random.Philox(key=key))

    def torch(
        self, purpose: str, round: int = GLOBAL, client: int = GLOBAL, device: str | torch.device = "cpu"
    ) -> torch.Generator:
        """A torch generator for one purpose, on the device where its numbers are needed."""
        return torch.Generator(device).manual_seed(self.integer(purpose, round, client))

    def integer(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> int:
        """One 63-bit number, for libraries that take a seed."""
        return int.from_bytes(self.key(purpose, round, client)[:8], "little") >> 1
