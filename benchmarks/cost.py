"""The time of a round as a function of model size, participants and population, with two lower limits.

    python benchmarks/cost.py [--json] [--figure docs/figures/cost.svg] [--largest 1e8]

fed_cams with sign on MLPs 784-h-10, with generated client data. The limits are measured in the same run: the same gradients
in plain PyTorch with as many intra-op threads, and one copy in memory of a vector of the model's length per client. `slope`
is that of the line fitted in log-log scale: 1 is proportional, 0 is constant.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import laconic
from laconic import models
from laconic.core.randomness import Randomness
from laconic.data import GeneratedData
from laconic.report import COLORS
from laconic.run.simulation import Simulation

EXAMPLES, BATCH, THREADS = 64, 32, 2


def make(client: int) -> tuple[np.ndarray, np.ndarray]:
    """Random data with labels: only the amount of work matters."""
    generator = Randomness(0).numpy("data", client=client)
    return generator.standard_normal((EXAMPLES, 784), dtype=np.float32), generator.integers(0, 10, EXAMPLES)


def median_seconds(action: Callable[[], Any], repeats: int) -> float:
    """Return the median of several timings after a warm-up."""
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def bare_gradients(module: nn.Module, clients: int, steps: int) -> Callable[[], None]:
    """Time the same number of gradients on the same number of examples."""
    inputs, targets = (torch.from_numpy(part)[:BATCH] for part in make(0))
    parameters = list(module.parameters())

    def action() -> None:
        torch.set_num_threads(THREADS)
        for _ in range(clients * steps):
            torch.autograd.grad(F.cross_entropy(module(inputs), targets), parameters)

    return action


def copies(size: int, clients: int) -> Callable[[], None]:
    """Time one copy of a vector of the model's length per client."""
    source, target = torch.zeros(size), torch.zeros(size)

    def action() -> None:
        for _ in range(clients):
            target.copy_(source)

    return action


def cost(hidden: int, participants: int, population: int, steps: int, repeats: int) -> dict[str, float]:
    """Seconds of a round, and of its limits."""
    module = models.build(f"mlp:{hidden}", (784,), 10)
    size = sum(parameter.numel() for parameter in module.parameters())
    data = GeneratedData(population, EXAMPLES, make, kind="classification", classes=10)
    algorithm = laconic.fed_cams(compressor="sign", local_steps=steps, batch_size=BATCH, local_lr=0.05)
    settings = laconic.Settings(rounds=repeats + 2, participants=participants, eval_every=repeats + 2, threads=THREADS)
    simulation = Simulation(algorithm, laconic.classification(module), data, settings)
    rounds = simulation.rounds()
    seconds = median_seconds(lambda: next(rounds), repeats)
    rounds.close()
    simulation.close()
    gc.collect()
    return {
        "parameters": size,
        "participants": participants,
        "population": population,
        "seconds": seconds,
        "gradients_alone": median_seconds(bare_gradients(module, participants, steps), repeats),
        "copies": median_seconds(copies(size, participants), repeats),
    }


def slope(points: list[dict[str, float]], against: str, what: str = "seconds") -> float:
    """Fit the slope in log-log scale."""
    return float(np.polyfit(np.log([p[against] for p in points]), np.log([p[what] for p in points]), 1)[0])


def measure(largest: float) -> dict[str, Any]:
    """The three sweeps."""
    sizes = [size for size in (1e5, 1e6, 1e7, 1e8) if size <= largest]
    sweeps = {
        "parameters": [cost(round(size / 795), 4, 4, 2, 3) for size in sizes],
        "participants": [cost(64, count, 1000, 10, 3) for count in (10, 30, 100, 300, 1000)],
        "population": [cost(64, 100, count, 10, 3) for count in (1_000, 10_000, 100_000, 1_000_000)],
    }
    return {
        name: {
            "points": points,
            "slope": slope(points, name),
            "slope_of_gradients": slope(points, name, "gradients_alone"),
        }
        for name, points in sweeps.items()
    }


def draw(found: dict[str, Any], path: Path) -> None:
    """Three panels with equal vertical axes."""
    import matplotlib.pyplot as plot

    figure, panels = plot.subplots(1, len(found), figsize=(11, 3.8), sharey=True, layout="constrained")
    names = {"parameters": "parameters d", "participants": "clients in a round", "population": "population"}
    for axes, (name, sweep) in zip(panels, found.items(), strict=True):
        places = [point[name] for point in sweep["points"]]
        lines = (
            ("seconds", "a round of fed_cams (sign)", "o-"),
            ("gradients_alone", "its gradients in plain PyTorch", "s--"),
            ("copies", "one copy in memory per client", ":"),
        )
        for color, (key, label, style) in zip(COLORS, lines, strict=False):
            axes.loglog(places, [point[key] for point in sweep["points"]], style, color=color, label=label)
        axes.set(xlabel=names[name], title=f"slope {sweep['slope']:.2f}")
        axes.grid(alpha=0.3, which="both")
    panels[0].set(ylabel="seconds")
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path)


def main() -> None:
    """Measure, and print or draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--figure", type=Path, help="draw to this file")
    parser.add_argument("--largest", type=float, default=1e8, help="the largest model")
    options = parser.parse_args()
    found = measure(options.largest)
    if options.figure:
        draw(found, options.figure)
    if options.json:
        print(json.dumps(found))
        return
    for name, sweep in found.items():
        print(f"{name}: slope {sweep['slope']:.2f}, of the gradients alone {sweep['slope_of_gradients']:.2f}")
        for point in sweep["points"]:
            print("  " + ", ".join(f"{key} {value:,.4g}" for key, value in point.items()))


if __name__ == "__main__":
    main()
