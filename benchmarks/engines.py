"""Compare the engines `inline` and `processes`, and the interpreter's switch interval. Their rounds alternate in one run.

    python benchmarks/engines.py [--json] [--rounds 15] [--works W1 W2 W3] [--algorithm fed_avg] [--switch 0.0005 0.005]

The workloads are in workloads.py. Each variant runs with two threads or two processes. A ratio is the median over rounds of
the first variant's time divided by the other's: above 1 the other is faster. CPU seconds include the workers'. On a busy
machine they say more than seconds.

`--switch` compares the engine `inline` with these switch intervals, in seconds, instead of the engines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from workloads import THREADS, WORKS, Work, load_data

import laconic
from laconic.data import FederatedData
from laconic.engine import inline, process_engine
from laconic.run.simulation import Simulation


class Variant:
    """One engine with its settings, and the times of its rounds."""

    def __init__(
        self, name: str, work: Work, data: FederatedData, rounds: int, algorithm: str, engine: str, switch: float
    ) -> None:
        self.name, self.switch = name, switch
        self.seconds: list[float] = []
        self.processor: list[float] = []
        recipe = getattr(laconic, algorithm)(local_lr=work.local_lr, local_steps=work.steps, batch_size=work.batch)
        settings = laconic.Settings(
            rounds=rounds + 2, participants=work.participants, eval_every=rounds + 2, threads=THREADS, engine=engine
        )
        inline.SWITCH_SECONDS = switch
        self.simulation = Simulation(recipe, laconic.classification(work.build()), data, settings)
        started = time.perf_counter()
        self._rounds = self.simulation.rounds()
        next(self._rounds)
        self.first_seconds = time.perf_counter() - started

    def round(self) -> None:
        """Run and time one round."""
        sys.setswitchinterval(self.switch)
        wall, processor = time.perf_counter(), processor_seconds()
        next(self._rounds)
        self.seconds.append(time.perf_counter() - wall)
        self.processor.append(processor_seconds() - processor)

    def close(self) -> None:
        self._rounds.close()
        self.simulation.close()


def processor_seconds() -> float:
    """The CPU seconds of this process and of all workers."""
    total = time.process_time()
    servers = {server._process.pid for server in process_engine._SERVERS}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) in servers:
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def variants(given: argparse.Namespace, work: Work, data: FederatedData) -> Iterator[Variant]:
    common = (work, data, given.rounds, given.algorithm)
    if given.switch:
        for interval in given.switch:
            yield Variant(f"switch {interval}", *common, "inline", interval)
    else:
        for engine in ("inline", "processes"):
            yield Variant(engine, *common, engine, inline.SWITCH_SECONDS)


def measure(given: argparse.Namespace, work: Work) -> dict[str, Any]:
    """Run the variants, one round of each in turn."""
    torch.set_num_threads(1)
    tried = list(variants(given, work, load_data(work)))
    for _ in range(given.rounds):
        for variant in tried:
            variant.round()
    first, *others = tried
    result: dict[str, Any] = {}
    for variant in tried:
        result[variant.name] = {
            "seconds_per_round": statistics.median(variant.seconds),
            "processor_seconds_per_round": statistics.mean(variant.processor),
            "first_round_seconds": variant.first_seconds,
        }
    for variant in others:
        pairs = zip(first.seconds, variant.seconds, strict=True)
        result[variant.name] |= {
            "times_as_fast": statistics.median(one / other for one, other in pairs),
            "processor_ratio": sum(first.processor) / sum(variant.processor),
            "same_model": first.simulation.model_sha256() == variant.simulation.model_sha256(),
        }
    for variant in tried:
        variant.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--algorithm", default="fed_avg")
    parser.add_argument("--switch", nargs="+", type=float)
    given = parser.parse_args()
    results = {name: measure(given, WORKS[name]) for name in given.works}
    if given.json:
        print(json.dumps(results))
        return
    for name, found in results.items():
        for variant, numbers in found.items():
            print(name, variant, *(f"{key} {value:.4g}" for key, value in numbers.items()))


if __name__ == "__main__":
    main()
