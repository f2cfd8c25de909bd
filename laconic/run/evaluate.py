"""The server's model on the test examples."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laconic.data.federated import Examples
from laconic.layout import Layout
from laconic.task import Task

if TYPE_CHECKING:
    from laconic.engine.inline import InlineEngine

BATCH = 500


def evaluate(
    engine: InlineEngine, task: Task, layout: Layout, model: Tensor, buffers: Tensor, examples: Examples
) -> dict[str, float]:
    """Every metric of the task, averaged over the examples; batches run on the engine's threads."""
    module = copy.deepcopy(task.module).eval()
    layout.write(module, model, buffers)
    starts = range(0, len(examples), BATCH)

    def measure(start: int) -> tuple[int, dict[str, Tensor]]:
        indices = torch.arange(start, min(start + BATCH, len(examples)))
        inputs, targets = examples.batch(indices, layout.dtype)
        with torch.inference_mode():
            return len(indices), task.measure(module, (inputs.to(model.device), targets.to(model.device)))

    sums: dict[str, float] = defaultdict(float)
    for count, values in engine.map(measure, starts):
        for name, value in values.items():
            sums[name] += float(value) * count
    return {name: total / len(examples) for name, total in sums.items()}
