"""What newcomers try, each with the line that does it. docs/practice.md has them as a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import laconic


@dataclass(frozen=True)
class Thing:
    """Something that people try."""

    group: str
    title: str
    line: str
    try_it: Callable[..., None]
    """Runs the line with names for what it mentions, and checks what comes out."""

    def do(self, **names: Any) -> Any:
        """The value of the line."""
        return eval(self.line, {"laconic": laconic, "nn": nn, "torch": torch, **names})


THINGS: list[Thing] = []


def thing(group: str, title: str, line: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that tries a line. It gets `do`, which evaluates the line, and an empty folder."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        THINGS.append(Thing(group, title, line, function))
        return function

    return register


RIGHT, TRAIN, DATA, PYTHON = "Metrics and weights", "Training", "Data", "Python"


def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def arrays(count: int = 3, rows: int = 12, classes: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        targets = generator.integers(0, classes, rows)
        pairs.append((generator.normal(targets[:, None], 0.5, (rows, 4)).astype("float32"), targets))
    return pairs


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))


def sentences() -> Any:
    hub = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    generator = np.random.default_rng(0)
    words, labels = generator.integers(5, 20, (40, 6)), generator.integers(0, 2, 40)
    words[:, 0] = 3 + labels
    columns = {"input_ids": words, "attention_mask": np.ones_like(words), "label": labels}
    return hub.Dataset.from_dict(columns).train_test_split(0.25, seed=0)
