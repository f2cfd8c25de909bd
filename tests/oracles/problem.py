"""What every oracle is given: the clients' gradients, and all random draws made beforehand.

A client whose reply was lost counts as absent: leave it out of `participants`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Indices = NDArray[np.int64]
Gradient = Callable[[int, Vector, Indices], Vector]
PerClient = dict[int, Vector]


@dataclass(frozen=True)
class Problem:
    """One training run without its algorithm."""

    clients: int
    """N, the number of all clients."""
    initial: Vector
    gradient: Gradient
    """gradient(client, w, indices): the mean gradient of the client's samples at those indices."""
    participants: list[list[int]]
    """participants[t], in the order in which they are summed."""
    batches: list[dict[int, list[Indices]]]
    """batches[t][client]: the index arrays of the K local steps."""
    local_rate: float = 0.05
    sizes: list[int] | None = None
    """Samples per client, when the mean is weighted by them; None is the uniform mean."""
    rate_factors: list[float] | None = None
    """What the local rate is multiplied with in each round; None is 1."""
    longest: float | None = None
    """The length that longer gradients are brought to."""

    def rate(self, round: int) -> float:
        """The local rate of a round."""
        return self.local_rate if self.rate_factors is None else self.local_rate * self.rate_factors[round]

    def shortened(self, gradient: Vector) -> Vector:
        """The gradient, no longer than is allowed."""
        length = float(np.linalg.norm(gradient))
        return gradient if self.longest is None or length <= self.longest else gradient * (self.longest / length)

    def short_gradient(self, client: int, w: Vector, indices: Indices) -> Vector:
        """The gradient, shortened."""
        return self.shortened(self.gradient(client, w, indices))


@dataclass
class History:
    """The model after every round, and whatever state the algorithm has, as it was after every round."""

    models: list[Vector] = field(default_factory=list)
    updates: list[PerClient] = field(default_factory=list)
    """u_i of the participants."""
    used: list[PerClient] = field(default_factory=list)
    """What the server took for u_i."""
    memories: list[PerClient] = field(default_factory=list)
    references: list[PerClient] = field(default_factory=list)
    """Lazy and Accelerated: r_i."""
    skips: list[list[int]] = field(default_factory=list)
    """Lazy: who skipped. Accelerated: whose update was accelerated."""
    mirrors: list[PerClient] = field(default_factory=list)
    """Mirrored: z_i, the model that the client has."""
    server_memory: list[Vector] = field(default_factory=list)
    """Broadcast: phi."""
    trackers: list[PerClient] = field(default_factory=list)
    """GradientTracking: T_i."""
    client_states: list[PerClient] = field(default_factory=list)
    """ControlVariates: c_i. AnchorSampling: v_i."""
    server_state: list[Vector] = field(default_factory=list)
    """ControlVariates: c. AnchorSampling: vbar. FedPAGE and BVR-L-SGD: g."""


def mean(problem: Problem, vectors: PerClient) -> Vector:
    """The mean over participants: 1/n each, or by the clients' sizes."""
    total = np.zeros_like(problem.initial)
    if problem.sizes is None:
        for vector in vectors.values():
            total = total + vector
        return total / len(vectors)
    samples = 0
    for client, vector in vectors.items():
        total = total + problem.sizes[client] * vector
        samples = samples + problem.sizes[client]
    return total / samples


def snapshot(vectors: PerClient) -> PerClient:
    """A copy that later rounds cannot change."""
    return {client: vector.copy() for client, vector in vectors.items()}


def local_update(problem: Problem, round: int, client: int, start: Vector) -> Vector:
    """LocalSGD: W <- start; K times W -= a g(W, batch); u = W - start."""
    W = start.copy()
    for batch in problem.batches[round][client]:
        W = W - problem.rate(round) * problem.short_gradient(client, W, batch)
    return W - start
