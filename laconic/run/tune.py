"""Measures which numerics are fastest on this machine for a given run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from laconic.core.errors import ConfigError
from laconic.data.federated import ClientData
from laconic.gradients.numerics import Numerics
from laconic.run.config import RunConfig

WIDTHS = (10, 25, 50)
ROUNDS = 3
MOST = 50


@dataclass(frozen=True)
class Timing:
    """One way of computing gradients, and how long a round took with it."""

    numerics: Numerics
    threads: int
    seconds_per_round: float

    def __str__(self) -> str:
        width = f" of width {self.numerics.vmap_width}" if self.numerics.strategy == "vmap" else ""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.numerics.strategy}{width} on {threads}, {self.seconds_per_round:.3g} s a round"


def tune(config: RunConfig, report: Callable[[Timing], None] = lambda timing: None) -> list[Timing]:
    """Short runs of every candidate, fastest first; a strategy that the model does not allow is left out.

    At most `MOST` clients take part, and one slow round is enough to rule a candidate out.
    """
    data = config.load_data()
    cores = os.cpu_count() or 1
    base = config.numerics
    candidates = [base.model_copy(update={"strategy": strategy}) for strategy in ("loop", "stacked")]
    candidates += [base.model_copy(update={"strategy": "vmap", "vmap_width": width}) for width in WIDTHS]
    participants = min(config.participants or len(data), len(data), MOST)
    timings: list[Timing] = []
    for numerics in candidates:
        for threads in sorted({1, cores}):
            changes = {"numerics": numerics, "threads": threads, "participants": participants}
            changes |= {"rounds": ROUNDS + 2, "eval_every": ROUNDS + 2}
            best = min((timing.seconds_per_round for timing in timings), default=float("inf"))
            try:
                seconds = _time(config.model_copy(update=changes), data, enough=2 * best)
            except (RuntimeError, ConfigError):
                continue
            timings.append(Timing(numerics, threads, seconds))
            report(timings[-1])
    if not timings:
        raise ConfigError("tune: no strategy runs this model; `laconic run` says why")
    return sorted(timings, key=lambda timing: timing.seconds_per_round)


def _time(config: RunConfig, data: ClientData, enough: float) -> float:
    simulation = config.build(data)
    try:
        rounds = simulation.rounds()
        times: list[float] = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            next(rounds)
            times.append(time.perf_counter() - started)
            if times[-1] > enough:
                break
        return min(times)
    finally:
        simulation.close()
