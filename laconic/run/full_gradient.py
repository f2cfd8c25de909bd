"""The training objective over all clients at the server's model: its gradient, its loss, and the gradients' similarity.

The papers plot the squared norm of the full gradient and the training loss over all clients. FedCOMGATE's paper [G,
equation (7)] shows the cosine similarity of each pair of clients' full gradients as a heat map. Measuring them takes a pass
over all data, so it happens only at evaluations and only with `--full-gradient`. A real server cannot measure them.
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
"""The number of clients, from client 0, whose gradients are compared with each other."""


class FullGradient:
    """Measures the objective, and keeps the last similarity matrix."""

    def __init__(self, engine: InlineEngine, weighting: str) -> None:
        self.engine, self.weighting = engine, weighting
        self.similarity: np.ndarray | None = None
        """[n, n]: cosine similarities of the clients' gradients at the last measurement."""

    def measure(self, server: Server) -> dict[str, float]:
        """The squared norm of the mean gradient and the mean loss over all clients."""
        data, chunk = self.engine.runtime.data, self.engine.chunk
        chunks = [range(start, min(start + chunk, len(data))) for start in range(0, len(data), chunk)]
        total = torch.zeros_like(server.model)
        loss = weights = 0.0
        compared: list[Tensor] = []
        # Chunks are added in order, so the sum does not depend on the number of threads.
        for clients, (gradients, losses) in zip(
            chunks, self.engine.map(lambda clients: self._gradients(server, clients), chunks), strict=True
        ):
            for client, gradient, client_loss in zip(clients, gradients, losses, strict=True):
                weight = 1.0 if self.weighting == "uniform" else float(data.size(client))
                total.add_(gradient, alpha=weight)
                loss, weights = loss + weight * client_loss, weights + weight
                if client < COMPARED:
                    compared.append(gradient.cpu())
        self.similarity = cosines(torch.stack(compared))
        norm = torch.linalg.vector_norm(total.double() / weights)
        return {"gradient_norm_squared": float(norm**2), "objective": loss / weights}

    def _gradients(self, server: Server, clients: Sequence[int]) -> tuple[Tensor, list[float]]:
        runtime = self.engine.runtime
        cohort = Cohort(
            round=server.round,
            phase="full gradient",
            clients=list(clients),
            states=[{} for _ in clients],
            models=server.model.repeat(len(clients), 1),
            buffers=server.buffers.repeat(len(clients), 1),
            task=runtime.task,
            layout=server.layout,
            data=runtime.data,
            randomness=runtime.randomness,
            _gradients=self.engine.gradients.at(server.layout),
            augment=False,
        )
        return cohort.large_gradients([cohort.models])[0], cohort.mean_losses()


def cosines(vectors: Tensor) -> np.ndarray:
    """[n, n]: the cosine similarity of each pair of rows; 0 where a row is zero.

    >>> cosines(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).round(3).tolist()
    [[1.0, 0.707], [0.707, 1.0]]
    """
    rows = vectors.double()
    rows = rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-300)
    return np.asarray((rows @ rows.T).numpy())
