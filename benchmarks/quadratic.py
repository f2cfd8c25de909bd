"""A quadratic with unlike Hessians and optima: which methods reach the optimum, and which stop at a biased point.

`python benchmarks/quadratic.py` prints the distances and draws docs/figures/quadratic.svg. 10 clients, K = 5 local steps on
full gradients, float64. Client i has f_i(w) = (w - b_i)' A_i (w - b_i) / 2 with A_i diagonal; it is given to Laconic as a
linear regression with one example per coordinate, so nothing of the package is bypassed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import laconic
from laconic.engine.numerics import Numerics
from laconic.run.simulation import Simulation

CLIENTS, SIZE, STEPS, RATE = 10, 20, 5, 0.1
# Features are kept as float32: the goal must be that of the numbers that the package sees.
GENERATOR = np.random.default_rng(1)
CURVATURES = GENERATOR.uniform(0.5, 2.0, (CLIENTS, SIZE)).astype(np.float32).astype(np.float64)
OPTIMA = GENERATOR.normal(size=(CLIENTS, SIZE)).astype(np.float32).astype(np.float64)


class Point(nn.Module):
    """A model that is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))


def loss(module: Point, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The client's quadratic; a batch is one row with its curvatures and its optimum."""
    curvatures, optimum = batch[0][0].double().split(SIZE)
    return (curvatures * (module.point - optimum).square()).sum() / 2


def optimum() -> np.ndarray:
    """Where the mean of all quadratics is smallest."""
    return np.asarray((CURVATURES * OPTIMA).sum(0) / CURVATURES.sum(0))


def biased_point() -> np.ndarray:
    """Where FedAvg with everybody stops, in closed form: K steps leave (1 - a A_i)^K of the way to b_i."""
    kept = 1 - (1 - RATE * CURVATURES) ** STEPS
    return np.asarray((kept * OPTIMA).sum(0) / kept.sum(0))


def distances(algorithm: laconic.Algorithm, participants: int, rounds: int, goal: np.ndarray) -> list[float]:
    """How far the model is from `goal` after every round."""
    rows = np.concatenate([CURVATURES, OPTIMA], 1)
    data = laconic.data.from_arrays([(row[None], np.zeros(1)) for row in rows])
    numerics = Numerics(dtype="float64", strategy="loop")
    settings = laconic.Settings(rounds=rounds, participants=participants, eval_every=rounds, numerics=numerics)
    simulation = Simulation(algorithm, laconic.Task(Point(), loss), data, settings)
    try:
        return [float(np.linalg.norm(simulation.server.model.numpy() - goal)) for _ in simulation.rounds()]
    finally:
        simulation.close()


def cases() -> dict[str, tuple[laconic.Algorithm, int]]:
    """What is compared, and with how many participants."""
    steps: dict[str, Any] = {"local_steps": STEPS, "local_lr": RATE, "batch_size": 1}
    top_k = laconic.ErrorFeedback(laconic.parse_compressor("top_k:0.1"))
    compressed = laconic.Compressed(laconic.parse_compressor("top_k:0.5"))
    few: dict[str, Callable[..., laconic.Algorithm]] = {
        "scaffold": laconic.scaffold,
        "fed_gate": laconic.fed_gate,
        "fed_amd": lambda **given: laconic.fed_amd(probability=0.5, **given),
    }
    made = {f"{name}, n = 2": (recipe(**steps), 2) for name, recipe in few.items()}
    made |= {
        "fed_comgate with top_k and memory, n = 2": (laconic.fed_comgate(uplink=top_k, **steps), 2),
        "scaffold, compressed differences, n = 2": (laconic.scaffold(uplink=compressed, **steps), 2),
        "fed_amd, compressed differences, n = 2": (few["fed_amd"](uplink=compressed, **steps), 2),
        "scaffold, n = 1": (laconic.scaffold(**steps), 1),
        "fed_amd, n = 1": (few["fed_amd"](**steps), 1),
        "fed_gate, n = 1": (laconic.fed_gate(**steps), 1),
        "fed_avg, n = 1": (laconic.fed_avg(**steps), 1),
        "fed_avg, n = N": (laconic.fed_avg(**steps), CLIENTS),
    }
    return made


def main() -> None:
    """Print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    curves = {
        name: distances(algorithm, participants, arguments.rounds, optimum())
        for name, (algorithm, participants) in cases().items()
    }
    stopped = distances(*cases()["fed_avg, n = N"], arguments.rounds, biased_point())
    found = {name: curve[-1] for name, curve in curves.items()}
    found["fed_avg, n = N, to its biased point"] = stopped[-1]
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:45}{value:.2e}" for name, value in found.items()))
    if arguments.figure:
        draw(curves, arguments.figure)


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Distance to the optimum, round by round."""
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, curve in curves.items():
        axes.semilogy(range(1, len(curve) + 1), curve, label=name)
    axes.set(xlabel="round", ylabel="distance to the optimum")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
