"""Rounds of a thousand clients out of a thousand, a hundred thousand and a million.

    python benchmarks/scale.py [--json] [--rounds 20] [--clients 1000 100000 1000000]
    python benchmarks/scale.py --kill 3 --rounds 50 --clients 1000000

fed_cams with sign (every client has an error memory as long as the model) on an MLP 784-64-10, 10 steps of 32, 1,000
participants per round, generated client data, states on disk with a cache of 500 MB, and a checkpoint after every round,
whose time is included. Every population has its own process, to measure its peak memory. The processes run rounds
alternately, so that other work on the machine affects them equally. Wall-clock and processor seconds are medians from round
5 on; `store_share` is the share of wall-clock time inside SQLite.

With `--kill` the same rounds run twice: once without interruption, and once by processes that are killed (SIGKILL) at random
moments within rounds, that many times, and resumed. Both must end with the same model.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import laconic
from laconic import models
from laconic.core.randomness import Randomness
from laconic.data import GeneratedData
from laconic.federation.database import Database
from laconic.run import simulation as simulation_module
from laconic.run.directory import RunDirectory
from laconic.run.simulation import Simulation, initial_module

PARTICIPANTS, EXAMPLES, FIRST = 1000, 64, 5


def make(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Ten kinds of noisy pictures, two of them with each client."""
    generator = Randomness(0).numpy("data", client=client)
    labels = generator.choice(10, 2)[generator.integers(0, 2, EXAMPLES)]
    pictures = generator.standard_normal((EXAMPLES, 784), dtype=np.float32)
    pictures[np.arange(EXAMPLES), labels] += 8
    return pictures, labels


class Timed(Database):
    """A database that adds up the time spent inside."""

    seconds = 0.0

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self.lock:
            started = time.perf_counter()
            rows = super().execute(statement, values)
            Timed.seconds += time.perf_counter() - started
            return rows


class Population:
    """One population in this process: a round with its checkpoint whenever a line arrives."""

    def __init__(self, clients: int, rounds: int, folder: Path) -> None:
        data = GeneratedData(clients, EXAMPLES, make, kind="classification", classes=10)
        algorithm = laconic.fed_cams(compressor="sign", local_steps=10, batch_size=32, local_lr=0.05)
        module = initial_module(lambda: models.build("mlp:64", (784,), 10), 0)
        settings = laconic.Settings(rounds=rounds, participants=PARTICIPANTS, store="disk", store_cache="500MB")
        simulation_module.Database = Timed
        self.simulation = Simulation(algorithm, laconic.classification(module), data, settings)
        self.directory = RunDirectory(folder)
        if self.directory.exists():
            self.directory.resume(self.simulation, "")
        else:
            self.directory.create(self.simulation, "")

    def serve(self) -> None:
        """Answer each line with the numbers of a round."""
        rounds = self.simulation.rounds()
        for _ in sys.stdin:
            started, processors, store = time.perf_counter(), time.process_time(), Timed.seconds
            self.directory.append(next(rounds))
            self.directory.save_checkpoint(self.simulation)
            numbers = {
                "seconds": time.perf_counter() - started,
                "processor_seconds": time.process_time() - processors,
                "store_seconds": Timed.seconds - store,
                "peak_rss_gb": peak_bytes() / 1e9,
                "disk_gb": sum(path.stat().st_size for path in self.directory.path.iterdir()) / 1e9,
                "round": self.simulation.server.round,
                "model_sha256": self.simulation.model_sha256(),
            }
            print(json.dumps(numbers), flush=True)
        rounds.close()
        self.simulation.close()


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def start(clients: int, rounds: int, folder: str) -> subprocess.Popen[str]:
    """A population in a process of its own, new or continued."""
    command = [sys.executable, __file__, "--alone", folder, "--rounds", str(rounds), "--clients", str(clients)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def ask(process: subprocess.Popen[str]) -> None:
    """One round more."""
    assert process.stdin is not None
    process.stdin.write("\n")


def answer(process: subprocess.Popen[str], clients: int) -> dict[str, Any]:
    """Its numbers."""
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    said = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if isinstance(value, float))
    print(f"round {found['round']:2d} of {clients:>9d}: {said}", file=sys.stderr, flush=True)
    return found


def measure(populations: list[int], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """The numbers of every round of each population."""
    with tempfile.TemporaryDirectory(prefix="laconic-scale-") as folder, ExitStack() as stack:
        processes = {
            clients: stack.enter_context(start(clients, rounds, f"{folder}/{clients}")) for clients in populations
        }
        found: dict[str, list[dict[str, Any]]] = {str(clients): [] for clients in processes}
        for _ in range(rounds):
            for clients, process in processes.items():
                ask(process)
                found[str(clients)].append(answer(process, clients))
        return found


def survive(clients: int, rounds: int, kills: int) -> dict[str, Any]:
    """The last model of a run without a break, and of one that was killed in the middle of rounds."""
    generator = np.random.default_rng(0)
    fatal = sorted(int(each) for each in generator.choice(np.arange(2, rounds), kills, replace=False))
    with tempfile.TemporaryDirectory(prefix="laconic-scale-") as folder:
        with start(clients, rounds, f"{folder}/whole") as process:
            for _ in range(rounds):
                ask(process)
                whole = answer(process, clients)
        process, seconds = start(clients, rounds, f"{folder}/killed"), 0.0
        done = 0
        while done < rounds:
            ask(process)
            if fatal and done + 1 == fatal[0]:
                time.sleep(float(generator.uniform(0.1, 0.9)) * seconds)
                process.kill()
                process.wait()
                print(f"killed in round {fatal.pop(0)}", file=sys.stderr, flush=True)
                process = start(clients, rounds, f"{folder}/killed")
                continue
            killed = answer(process, clients)
            done, seconds = killed["round"], killed["seconds"]
        process.communicate()
    same = whole["model_sha256"] == killed["model_sha256"]
    return {"clients": clients, "rounds": rounds, "kills": kills, "same_model": same, "sha256": whole["model_sha256"]}


def summary(found: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Medians from the fifth round on, when caches are warm; peaks of all."""
    counted = {clients: rounds[min(FIRST, len(rounds)) - 1 :] for clients, rounds in found.items()}

    def median(name: str) -> dict[str, float]:
        return {clients: statistics.median(each[name] for each in rounds) for clients, rounds in counted.items()}

    seconds, processors, store = median("seconds"), median("processor_seconds"), median("store_seconds")
    last = {clients: rounds[-1] for clients, rounds in found.items()}
    return {
        "seconds_per_round": seconds,
        "slowest_over_fastest": max(seconds.values()) / min(seconds.values()),
        "processor_seconds_per_round": processors,
        "store_share": {clients: store[clients] / seconds[clients] for clients in seconds},
        "peak_rss_gb": max(each["peak_rss_gb"] for each in last.values()),
        "disk_gb": {clients: each["disk_gb"] for clients, each in last.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each")
    parser.add_argument("--clients", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], help="populations")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kill", type=int, default=0, metavar="TIMES", help="kill and resume the first population")
    options = parser.parse_args()
    if options.alone:
        Population(options.clients[0], options.rounds, options.alone).serve()
        return
    if options.kill:
        print(json.dumps(survive(options.clients[0], options.rounds, options.kill)))
        return
    result = summary(measure(options.clients, options.rounds))
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28s} {value}")


if __name__ == "__main__":
    main()
