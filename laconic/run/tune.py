"""Measures which gradient strategy is fastest for a run on this machine."""

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
MAX_PARTICIPANTS = 50


@dataclass(frozen=True)
class Timing:
    """A gradient strategy and the measured time per round."""

    numerics: Numerics
    threads: int
    seconds_per_round: float

    def __str__(self) -> str:
        width = f" of width {self.numerics.vmap_width}" if self.numerics.strategy == "vmap" else ""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.numerics.strategy}{width} on {threads}, {self.seconds_per_round:.3g} s a round"


def tune(config: RunConfig, report: Callable[[Timing], None] = lambda timing: None) -> list[Timing]:
    """Time every candidate in a short run, and return the timings, fastest first.

    Strategies that the model does not support are skipped. At most `MAX_PARTICIPANTS` clients participate, and one slow
    round is enough to discard a candidate.
    """
    data = config.load_data()
    cores = os.cpu_count() or 1
    base = config.numerics
    candidates = [base.model_copy(update={"strategy": strategy}) for strategy in ("loop", "stacked")]
    candidates += [base.model_copy(update={"strategy": "vmap", "vmap_width": width}) for width in WIDTHS]
    participants = min(config.participants or len(data), len(data), MAX_PARTICIPANTS)
    timings: list[Timing] = []
    for numerics in candidates:
        for threads in sorted({1, cores}):
            changes = {"numerics": numerics, "threads": threads, "participants": participants}
            changes |= {"rounds": ROUNDS + 2, "eval_every": ROUNDS + 2}
            best = min((timing.seconds_per_round for timing in timings), default=float("inf"))
            try:
                seconds = _time(config.model_copy(update=changes), data, limit=2 * best)
            except (RuntimeError, ConfigError):
                continue
            timings.append(Timing(numerics, threads, seconds))
            report(timings[-1])
    if not timings:
        raise ConfigError("tune: no strategy supports this model; `laconic run` reports the reason")
    return sorted(timings, key=lambda timing: timing.seconds_per_round)


def _time(config: RunConfig, data: ClientData, limit: float) -> float:
    simulation = config.build(data)
    try:
        rounds = simulation.rounds()
        times: list[float] = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            next(rounds)
            times.append(time.perf_counter() - started)
            if times[-1] > limit:
                break
        return min(times)
    finally:
        simulation.close()
