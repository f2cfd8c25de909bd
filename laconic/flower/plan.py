"""The plan of a run: the resolved settings, which the server sends to every node before the first instruction.

With the plan, a node computes the same as a simulation with the same settings, bit for bit. The plan contains only names and
numbers; nodes look up and check parts like those of a config. Model and data are the node's own. The node checks that its
model has the shapes and initial weights of the server's model.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from laconic import data as data_sets
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.recipes import RECIPES
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS, find_part
from laconic.core.task import Task
from laconic.data.federated import ClientData, Kind, NamedInputs
from laconic.gradients.numerics import Numerics
from laconic.models import models
from laconic.run.config import code_in
from laconic.run.simulation import Model, initial_module, task_of


class Shape(BaseModel):
    """The properties of the data that a model depends on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    classes: int | None
    input_shape: tuple[int, ...]
    input_names: tuple[str, ...] = ()


def shape_of(data: ClientData) -> Shape:
    """The properties of data that a model depends on."""
    names = data.input_names if isinstance(data, NamedInputs) else ()
    return Shape(kind=data.kind, classes=data.classes, input_shape=data.input_shape, input_names=names)


class Plan(BaseModel):
    """The resolved settings of a run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str
    """The run's random id. A server that is restarted with another run directory starts a new run."""
    name: str
    """The algorithm's name."""
    parts: dict[str, dict[str, Any]]
    seed: int
    subspace: float | None = None
    subspace_every: int | None = None
    clients: int
    """The number of clients of the run."""
    partition: str | None
    augment: str | None = None
    skip_empty: bool = False
    numerics: Numerics
    buffers: Literal["mean", "frozen"]
    shape: Shape | None
    fingerprint: int
    """The fingerprint of the model's layout."""
    initial: str
    """The hash of the initial weights."""

    def algorithm(self) -> Algorithm:
        """Build the algorithm from registered parts only: the server cannot make a node run other code."""
        if code := code_in(self.parts):
            named = ", ".join(map(repr, code))
            raise ConfigError(f"the plan names code: {named}; give client_app the same algorithm as server_app")
        assert RECIPES, "the import of the recipes has registered all built-in parts"
        made: dict[str, Any] = {}
        for slot in SLOTS:
            table = dict(self.parts.get(slot, {}))
            made[slot] = find_part(slot, str(table.pop("name", "")))(**table)
        return Algorithm(**made, name=self.name)


def make_model(model: Model, seed: int, shape: Shape | None) -> Task:
    """Build the task, with initial weights that depend only on the seed."""
    if shape is not None:
        return task_of(model, shape, seed)
    if isinstance(model, str):
        raise ConfigError(f"model = '{model}': its input shape is unknown without data; give data, or a function")
    built = model if isinstance(model, nn.Module | Task) else initial_module(model, seed)
    if not isinstance(built, Task):
        raise ConfigError("model: its loss is unknown without data; give data, or a Task")
    return built


def initial_hash(model: Tensor, buffers: Tensor) -> str:
    """A hash of the initial weights. Server and nodes compare it."""
    digest = sha256()
    for vector in (model, buffers):
        digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def allowed_name(key: Literal["model", "dataset"], name: str, own: str) -> str:
    """A model or data set of the run config. The operator can change it, so it must be built in, or the app's own."""
    # A model's name may have sizes after a colon. `models.build` reads them as nothing else if the model is built in.
    word, known = (name, data_sets.datasets()) if key == "dataset" else (name.partition(":")[0], models())
    if name != own and word not in {each.name for each in known}:
        raise ConfigError(f"{key} = {name!r}: a run config can name only what is built in; name it in the app's code")
    return name
