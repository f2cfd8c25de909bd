"""A small problem that the package and the oracles can both run, on the same named draws.

Softmax regression on clients with unlike data of unequal sizes. The oracle's gradient is written out by hand; the package
differentiates a module. Everything is float64, so that the two may differ by rounding only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

import laconic
from laconic.algorithms.methods.base import LocalMethod
from laconic.algorithms.methods.batches import positions
from laconic.core.randomness import Randomness
from laconic.data import FederatedData, from_arrays
from laconic.federation.sampling import participants
from laconic.gradients.numerics import Numerics
from laconic.run.simulation import Simulation
from tests.oracles.problem import Problem, Vector

FEATURES, CLASSES, SIZES = 6, 3, [7, 12, 5, 20, 9, 16, 4, 11]
BATCH = 4


def client_arrays() -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(5)
    truth = generator.normal(size=(CLASSES, FEATURES))
    arrays = []
    for size in SIZES:
        # Each client sees the features through a shift and a scale of its own, so local optima differ.
        inputs = generator.normal(
            loc=generator.normal(size=FEATURES), scale=generator.uniform(0.5, 2), size=(size, FEATURES)
        )
        # Few enough bits that a run in float32 sees the same numbers, too.
        inputs = inputs.astype(np.float32).astype(np.float64)
        labels = (inputs @ truth.T + generator.normal(size=(size, CLASSES))).argmax(1)
        arrays.append((inputs, labels))
    return arrays


def data() -> FederatedData:
    return from_arrays(client_arrays(), classes=CLASSES)


def module() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, CLASSES)).double()


def gradient(client: int, w: Vector, indices: np.ndarray) -> Vector:
    """The gradient of the mean cross-entropy of softmax(x W^T + b), by hand; w is W row by row, then b."""
    inputs, labels = client_arrays()[client]
    x, y = inputs[indices], labels[indices]
    weights, bias = w[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), w[FEATURES * CLASSES :]
    logits = x @ weights.T + bias
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    residual = exponentials / exponentials.sum(1, keepdims=True)
    residual[np.arange(len(y)), y] -= 1
    residual /= len(y)
    return np.concatenate([(residual.T @ x).ravel(), residual.sum(0)])


@dataclass(frozen=True)
class Setting:
    """One run of the small problem."""

    rounds: int = 20
    participants: int = 3
    seed: int = 11
    local_steps: int | None = 4
    local_epochs: int | None = None
    weighting: str = "uniform"
    strategy: str = "auto"

    def oracle(
        self, local_rate: float = 0.05, rate_factors: list[float] | None = None, longest: float | None = None
    ) -> Problem:
        """The same run for an oracle: the draws are made with the package's named randomness."""
        randomness = Randomness(self.seed)
        chosen = [
            participants("uniform", len(SIZES), self.participants, t, randomness, lambda: np.array(SIZES))
            for t in range(self.rounds)
        ]
        batches = [{client: self._batches(randomness, t, client) for client in chosen[t]} for t in range(self.rounds)]
        initial = torch.cat([p.detach().reshape(-1) for p in module().parameters()]).numpy()
        sizes = SIZES if self.weighting == "size" else None
        return Problem(len(SIZES), initial, gradient, chosen, batches, local_rate, sizes, rate_factors, longest)

    def _batches(self, randomness: Randomness, t: int, client: int) -> list[np.ndarray]:
        generator = randomness.numpy("batches", t, client)
        counts = (self.local_steps, self.local_epochs)
        return list(positions(SIZES[client], BATCH, *counts, "shuffled", generator))

    def simulation(self, algorithm: laconic.Algorithm) -> Simulation:
        settings = laconic.Settings(
            rounds=self.rounds,
            participants=self.participants,
            seed=self.seed,
            weighting=self.weighting,
            numerics=Numerics(dtype="float64", strategy=self.strategy),
        )
        work = {"local_epochs": self.local_epochs} if self.local_epochs else {"local_steps": self.local_steps}
        if isinstance(algorithm.method, LocalMethod):
            algorithm = algorithm.replace(batch_size=BATCH, **work)
        return Simulation(algorithm, laconic.classification(module()), data(), settings)

    def models(self, algorithm: laconic.Algorithm) -> list[np.ndarray]:
        """The package's model after every round."""
        simulation = self.simulation(algorithm)
        try:
            return [simulation.server.model.numpy().copy() for _ in simulation.rounds()]
        finally:
            simulation.close()
