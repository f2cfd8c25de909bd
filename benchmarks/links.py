"""The cost of a round's links, without training: milliseconds and memory per client.

    python benchmarks/links.py [--json] [--parameters 1000000] [--rounds 3] [--recipes fed_avg fed_cams …]

Rounds of a real simulation whose clients do not train: their update is a fixed random vector with heavy tails. Everything
else is as usual: instructions, packets, checksums, error memories, mirrors, stores, aggregation, the optimizer's step. Per
client and round it shows

- `ms`: CPU milliseconds over all threads, in the fastest round,
- `copies`: the same in copies of a vector of the model's size, timed in the same run, for comparisons between machines,
- `vectors`: by how much the memory of the process grows for each further client, in vectors of the model's size. It includes
  the states that clients keep. Mirrors on the server are files, which do not count.

The last line has the milliseconds of one vector with qsgd:4 in a simulation: the sender encodes it, the receiver decodes and
adds it, and the sender, which shares what the receiver decoded, adds it to its copy.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import laconic
from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.algorithms.recipes import RECIPES
from laconic.compression import decode_body
from laconic.data import GeneratedData
from laconic.run.simulation import Simulation

FEW, MANY = 8, 16
"""The participants of the two simulations. Memory per client is their difference."""
INPUTS = 50
NAMES = ("fed_avg", "fed_cams", "stc", "fed_laconic", "fed_laconic_1", "qsgd", "shifted")
COMBINATIONS = {
    "qsgd": {"compressor": "qsgd:4", "memory": False, "downlink": "mirrored"},
    "shifted": {"compressor": "qsgd:4", "uplink": "shifted"},
}
"""Further combinations of links, by name: the parameters of fed_avg."""


class Updates:
    """Eight vectors whose entries have heavy tails, as those of updates have."""

    rows = torch.empty(8, 0)

    @classmethod
    def make(cls, size: int) -> None:
        if cls.rows.shape[1] != size:
            cls.rows = torch.from_numpy(0.01 * np.random.default_rng(0).standard_normal((8, size), np.float32) ** 3)


@laconic.method("no_training")
class NoTraining(LocalSGD):
    """Every client sends one of eight vectors."""

    def local(self, cohort: Cohort) -> Tensor:
        return Updates.rows[[(client + cohort.round) % 8 for client in cohort.clients]]


def make_simulation(name: str, size: int, participants: int, rounds: int, threads: int) -> Simulation:
    def make(client: int) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((4, INPUTS), dtype=np.float32), np.zeros(4, dtype=np.int64)

    module = laconic.models.build(f"mlp:{size // (INPUTS + 11)}", (INPUTS,), 10)
    data = GeneratedData(participants, 4, make, kind="classification", classes=10)
    settings = laconic.Settings(rounds=rounds, participants=participants, eval_every=rounds, threads=threads)
    algorithm = RECIPES[name]() if name in RECIPES else laconic.fed_avg(**COMBINATIONS[name])
    algorithm = algorithm.replace(method=NoTraining(local_steps=1, batch_size=4))
    simulation = Simulation(algorithm, laconic.classification(module), data, settings)
    Updates.make(simulation.layout.size)
    return simulation


def own_memory() -> int:
    """The memory of this process in bytes, without mapped files, after the C library has returned what is free."""
    ctypes.CDLL(None).malloc_trim(0)
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def copy_milliseconds(size: int) -> float:
    """The fastest of some copies of a vector."""
    source, target = torch.ones(size), torch.zeros(size)
    times = []
    for _ in range(20):
        started = time.thread_time()
        target.copy_(source)
        times.append(time.thread_time() - started)
    return 1000 * min(times)


def measure(name: str, size: int, rounds: int, threads: int) -> dict[str, float]:
    """CPU milliseconds per client, and the memory for each further client."""
    used, times = [], []
    for participants in (FEW, MANY):
        gc.collect()
        simulation = make_simulation(name, size, participants, rounds + 4, threads)
        own_rounds = simulation.rounds()
        next(own_rounds), next(own_rounds)  # compiles, and fills the memories
        for _ in range(rounds):
            started = time.process_time()
            next(own_rounds)
            times.append(1000 * (time.process_time() - started) / participants)
        used.append(own_memory())
        own_rounds.close()
        simulation.close()
        size = simulation.layout.size
        del simulation, own_rounds
    milliseconds = min(times)
    return {
        "ms": milliseconds,
        "copies": milliseconds / copy_milliseconds(size),
        "vectors": (used[1] - used[0]) / (MANY - FEW) / (4 * size),
    }


def one_vector(size: int) -> dict[str, float]:
    """Milliseconds to send, receive and confirm one vector with qsgd:4, each the fastest of twelve."""
    simulation = make_simulation("qsgd", size, 2, 1, 1)
    compressor, layout = simulation.algorithm.downlink.compression, simulation.layout
    simulation.close()
    received, mirror = torch.zeros(layout.size), torch.zeros(layout.size)
    times: dict[str, list[float]] = {"send": [], "receive": [], "confirm": []}
    for key in range(12):
        started = time.thread_time()
        body = compressor.encode(Updates.rows[0], layout, np.random.Generator(np.random.Philox(key=key)), 2)
        sent = time.thread_time()
        decode_body(body, layout, keep=True).add_to(received, 1.0)
        decoded = time.thread_time()
        decode_body(body, layout).add_to(mirror, 1.0)
        for name, spent in zip(times, (sent - started, decoded - sent, time.thread_time() - decoded), strict=True):
            times[name].append(1000 * spent)
    return {name: min(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--recipes", nargs="*", default=NAMES, choices=[*RECIPES, *COMBINATIONS])
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measure(name, options.parameters, options.rounds, options.threads) for name in options.recipes}
    parts = one_vector(options.parameters)
    if options.json:
        print(json.dumps(found | {"one vector with qsgd:4": {"ms": sum(parts.values()), **parts}}))
        return
    print(f"{'recipe':16s} {'ms':>8s} {'copies':>8s} {'vectors':>8s}")
    for name, row in found.items():
        print(f"{name:16s} {row['ms']:8.2f} {row['copies']:8.1f} {row['vectors']:8.2f}")
    print(
        f"qsgd:4, one vector: {sum(parts.values()):.2f} ms ({', '.join(f'{name} {ms:.2f}' for name, ms in parts.items())})"
    )


if __name__ == "__main__":
    main()
