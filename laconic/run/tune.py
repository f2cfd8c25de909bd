"""Measures which gradient strategy, and which engine, is fastest for a run on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Literal

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
    engine: Literal["inline", "processes"] = "inline"

    @property
    def on(self) -> str:
        """What runs the clients, as in `2 threads`."""
        kind = "thread" if self.engine == "inline" else "process"
        return f"1 {kind}" if self.threads == 1 else f"{self.threads} {kind}{'' if kind == 'thread' else 'e'}s"

    def __str__(self) -> str:
        width = f" of width {self.numerics.vmap_width}" if self.numerics.strategy == "vmap" else ""
        return f"{self.numerics.strategy}{width} on {self.on}, {self.seconds_per_round:.3g} s a round"


def tune(config: RunConfig, report: Callable[[Timing], None] = lambda timing: None) -> list[Timing]:
    """Time every candidate in a short run, and return the timings, fastest first.

    Strategies that the model does not support are skipped. At most `MAX_PARTICIPANTS` clients participate, and one slow
    round is enough to discard a candidate.
    """
    data = config.load_data()
    cores = os.cpu_count() or 1
    base = config.numerics
    strategies = [base.model_copy(update={"strategy": strategy}) for strategy in ("compiled", "loop", "stacked")]
    strategies += [base.model_copy(update={"strategy": "vmap", "vmap_width": width}) for width in WIDTHS]
    participants = min(config.participants or len(data), len(data), MAX_PARTICIPANTS)
    engine = "ray" if config.engine == "ray" else "inline"
    changes = {"participants": participants, "rounds": ROUNDS + 2, "eval_every": ROUNDS + 2, "engine": engine}
    timings: list[Timing] = []
    for numerics, threads in product(strategies, sorted({1, cores})):
        candidate = config.model_copy(update=changes | {"numerics": numerics, "threads": threads})
        best = min((timing.seconds_per_round for timing in timings), default=float("inf"))
        try:
            seconds = _time(candidate, data, limit=2 * best)
        except (RuntimeError, ConfigError):
            continue
        timings.append(Timing(numerics, threads, seconds))
        report(timings[-1])
    if not timings:
        raise ConfigError("tune: no strategy supports this model; `laconic run` reports the reason")
    if cores > 1 and config.engine != "ray" and hasattr(os, "memfd_create"):
        numerics = min(timings, key=lambda timing: timing.seconds_per_round).numerics
        changes |= {"numerics": numerics, "threads": cores, "engine": "processes"}
        seconds = _time(config.model_copy(update=changes), data, limit=float("inf"))
        timings.append(Timing(numerics, cores, seconds, "processes"))
        report(timings[-1])
    return sorted(timings, key=lambda timing: timing.seconds_per_round)


def _time(config: RunConfig, data: ClientData, limit: float) -> float:
    simulation = config.build(data)
    try:
        simulation.start()
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
