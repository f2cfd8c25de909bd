"""A user's training loop as a method, such as one with a Lightning or Hugging Face trainer.

The function gets a module with the round's model and the client's data as a torch `Dataset`. Laconic sends the difference
between the trained module and the model.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from laconic.algorithms.methods.base import Method, method
from laconic.algorithms.methods.cohort import Cohort
from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import BOUNDED
from laconic.core.randomness import Draw, seeded
from laconic.core.user_code import load_function
from laconic.data.federated import AugmentedData, ClientData

Training = Callable[..., nn.Module | None]


@dataclass
class Visit:
    """The context of a call to the training function, and the losses that the function reports."""

    round: int
    client: int
    seed: int
    """The seed for this round and client; torch, NumPy and `random` are already seeded with it."""
    losses: list[float] = field(default_factory=list)
    """Training losses; the function may append to this list."""


class ClientDataset(Dataset[tuple[Tensor, ...]]):
    """The examples of one client; `taken` counts how many were read."""

    def __init__(self, data: ClientData, client: int, dtype: torch.dtype) -> None:
        self.data, self.client, self.dtype = data, client, dtype
        self.taken = 0

    def __len__(self) -> int:
        return self.data.size(self.client)

    def __getitem__(self, position: int) -> tuple[Tensor, ...]:
        if not 0 <= position < len(self):
            raise IndexError(position)
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: list[int]) -> list[tuple[Tensor, ...]]:
        """A batch in one gather, for `DataLoader`."""
        self.taken += len(positions)
        return list(zip(*self._batch(np.asarray(positions, dtype=np.int64)), strict=True))

    def _batch(self, positions: np.ndarray) -> tuple[Tensor, ...]:
        if not isinstance(self.data, AugmentedData):
            return self.data.batch(self.client, positions, self.dtype)
        # From torch's generator: it is seeded for the visit, and in each worker process of a `DataLoader`.
        seed = int(torch.randint(2**62, ()))
        return self.data.augmented(self.client, positions, self.dtype, seed)


@method("own_training")
class OwnTraining(Method):
    """Calls `function(module, dataset)` or `function(module, dataset, visit)`, one client at a time.

    The function trains the module in place or returns another one with the same parameters. In a config it is named
    `path/to/file.py:function` or `module:function`.
    """

    function: Training | str
    one_at_a_time: ClassVar[bool] = True
    sensitivity = BOUNDED  # if the function keeps nothing between calls

    def __post_init__(self) -> None:
        count = _argument_count(self.training)
        if count not in (2, 3):
            raise ConfigError(
                f"method.function takes {counted(count, 'argument')}: (module, dataset[, visit]) is allowed"
            )

    @cached_property
    def training(self) -> Training:
        """The function, loaded from its file or module if it is given by name."""
        return load_function(self.function, "method.function") if isinstance(self.function, str) else self.function

    def local(self, cohort: Cohort) -> Tensor:
        return torch.stack([self._train(cohort, row) for row in range(len(cohort.clients))])

    def _train(self, cohort: Cohort, row: int) -> Tensor:
        client, layout = cohort.clients[row], cohort.layout
        module = copy.deepcopy(cohort.task.module).train()
        layout.write(module, cohort.models[row], cohort.buffers[row])
        dataset = ClientDataset(cohort.data, client, cohort.models.dtype)
        visit = Visit(cohort.round, client, cohort.randomness.integer(Draw.OWN_TRAINING, cohort.round, client))
        with seeded(visit.seed):
            trained = self.training(*(module, dataset, visit)[: _argument_count(self.training)])
        trained = module if trained is None else trained
        if not isinstance(trained, nn.Module):
            raise ConfigError(f"method.function returned {type(trained).__name__}: a module or None is allowed")
        if not _matches(trained, layout.full):
            raise ConfigError("method.function returned a module with other parameters than the one it was given")
        loss = float(np.mean(visit.losses)) if visit.losses else float("nan")
        # A loader's worker processes count their own copies of `taken`. One epoch is assumed then.
        cohort.report(row, dataset.taken or len(dataset), loss)
        cohort.buffers[row].copy_(layout.flatten_buffers(trained))
        return layout.flatten(trained).to(cohort.models) - cohort.models[row]

    def table(self) -> dict[str, Any]:
        name = self.function if isinstance(self.function, str) else _spelling(self.function)
        return {"name": self.name, "function": name}


def _argument_count(function: Training) -> int:
    """The number of required positional arguments; 3 for `*args`."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 3
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)


def _matches(module: nn.Module, layout: Layout) -> bool:
    shapes = {name: tuple(tensor.shape) for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    return all(shapes.get(slot.name) == slot.shape for slot in (*layout.parameters, *layout.buffers))


def _spelling(function: Training) -> str:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', '?')}:{name}"
