"""Named randomness: every draw comes from a generator keyed by (seed, purpose, round, client).

No generator is shared, so results do not depend on the engine, the number of workers, or the order in which clients finish.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

import numpy as np
import torch

GLOBAL = -1
"""In a key: no particular round, or no particular client."""


class Draw(StrEnum):
    """The purposes that name random draws.

    The values are frozen: they are part of the keys, so changing one changes results. If a class, stream or option is
    renamed, its value here stays.
    """

    ANCHOR = "anchor"
    ATTACKERS = "attackers"
    AUGMENTATION = "augmentation"
    BANDWIDTH_DOWN = "network/down"
    BANDWIDTH_UP = "network/up"
    BATCHES = "batches"
    CLIENT_EVALUATION = "client evaluation"
    CRASH = "fault/crash"
    CRASH_MOMENT = "fault/crash moment"
    DIAGNOSTICS = "diagnostics"
    DIRECTION = "direction"
    DOWNLINK = "downlink"
    DOWNLINK_MEAN = "downlink/MEAN"
    DOWNLINK_STREAM = "downlink/{}"
    DROP = "fault/drop"
    DROPOUT = "dropout"
    DUPLICATE = "fault/duplicate"
    FIRST_LARGE_BATCH = "first large batch"
    HELD_OUT = "held out"
    INITIAL_MODEL = "initial model"
    LARGE_BATCH = "large batch"
    LATE = "fault/late"
    LATENCY = "network/latency"
    LOCAL_STEPS = "local steps"
    LOSE_STATE = "fault/lose_state"
    ONE_OF_ANSWERED = "one of answered"
    OWN_TRAINING = "own training"
    PARTICIPANTS = "participants"
    PARTITION = "partition"
    PRIVACY_NOISE = "privacy noise"
    RENEWAL = "renewal"
    STAND_INS = "stand-ins"
    SUBSPACE = "subspace"
    UPLINK = "uplink"
    UPLINK_STREAM = "uplink/{}"


@dataclass(frozen=True)
class Randomness:
    """The random draws of one run.

    >>> draw = lambda client: Randomness(7).numpy("batches", round=3, client=client).integers(10**9)
    >>> bool(draw(2) == draw(2)), bool(draw(2) == draw(1))
    (True, False)
    """

    seed: int

    def key(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> bytes:
        """The 16-byte key of one generator."""
        text = f"{self.seed}/{purpose}/{round}/{client}"
        return blake2b(text.encode(), digest_size=16, person=b"laconic").digest()

    def numpy(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> np.random.Generator:
        """A NumPy generator for one purpose."""
        key = int.from_bytes(self.key(purpose, round, client), "little")
        return np.random.Generator(np.random.Philox(key=key))

    def integer(self, purpose: str, round: int = GLOBAL, client: int = GLOBAL) -> int:
        """A 63-bit seed for one purpose."""
        return int.from_bytes(self.key(purpose, round, client)[:8], "little") >> 1


GLOBAL_GENERATORS = threading.RLock()
"""Held while code of others uses the global generators of torch, NumPy and `random`, which all threads share."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, NumPy and `random` for one thread at a time, and restore them afterward."""
    with GLOBAL_GENERATORS, torch.random.fork_rng(devices=[]):
        python, numpy = random.getstate(), np.random.get_state()
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
