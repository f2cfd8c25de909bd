"""How fast the simulation is, as a ratio to a plain PyTorch loop measured in the same run, round by round in turn.

    python benchmarks/simulation.py [--json] [--rounds 15]

W1 is FedAMD's setting: LeNet-5 on Fashion-MNIST, 100 clients x 600 samples, 20 per round, 10 steps of 64. Where the data
set is not at hand, random images of the same shape take its place: the work is the same.

`overhead_fraction` is the part of a round's processor time, of all threads, that is not spent inside gradient calls:
gathering batches, local steps, packets, checksums, aggregation, the optimiser. `wall_outside_gradients` is stricter: the
part of threads x wall time outside gradient calls, so it also counts a thread that has nothing to do while the other
finishes the last client of the round.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic import models
from laconic.data import Examples, FederatedData
from laconic.engine import inline
from laconic.engine.gradients import Gradients
from laconic.run.simulation import Simulation, initial_module


@dataclass(frozen=True)
class Work:
    """One workload."""

    model: str
    clients: int
    size: int
    participants: int
    steps: int
    batch: int
    local_lr: float = 0.02

    @property
    def samples_per_round(self) -> int:
        return self.participants * self.steps * self.batch


WORKS = {
    "W1": Work("lenet5", clients=100, size=600, participants=20, steps=10, batch=64),
    "W2": Work("mlp:200,200", clients=1000, size=60, participants=100, steps=5, batch=32),
    "W3": Work("cnn", clients=200, size=300, participants=20, steps=10, batch=32),
}
THREADS = 2


def load_data(work: Work) -> FederatedData:
    try:
        data = laconic.data.load("fashion-mnist", clients=work.clients, partition="iid", download=False)
        assert isinstance(data, FederatedData)
        return data
    except laconic.DataError:
        generator = np.random.default_rng(0)
        count = work.clients * work.size
        images = torch.from_numpy(generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8))
        labels = torch.from_numpy(generator.integers(0, 10, count))
        split = list(np.arange(count).reshape(work.clients, work.size))
        return FederatedData("random", "classification", Examples(images, labels, ((0.5,), (0.5,))), split, None, 10)


class BareLoop:
    """What a person writes without a framework: deepcopy, torch.optim.SGD, index batches, average of state dicts."""

    def __init__(self, work: Work, data: FederatedData, model: nn.Module) -> None:
        self.work, self.model = work, model
        self.inputs, self.targets = data.examples.batch(torch.arange(len(data.examples)))
        self.clients = [torch.from_numpy(indices) for indices in data.clients]
        self.generator = np.random.default_rng(0)

    def round(self) -> None:
        states = []
        for client in self.generator.choice(self.work.clients, self.work.participants, replace=False):
            local = copy.deepcopy(self.model)
            optimizer = torch.optim.SGD(local.parameters(), lr=self.work.local_lr)
            indices = self.clients[client]
            order = indices[torch.randperm(len(indices))].repeat(1 + self.work.steps * self.work.batch // len(indices))
            for step in range(self.work.steps):
                batch = order[step * self.work.batch : (step + 1) * self.work.batch]
                optimizer.zero_grad()
                F.cross_entropy(local(self.inputs[batch]), self.targets[batch]).backward()
                optimizer.step()
            states.append(local.state_dict())
        mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
        self.model.load_state_dict(mean)


class Timed:
    """A gradient function that adds up the time spent inside."""

    wall = 0.0
    processor = 0.0

    def __init__(self, inner: Gradients) -> None:
        self.inner = inner

    def __call__(self, *arguments: Any) -> Any:
        wall, processor = time.perf_counter(), time.thread_time()
        result = self.inner(*arguments)
        Timed.wall += time.perf_counter() - wall
        Timed.processor += time.thread_time() - processor
        return result


def seconds(action: Callable[[], Any]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def make_simulation(work: Work, data: FederatedData, rounds: int) -> Simulation:
    module = initial_module(lambda: models.build(work.model, (1, 28, 28), 10), 0)
    algorithm = laconic.fed_avg(local_lr=work.local_lr, local_steps=work.steps, batch_size=work.batch)
    # An evaluation every `rounds` + 1 rounds is none: the bare loop does not evaluate either.
    settings = laconic.Settings(
        rounds=rounds + 1, participants=work.participants, eval_every=rounds + 1, threads=THREADS
    )
    return Simulation(algorithm, laconic.classification(module), data, settings)


def measure(work: Work, rounds: int) -> dict[str, float]:
    """Laconic and the bare loop, a round each in turn."""
    data = load_data(work)
    torch.set_num_threads(THREADS)
    bare = BareLoop(work, data, initial_module(lambda: models.build(work.model, (1, 28, 28), 10), 0))
    plain_make = inline.make_gradients
    inline.make_gradients = lambda *arguments: Timed(plain_make(*arguments))
    simulation = make_simulation(work, data, rounds + 2)
    own_rounds = simulation.rounds()

    def our_round() -> None:
        torch.set_num_threads(1)
        next(own_rounds)

    def their_round() -> None:
        torch.set_num_threads(THREADS)
        bare.round()

    our_round(), their_round()
    Timed.wall = Timed.processor = processor = 0.0
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(seconds(their_round))
        before = time.process_time()
        ours.append(seconds(our_round))
        processor += time.process_time() - before
    own_rounds.close()
    simulation.close()
    inline.make_gradients = plain_make
    return {
        "speedup_over_bare_loop": statistics.median(b / o for b, o in zip(theirs, ours, strict=True)),
        "samples_per_second": work.samples_per_round / statistics.median(ours),
        "overhead_fraction": 1 - Timed.processor / processor,
        "wall_outside_gradients": 1 - Timed.wall / (THREADS * sum(ours)),
        "seconds_per_round": statistics.median(ours),
        "bare_loop_seconds_per_round": statistics.median(theirs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15, help="rounds of each")
    parser.add_argument("--works", nargs="*", choices=list(WORKS), default=list(WORKS), help="which workloads")
    options = parser.parse_args()
    results = {name: measure(WORKS[name], options.rounds) for name in options.works}
    if options.json:
        print(json.dumps(results))
        return
    for name, numbers in results.items():
        print(name)
        for key, value in numbers.items():
            print(f"  {key:32s} {value:12.4g}")


if __name__ == "__main__":
    main()
