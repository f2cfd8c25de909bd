"""Quadratics whose Hessians and optima differ between clients: which methods converge to the optimum, and which do not.

`python benchmarks/quadratic.py` prints the distances and draws docs/figures/quadratic.svg. 10 clients, K = 5 local steps on
full gradients, float64. Client i has f_i(w) = (w - b_i)' A_i (w - b_i) / 2 with A_i diagonal. Each client has one
example, the row (A_i, b_i), and the quadratic is the loss of the task.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import laconic
from laconic.gradients.numerics import Numerics
from laconic.report import COLORS
from laconic.run.simulation import Simulation

CLIENTS, SIZE, STEPS, RATE = 10, 20, 5, 0.1
# Laconic stores features as float32, so compute the optimum from float32 values, too.
GENERATOR = np.random.default_rng(1)
CURVATURES = GENERATOR.uniform(0.5, 2.0, (CLIENTS, SIZE)).astype(np.float32).astype(np.float64)
OPTIMA = GENERATOR.normal(size=(CLIENTS, SIZE)).astype(np.float32).astype(np.float64)


class Point(nn.Module):
    """A model whose only parameter is a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))


def loss(module: Point, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """A client's quadratic. A batch is one row: the diagonal of A_i, then b_i."""
    curvatures, optimum = batch[0][0].double().split(SIZE)
    return (curvatures * (module.point - optimum).square()).sum() / 2


def optimum() -> np.ndarray:
    """Return the minimizer of the mean of all quadratics."""
    return np.asarray((CURVATURES * OPTIMA).sum(0) / CURVATURES.sum(0))


def biased_point() -> np.ndarray:
    """Return the limit of FedAvg with full participation: K local steps shrink the distance to b_i by (1 - a A_i)^K."""
    kept = 1 - (1 - RATE * CURVATURES) ** STEPS
    return np.asarray((kept * OPTIMA).sum(0) / kept.sum(0))


def distances(case: Case, goal: np.ndarray) -> list[float]:
    """Return the distance from the model to `goal` after each round."""
    algorithm, participants, rounds = case
    rows = np.concatenate([CURVATURES, OPTIMA], 1)
    data = laconic.data.from_arrays([(row[None], np.zeros(1)) for row in rows])
    numerics = Numerics(dtype="float64", strategy="loop")
    settings = laconic.Settings(rounds=rounds, participants=participants, eval_every=rounds, numerics=numerics)
    simulation = Simulation(algorithm, laconic.Task(Point(), loss), data, settings)
    try:
        return [float(np.linalg.norm(simulation.server.model.numpy() - goal)) for _ in simulation.rounds()]
    finally:
        simulation.close()


class Case(NamedTuple):
    """One run of the comparison."""

    algorithm: laconic.Algorithm
    participants: int
    rounds: int
    """Enough rounds to come within 1e-8 of the optimum, for methods that converge to it."""


def cases() -> dict[str, Case]:
    """Return the runs to compare."""
    steps: dict[str, Any] = {"local_steps": STEPS, "local_lr": RATE, "batch_size": 1}
    sparse = "top_k:0.1"
    memory, plain = laconic.Compressed(sparse, memory=True), laconic.Compressed(sparse)
    # A smaller rate than the others, because error memories contain the sum of about ten rounds of updates.
    careful = steps | {"local_lr": RATE / 2}
    anchors = steps | {"probability": 0.7}
    return {
        "scaffold, n = 2": Case(laconic.scaffold(**steps), 2, 300),
        "fed_gate, n = 2": Case(laconic.fed_gate(**steps), 2, 500),
        "fed_amd, n = 2": Case(laconic.fed_amd(**anchors), 2, 600),
        "fed_comgate, top_k 0.1 with memory, n = 2": Case(laconic.fed_comgate(uplink=memory, **careful), 2, 2800),
        "scaffnew, random_k 1/4 without memory, n = N": Case(
            laconic.scaffnew(compressor="random_k:1/4", memory=False, **steps), CLIENTS, 300
        ),
        "scaffold, differences by top_k 0.1, n = 2": Case(laconic.scaffold(uplink=plain, **steps), 2, 800),
        "fed_amd, differences by top_k 0.1, n = 2": Case(laconic.fed_amd(uplink=plain, **anchors), 2, 1800),
        "scaffold, n = 1": Case(laconic.scaffold(**steps), 1, 600),
        "fed_amd, n = 1": Case(laconic.fed_amd(**anchors), 1, 1200),
        "fed_gate, n = 1": Case(laconic.fed_gate(**steps), 1, 300),
        "fed_avg, n = 1": Case(laconic.fed_avg(**steps), 1, 300),
        "fed_avg, n = N": Case(laconic.fed_avg(**steps), CLIENTS, 80),
    }


def main() -> None:
    """Print the distances and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    curves = {name: distances(case, optimum()) for name, case in cases().items()}
    found = {name: curve[-1] for name, curve in curves.items()}
    found["fed_avg, n = N, to its biased point"] = distances(cases()["fed_avg, n = N"], biased_point())[-1]
    print(json.dumps(found) if arguments.json else "\n".join(f"{name:45}{value:.2e}" for name, value in found.items()))
    if arguments.figure:
        draw(curves, arguments.figure)


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Draw the distance to the optimum against the round."""
    import matplotlib.pyplot as plot

    figure, axes = plot.subplots(figsize=(10, 4.8), layout="constrained")
    colors = dict(zip(["scaffold", "fed_gate", "fed_amd", "fed_comgate", "fed_avg", "scaffnew"], COLORS, strict=False))
    for name, curve in curves.items():
        style = "--" if "top_k" in name else ":" if "n = 1" in name else "-"
        shown = range(0, len(curve), 5)
        axes.semilogy(
            [place + 1 for place in shown],
            [curve[place] for place in shown],
            style,
            color=colors[name.split(",")[0]],
            label=name,
        )
    axes.axhline(1e-8, color="gray", linewidth=0.8)
    axes.set(xlabel="round", ylabel="distance to the optimum", title="10 clients with unlike quadratics, 5 local steps")
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, fontsize=8, loc="outside right center")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


if __name__ == "__main__":
    main()
