"""Run by test_other_machines.py: prints the width of the vectors, and how far the compiled kernels are from torch."""

from __future__ import annotations

import torch
from torch import nn

import laconic
from laconic.core.layout import Layout
from laconic.gradients.emitter import VECTOR_BYTES
from laconic.gradients.numerics import Numerics
from laconic.gradients.strategies import make_gradients

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 5, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(5 * 9, 3),
)
task, layout = laconic.classification(module), Layout.of(module)
batch = torch.randn(20, 1, 8, 8), torch.randint(3, (20,))
model = layout.flatten(module)[None]
compiled, expected = (
    make_gradients(task, layout, Numerics(strategy=strategy), "no", frozen=False)(
        model, model.new_empty(1, 0), [batch], lambda row: row
    )[0]
    for strategy in ("compiled", "loop")
)
print(VECTOR_BYTES, float((compiled - expected).abs().max() / expected.abs().max()))
