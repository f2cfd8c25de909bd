"""Evaluation of the server's model on examples."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from laconic.core.layout import Layout
from laconic.core.task import Task

BATCH = 500
Measured = tuple[int, dict[str, Tensor]]
Mapper = Callable[[Callable[[int], Measured], Iterable[int]], Iterable[Measured]]
"""Maps a function over batches, in order: `map`, or an engine's threads."""


class Measurable(Protocol):
    """Examples that a model can be evaluated on."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and targets at `indices`."""
        ...


def evaluate(
    mapper: Mapper, task: Task, layout: Layout, model: Tensor, buffers: Tensor, examples: Measurable
) -> dict[str, float]:
    """Compute every metric of the task, averaged over the examples."""
    module = copy.deepcopy(task.module).eval()
    layout.write(module, model, buffers)
    starts = range(0, len(examples), BATCH)

    def measure(start: int) -> Measured:
        indices = torch.arange(start, min(start + BATCH, len(examples)))
        inputs, targets = examples.batch(indices, layout.dtype)
        with torch.inference_mode():
            return len(indices), task.measure(module, (inputs.to(model.device), targets.to(model.device)))

    sums: dict[str, float] = defaultdict(float)
    for count, values in mapper(measure, starts):
        for name, value in values.items():
            sums[name] += float(value) * count
    return {name: total / len(examples) for name, total in sums.items()}
