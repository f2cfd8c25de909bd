"""What the server tells every node once, before its first instruction: the run, settled in full.

A node then computes what a simulation with the same settings would, bit for bit. The plan holds names and numbers only;
parts are looked up and checked as those of a config are. Model and data are the node's own; that the model is the server's
is checked by its form and its initial weights.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from laconic import models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.methods.own_training import OwnTraining
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS, find_part, make_part
from laconic.core.task import TASKS, Task
from laconic.data.federated import Kind
from laconic.gradients.numerics import Numerics
from laconic.run.simulation import initial_module

Model = str | nn.Module | Task | Callable[[], nn.Module | Task]
"""A model's name, a function that builds it (under the run's seed), or the thing itself."""


class Shape(BaseModel):
    """What a model must know of the data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    classes: int | None
    input_shape: tuple[int, ...]


class Plan(BaseModel):
    """A run as every node must know it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """The run's name, drawn at its start: a server that starts again under another run directory is another run."""
    name: str
    """The algorithm's."""
    parts: dict[str, dict[str, Any]]
    seed: int
    clients: int
    """The population."""
    partition: str | None
    numerics: Numerics
    buffers: Literal["mean", "frozen"]
    shape: Shape | None
    fingerprint: int
    """Of the model's layout."""
    initial: str
    """The hash of the initial weights."""

    def algorithm(self) -> Algorithm:
        """The algorithm, part by part; a node runs no code by a name that comes from outside."""
        if self.parts.get("method", {}).get("name") == OwnTraining.name:
            raise ConfigError("method = 'own_training': give client_app the same algorithm as server_app")
        made: dict[str, Any] = {}
        for slot in SLOTS:
            table = dict(self.parts.get(slot, {}))
            made[slot] = make_part(find_part(slot, str(table.pop("name", ""))), table)
        return Algorithm(**made, name=self.name)


def make_model(model: Model, seed: int, shape: Shape | None) -> Task:
    """The task with the initial weights that follow from the seed."""
    if isinstance(model, str):
        if shape is None:
            raise ConfigError(f"model = '{model}': without data its shape is not known; give data, or a function")
        name = model
        built: nn.Module | Task = initial_module(
            lambda: models.build(name, shape.input_shape, shape.classes or 1), seed
        )
    elif isinstance(model, nn.Module | Task):
        built = model
    else:
        built = _built(model, seed)
    if isinstance(built, Task):
        return built
    if shape is None:
        raise ConfigError("model: without data its loss is not known; give data, or a Task")
    return TASKS[shape.kind](built)


def _built(build: Callable[[], nn.Module | Task], seed: int) -> nn.Module | Task:
    """What a person's function makes under the run's seed."""
    made: list[nn.Module | Task] = []

    def call() -> nn.Module:
        made.append(build())
        return made[0].module if isinstance(made[0], Task) else made[0]

    initial_module(call, seed)
    return made[0]


def initial_hash(model: Tensor, buffers: Tensor) -> str:
    """Equal on two sides means the same initial weights, bit for bit."""
    digest = sha256()
    for vector in (model, buffers):
        digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]
