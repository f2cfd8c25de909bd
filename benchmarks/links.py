"""The cost of the links of a round, without training: milliseconds and memory per client.

    python benchmarks/links.py [--json] [--parameters 1000000] [--rounds 3] [--recipes fed_avg fed_cams …] [--profile]

Rounds of a real simulation whose clients do not train: their update is a fixed random vector with heavy tails. Everything else
is as usual: instructions, packets, checksums, error memories, mirrors, stores, aggregation, the optimizer's step. The tables
show, per client and round,

- `ms`: CPU milliseconds, over all threads, in the fastest of the rounds,
- `copies`: the same in copies of a vector of the model's size, timed in the same run. This ratio can be compared between
  machines and phases of a machine,
- `vectors`: by how much the process grows for every further client that takes part, in vectors of the model's size. The
  states that clients keep in memory (error memory, model) are part of it.

With `--profile` it prints the functions that take most time.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

import laconic
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.algorithms.recipes import RECIPES
from laconic.data import GeneratedData
from laconic.run.simulation import Simulation

FEW, MANY = 8, 16
"""The participants of the two simulations. Memory per client is their difference."""
INPUTS = 50
RECIPE_NAMES = ("fed_avg", "fed_cams", "stc", "fed_laconic", "fed_laconic_1", "qsgd", "shifted")


def algorithm(name: str) -> laconic.Algorithm:
    """A recipe, or one of two combinations of links: `qsgd` (qsgd:4 both ways), `shifted` (qsgd:4 up)."""
    if name == "qsgd":
        return laconic.fed_avg(compressor="qsgd:4", memory=False, downlink="mirrored")
    if name == "shifted":
        return laconic.fed_avg(compressor="qsgd:4", uplink="shifted")
    return RECIPES[name]()


@laconic.method("no_training")
class NoTraining(LocalSGD):
    """Every client sends one of eight fixed vectors."""

    def local(self, cohort: Cohort) -> Tensor:
        rows = [(client + cohort.round) % len(UPDATES) for client in cohort.clients]
        return UPDATES[rows]


UPDATES = torch.empty(0)


def make_updates(size: int) -> Tensor:
    """Vectors whose entries have heavy tails, as those of updates have."""
    generator = np.random.default_rng(0)
    return torch.from_numpy(0.01 * generator.standard_normal((8, size), dtype=np.float32) ** 3)


def resident() -> int:
    """The resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def copy_seconds(size: int) -> float:
    """The fastest of some copies of a vector."""
    source, target = torch.zeros(size), torch.zeros(size)
    times = []
    for _ in range(20):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return min(times)


def make_simulation(name: str, size: int, participants: int, rounds: int, threads: int) -> Simulation:
    def make(client: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((4, INPUTS), dtype=np.float32), np.zeros(4, dtype=np.int64)

    hidden = size // (INPUTS + 11)
    module = laconic.models.build(f"mlp:{hidden}", (INPUTS,), 10)
    data = GeneratedData(participants, 4, make, kind="classification", classes=10)
    settings = laconic.Settings(rounds=rounds, participants=participants, eval_every=rounds, threads=threads)
    chosen = algorithm(name).replace(method=NoTraining(local_steps=1, batch_size=4))
    simulation = Simulation(chosen, laconic.classification(module), data, settings)
    global UPDATES
    if UPDATES.shape[-1:] != (simulation.layout.size,):
        UPDATES = make_updates(simulation.layout.size)
    return simulation


def measure(name: str, size: int, rounds: int, threads: int, profile: bool = False) -> dict[str, float]:
    """CPU milliseconds per client, and the memory for each further client."""
    used = []
    for participants in (FEW, MANY):
        gc.collect()
        simulation = make_simulation(name, size, participants, rounds + 4, threads)
        size = simulation.layout.size
        own_rounds = simulation.rounds()
        next(own_rounds)  # compiles
        before, processor, wall = resident(), [], []
        for _ in range(rounds + 1):
            started = time.process_time(), time.perf_counter()
            next(own_rounds)
            processor.append(time.process_time() - started[0])
            wall.append(time.perf_counter() - started[1])
        used.append(resident())
        if profile and participants == MANY:
            show_profile(own_rounds, participants)
        own_rounds.close()
        simulation.close()
        del simulation, own_rounds
    milliseconds, copy = 1000 * min(processor[1:]) / MANY, 1000 * copy_seconds(size)
    del before
    return {
        "parameters": float(size),
        "ms": milliseconds,
        "wall_ms": 1000 * min(wall[1:]) / MANY,
        "copies": milliseconds / copy,
        "vectors": (used[1] - used[0]) / (MANY - FEW) / (4 * size),
    }


def show_profile(own_rounds: Any, participants: int) -> None:
    """The profile of one round on all threads."""
    profiles: list[cProfile.Profile] = []

    def start(*_: object) -> None:
        profiles.append(cProfile.Profile(time.thread_time))
        profiles[-1].enable()

    threading.setprofile_all_threads(start)
    next(own_rounds)
    threading.setprofile_all_threads(None)
    for each in profiles:
        each.disable()
    pstats.Stats(*profiles).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipes", nargs="*", default=RECIPE_NAMES)
    parser.add_argument("--profile", action="store_true", help="print the profile of a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    for name in options.recipes:
        found[name] = measure(name, options.parameters, options.rounds, options.threads, options.profile)
        if not options.json:
            print(f"{name:16s} " + ", ".join(f"{key} {value:,.4g}" for key, value in found[name].items()), flush=True)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
