"""Resolution of `engine = "auto"`. The engines have the same results, so the rule is about speed only.

It follows measurements of `benchmarks/engines.py` (docs/performance.md). Compiled gradients hold no interpreter lock; where
they are used, threads are as good as processes.
"""

from __future__ import annotations

import os
from typing import Literal

from laconic.algorithms.algorithm import Algorithm
from laconic.gradients.numerics import Numerics

LEAST_TURNS = 2000
"""Rounds times participants from which on a run is worth the start of workers, which takes about two seconds."""


def engine_for(
    algorithm: Algorithm, numerics: Numerics, device: str, rounds: int, participants: int
) -> Literal["inline", "processes"]:
    """Worker processes for long runs on several cores, whose threads would often wait for each other.

    These are users' own training loops, which run on one thread inline, and models that train one client at a time.
    """
    parallel = device == "cpu" and hasattr(os, "memfd_create") and min(os.cpu_count() or 1, participants) > 1
    waits = algorithm.method.one_at_a_time or numerics.strategy == "loop"
    return "processes" if parallel and waits and rounds * participants >= LEAST_TURNS else "inline"
