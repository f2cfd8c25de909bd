"""Evaluation by client: the model on the examples that each client holds out, before and after local steps.

A mean over all test examples hides clients that the model does not serve. So each metric is computed for each client.
A record has its mean over clients, its mean over the worst tenth of the clients, and its standard deviation over clients.
Each client counts once, whatever its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from laconic.algorithms.methods.cohort import Cohort
from laconic.algorithms.methods.local_sgd import LocalSGD
from laconic.core.layout import Layout
from laconic.core.task import Task
from laconic.data.federated import ClientData, Indices
from laconic.engine.inline import InlineEngine
from laconic.federation.server import Server
from laconic.run.evaluate import ClientExamples, evaluate
from laconic.run.target import lower_is_better

GLOBAL, PERSONAL = "client", "personal"
"""The prefixes of the metrics of the server's model, and of the models after local steps."""


class ClientEvaluation:
    """Evaluates on held-out examples, and keeps the last values of every client.

    Args:
        data: All examples of the engine's clients.
        held_out: By client, the positions of the examples in `data` that it does not train on.
        steps: The number of local steps before a second evaluation; None for no second evaluation.
    """

    def __init__(
        self, engine: InlineEngine, task: Task, data: ClientData, held_out: Sequence[Indices], steps: int | None
    ) -> None:
        self.engine, self.task, self.data, self.held_out = engine, task, data, held_out
        self.clients = [client for client, positions in enumerate(held_out) if len(positions)]
        """The clients that hold out examples."""
        self.method = None if steps is None else personal_method(engine, steps)
        self.values: dict[str, list[float]] = {}
        """The last value of each metric for each of `clients`."""

    def measure(self, server: Server) -> dict[str, float]:
        """Evaluate all clients, and summarize each metric."""
        chunk = self.engine.chunk
        chunks = [self.clients[start : start + chunk] for start in range(0, len(self.clients), chunk)]
        measured = [
            row for rows in self.engine.map(lambda clients: self._measure(server, clients), chunks) for row in rows
        ]
        # A client none of whose held-out targets counts has no metrics.
        names = dict.fromkeys(name for row in measured for name in row)
        self.values = {name: [row.get(name, math.nan) for row in measured] for name in names}
        counts = {"clients_evaluated": len(self.clients), "clients_left_out": len(self.held_out) - len(self.clients)}
        metrics = self.task.named_metrics()
        summaries = (summarize(name, values, metrics) for name, values in self.values.items())
        return counts | {key: value for summary in summaries for key, value in summary.items()}

    def names(self, metrics: Iterable[str]) -> set[str]:
        """The keys of `measure` for these metrics of the task."""
        prefixes = [GLOBAL] if self.method is None else [GLOBAL, PERSONAL]
        return {key for prefix, name in product(prefixes, metrics) for key in summarize(f"{prefix}_{name}", [0.0])}

    def _measure(self, server: Server, clients: Sequence[int]) -> list[dict[str, float]]:
        """The metrics of each client of a chunk."""
        models, buffers = server.model.expand(len(clients), -1), server.buffers.expand(len(clients), -1)
        layout = server.layout
        rows = [
            self._evaluate(GLOBAL, layout, client, *row) for client, *row in zip(clients, models, buffers, strict=True)
        ]
        if self.method is None:
            return rows
        runtime = self.engine.runtime
        cohort = Cohort(
            round=server.round,
            phase=PERSONAL,
            clients=clients,
            states=[{} for _ in clients],
            models=models,
            buffers=buffers.clone(),
            task=runtime.task,
            layout=server.layout,
            data=runtime.data,
            randomness=runtime.randomness,
            _gradients=self.engine.gradients.at(server.layout),
        )
        updates = self.method.local(cohort)
        assert isinstance(updates, Tensor)
        personal = zip(clients, models + updates, cohort.buffers, strict=True)
        return [before | self._evaluate(PERSONAL, layout, *after) for before, after in zip(rows, personal, strict=True)]

    def _evaluate(self, prefix: str, layout: Layout, client: int, model: Tensor, buffers: Tensor) -> dict[str, float]:
        examples = ClientExamples(self.data, client, self.held_out[client])
        metrics = evaluate(map, self.task, layout, model, buffers, examples)
        return {f"{prefix}_{name}": value for name, value in metrics.items()}


def personal_method(engine: InlineEngine, steps: int) -> LocalSGD:
    """SGD for some steps, with the rate, batches and local optimizer of the run's method as far as it has them."""
    method = engine.runtime.algorithm.method
    names = ("local_lr", "batch_size", "batch_order", "local_schedule", "clip_norm", "local_optimizer")
    shared = {name: getattr(method, name) for name in names if name in method.parameters()}
    return LocalSGD(local_steps=steps, **shared)


def summarize(name: str, values: Iterable[float], metrics: Mapping[str, Any] | None = None) -> dict[str, float]:
    """The mean over clients, the mean of the worst tenth of them, and the standard deviation.

    `metrics` are the task's, which may say that lower is better. A client for which a metric is not defined, such as the
    AUROC of one class, is left out.

    >>> summarize("client_accuracy", [0.5, 1.0])
    {'client_accuracy': 0.75, 'worst_client_accuracy': 0.5, 'client_accuracy_spread': 0.25}
    """
    ordered = np.sort([value for value in values if math.isfinite(value)])
    if not len(ordered):
        return {}
    if lower_is_better(name, metrics):
        ordered = ordered[::-1]
    worst = ordered[: -(-len(ordered) // 10)]
    return {name: float(ordered.mean()), f"worst_{name}": float(worst.mean()), f"{name}_spread": float(ordered.std())}
