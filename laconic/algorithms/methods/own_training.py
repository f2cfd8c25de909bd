"""A person's own training loop as a method: any function from a model and data to a model.

A Lightning or Hugging Face trainer fits here: the function gets a module that holds the round's model, and the client's
data as a torch `Dataset`, and trains however it likes. Laconic sends the difference.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from laconic.algorithms.methods.base import Method, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.randomness import Draw
from laconic.core.user_code import load_function
from laconic.data.federated import ClientData

Training = Callable[..., nn.Module | None]


@dataclass
class Visit:
    """What a training function may want to know, and where it may leave word."""

    round: int
    client: int
    seed: int
    """A seed of this round and client; torch, NumPy and `random` are seeded with it already."""
    losses: list[float] = field(default_factory=list)
    """Training losses to report, if the function appends any."""


class ClientDataset(Dataset[tuple[Tensor, ...]]):
    """One client's examples, one by one; it counts how many were taken."""

    def __init__(self, data: ClientData, client: int, dtype: torch.dtype) -> None:
        self.data, self.client, self.dtype = data, client, dtype
        self.taken = 0

    def __len__(self) -> int:
        return self.data.size(self.client)

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        if not 0 <= position < len(self):
            raise IndexError(position)
        self.taken += 1
        return tuple(part[0] for part in self.data.batch(self.client, np.array([position]), self.dtype))

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, ...]]:
        """A whole batch in one gather, which is how a DataLoader asks."""
        self.taken += len(positions)
        batch = self.data.batch(self.client, np.asarray(positions, dtype=np.int64), self.dtype)
        return list(zip(*batch, strict=True))


@method("own_training")
class OwnTraining(Method):
    """Calls `function(module, dataset)` or `function(module, dataset, visit)`, one client at a time.

    The function trains the module in place or returns another one of the same form. In a config it is named as
    `path/to/file.py:function` or `module:function`.
    """

    function: Training | str
    one_at_a_time: ClassVar[bool] = True

    def __post_init__(self) -> None:
        wanted = _wanted(self.training)
        if wanted not in (2, 3):
            raise ConfigError(f"method.function takes {wanted} arguments: (module, dataset[, visit]) is allowed")

    @cached_property
    def training(self) -> Training:
        """The function itself; a person's file is found before any work, and run once."""
        return load_function(self.function, "method.function") if isinstance(self.function, str) else self.function

    def local(self, cohort: Cohort) -> Tensor:
        """The difference that the function has made."""
        return torch.stack([self._train(cohort, row) for row in range(len(cohort.clients))])

    def _train(self, cohort: Cohort, row: int) -> Tensor:
        client, layout = cohort.clients[row], cohort.layout
        module = copy.deepcopy(cohort.task.module).train()
        layout.write(module, cohort.models[row], cohort.buffers[row])
        dataset = ClientDataset(cohort.data, client, cohort.models.dtype)
        visit = Visit(cohort.round, client, cohort.randomness.integer(Draw.OWN_TRAINING, cohort.round, client))
        with _seeded(visit.seed):
            trained = self.training(*(module, dataset, visit)[: _wanted(self.training)])
        trained = module if trained is None else trained
        if not isinstance(trained, nn.Module):
            raise ConfigError(f"method.function returned {type(trained).__name__}: a module, or None, is allowed")
        if not _has_form(trained, layout):
            raise ConfigError("method.function returned a module of another form: the one it was given is allowed")
        # A loader with worker processes counts there, out of sight: then a pass over the data is assumed.
        cohort.report(
            row, dataset.taken or len(dataset), float(np.mean(visit.losses)) if visit.losses else float("nan")
        )
        cohort.buffers[row].copy_(layout.flatten_buffers(trained))
        return layout.flatten(trained).to(cohort.models) - cohort.models[row]

    def table(self) -> dict[str, Any]:
        """The function by its name."""
        name = self.function if isinstance(self.function, str) else _spelling(self.function)
        return {"name": self.name, "function": name}


def _wanted(function: Training) -> int:
    """How many of module, dataset and visit the function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _has_form(module: nn.Module, layout: Layout) -> bool:
    shapes = {name: tuple(tensor.shape) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return all(shapes.get(slot.name) == slot.shape for slot in (*layout.parameters, *layout.buffers))


def _spelling(function: Training) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """All the usual generators seeded for one call, and put back afterward."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
