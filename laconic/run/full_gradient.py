"""The whole training objective at the server's model: its gradient, its loss, and how alike the clients' gradients are.

The papers plot the squared norm of the full gradient and the training loss over all clients; FedCOMGATE's paper [G,
equation (7)] shows the cosine similarity of every two clients' full gradients as a heat map. A pass over all data, so it is
made with evaluations only, and only if asked for (`--full-gradient`). No real server could make it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.methods.cohort import Cohort
from laconic.engine.inline import InlineEngine
from laconic.federation.server import Server

COMPARED = 100
"""Of so many clients, the first, the gradients are compared with each other."""


class FullGradient:
    """Measures the objective; keeps the last comparison."""

    def __init__(self, engine: InlineEngine, weighting: str) -> None:
        self.engine, self.weighting = engine, weighting
        self.similarity: np.ndarray | None = None
        """[n, n]: cosines of the clients' gradients at the last measurement."""

    def measure(self, server: Server) -> dict[str, float]:
        """The squared norm of the gradient, and the loss, both as means over all clients."""
        data, chunk = self.engine.runtime.data, self.engine.chunk
        chunks = [range(start, min(start + chunk, len(data))) for start in range(0, len(data), chunk)]
        total = torch.zeros_like(server.model)
        loss = weights = 0.0
        compared: list[Tensor] = []
        # One chunk after the other is folded in order, so the sum does not depend on the threads.
        for clients, (gradients, losses) in zip(
            chunks, self.engine.map(lambda clients: self._visit(server, clients), chunks), strict=True
        ):
            for client, gradient, each in zip(clients, gradients, losses, strict=True):
                weight = 1.0 if self.weighting == "uniform" else float(data.size(client))
                total.add_(gradient, alpha=weight)
                loss, weights = loss + weight * each, weights + weight
                if client < COMPARED:
                    compared.append(gradient.cpu())
        self.similarity = cosines(torch.stack(compared))
        norm = torch.linalg.vector_norm(total.double() / weights)
        return {"gradient_norm_squared": float(norm**2), "objective": loss / weights}

    def _visit(self, server: Server, clients: Sequence[int]) -> tuple[Tensor, list[float]]:
        runtime = self.engine.runtime
        cohort = Cohort(
            round=server.round,
            phase="full gradient",
            clients=list(clients),
            states=[{} for _ in clients],
            models=server.model.repeat(len(clients), 1),
            buffers=server.buffers.repeat(len(clients), 1),
            task=runtime.task,
            layout=runtime.layout,
            data=runtime.data,
            randomness=runtime.randomness,
            _gradients=self.engine.gradients,
        )
        return cohort.large_gradients([cohort.models])[0], cohort.mean_losses()


def cosines(vectors: Tensor) -> np.ndarray:
    """[n, n]: the cosine of every two rows; 0 where a row is zero.

    >>> cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).round(3).tolist()
    [[1.0, 0.707], [0.707, 1.0]]
    """
    rows = vectors.double()
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-300)
    return np.asarray((rows @ rows.T).numpy())
