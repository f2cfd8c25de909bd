"""The speedup of a second Ray worker, and the cost of a round beyond its gradients.

    python benchmarks/workers.py [--json] [--rounds 15] [--algorithm fed_avg]

W1: LeNet-5 on Fashion-MNIST (random images where it is not at hand), 100 clients x 600 samples, 20 a round, 10 steps of 64,
on one worker and on two, each with one thread. Both run the same rounds alternately, so that other work on the machine
affects them equally; the first round does not count.

A client belongs to one worker, with its data and its state, so a round takes as long as its busier worker.
`speedup_the_split_allows` is what that leaves of two; `two_over_one` is what was measured. `cost_beyond_gradients` is the
part of the rounds' time in which the busier worker was not inside a gradient call: packets, batches, states to the store,
Ray, the server. On a machine that is busy with other things a wait for a core counts there, too;
`processor_beyond_gradients` is the same part of the processor time of the workers and of this process, and
`two_over_one_by_processor` is the one worker's processor time over that of the busier of the two.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

import laconic
from laconic import models
from laconic.engine import inline
from laconic.engine.inline import ClientSpec, InlineEngine
from laconic.engine.ray_actors import connect
from laconic.engine.settings import RaySettings
from laconic.federation.store import ClientStore
from laconic.gradients.base import Gradients
from laconic.run.simulation import Simulation, initial_module

sys.path.insert(0, str(Path(__file__).parent))
from simulation import WORKS, load_data

W1 = WORKS["W1"]


@dataclass(frozen=True)
class TimedWork(ClientSpec):
    """ClientSpec whose worker writes down how long it was inside gradient calls; sent to it by value."""

    folder: Path = Path()

    def engine(self, store: ClientStore, threads: int | None) -> InlineEngine:
        plain, own = inline.make_gradients, self.folder / str(os.getpid())
        inside, calls = [0.0, 0.0], itertools.count(1)

        def timed(*how: Any) -> Any:
            gradients = plain(*how)

            class Timed(Gradients):
                def __call__(self, *arguments: Any) -> Any:
                    started, busy = time.perf_counter(), time.thread_time()
                    result = gradients(*arguments)
                    inside[0] += time.perf_counter() - started
                    inside[1] += time.thread_time() - busy
                    if next(calls) % W1.steps == 0:  # once a client, so as not to measure the writing
                        own.write_text(json.dumps([*inside, time.process_time()]))
                    return result

            return Timed()

        inline.make_gradients = timed
        return super().engine(store, threads)


class Run:
    """The workload on some workers."""

    def __init__(self, workers: int, algorithm: str, rounds: int, folder: Path) -> None:
        self.folder, self.workers = folder / str(workers), workers
        self.folder.mkdir()
        module = initial_module(lambda: models.build(W1.model, (1, 28, 28), 10), 0)
        recipe = laconic.algorithms.recipes.make(
            algorithm, local_lr=W1.local_lr, local_steps=W1.steps, batch_size=W1.batch
        )
        settings = laconic.Settings(
            rounds=rounds + 1, participants=W1.participants, eval_every=rounds + 1, threads=1,
            engine="ray", ray={"workers": workers},
        )  # fmt: skip
        self.simulation = Simulation(recipe, laconic.classification(module), load_data(W1), settings)
        assert self.simulation.workers is not None
        work = self.simulation.workers._spec
        same = {each.name: getattr(work, each.name) for each in fields(ClientSpec)}
        self.simulation.workers._spec = TimedWork(**same, folder=self.folder)
        self.rounds = self.simulation.rounds()
        self.seconds = self.busier = self.inside = 0.0
        self.processor = self.processor_inside = self.busier_processor = 0.0
        self.most = 0

    def round(self, counts: bool) -> None:
        """One round, entered if it counts."""
        before, busy, started = self.read(), time.process_time(), time.perf_counter()
        next(self.rounds)
        took, busy = time.perf_counter() - started, time.process_time() - busy
        if counts:
            passed = {worker: now - before[worker] for worker, now in self.read().items()}
            spent = [float(wall) for wall, _, _ in passed.values()]
            self.processor_inside += sum(float(inside) for _, inside, _ in passed.values())
            used = [float(whole) for _, _, whole in passed.values()]
            self.processor, self.busier_processor = self.processor + busy + sum(used), self.busier_processor + max(used)
            self.seconds, self.inside, self.busier = (
                self.seconds + took,
                self.inside + sum(spent),
                self.busier + max(spent),
            )
            chosen = self.simulation.server._participants
            self.most += max(
                sum(client % self.workers == worker for client in chosen) for worker in range(self.workers)
            )

    def read(self) -> dict[str, np.ndarray]:
        """By worker: seconds inside gradient calls so far, of the clock and of the processor, and all processor seconds."""
        return {path.name: np.array(json.loads(path.read_text())) for path in self.folder.iterdir()}


def measure(algorithm: str, rounds: int) -> dict[str, Any]:
    """Both, a round each in turn."""
    connect(RaySettings(workers=3), threads=1)
    with tempfile.TemporaryDirectory(prefix="laconic-workers-") as folder:
        one, two = (Run(workers, algorithm, rounds + 1, Path(folder)) for workers in (1, 2))
        for number in range(rounds + 1):
            for run in (one, two):
                run.round(counts=number > 0)
        same = one.simulation.model_sha256() == two.simulation.model_sha256()
        for run in (one, two):
            run.rounds.close()
            run.simulation.close()
    return {
        "two_over_one": one.seconds / two.seconds,
        "two_over_one_by_processor": one.busier_processor / two.busier_processor,
        "speedup_the_split_allows": one.most / two.most,
        "cost_beyond_gradients": {str(run.workers): 1 - run.busier / run.seconds for run in (one, two)},
        "processor_beyond_gradients": {
            str(run.workers): 1 - run.processor_inside / run.processor for run in (one, two)
        },
        "seconds_per_round": {str(run.workers): run.seconds / rounds for run in (one, two)},
        "gradient_seconds_per_round": {str(run.workers): run.inside / rounds for run in (one, two)},
        "same_model": same,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each")
    parser.add_argument("--algorithm", default="fed_avg", help="a recipe")
    options = parser.parse_args()
    result = measure(options.algorithm, options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28s} {value}")


if __name__ == "__main__":
    main()
