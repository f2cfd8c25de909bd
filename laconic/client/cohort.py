"""A cohort is one matrix (design rule 2): a chunk of C clients that a method handles together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from laconic.data.federated import ClientData
from laconic.engine.gradients import Gradients
from laconic.layout import Layout
from laconic.randomness import Randomness
from laconic.task import Batch, Task


@dataclass(frozen=True)
class Step:
    """One local step of every client in the cohort; a client that has finished has None."""

    number: int
    batches: list[Batch | None]

    @property
    def examples(self) -> list[int]:
        """How many examples each client uses."""
        return [0 if batch is None else len(batch[0]) for batch in self.batches]


@dataclass
class Cohort:
    """C clients at the start of their round, and what a method may ask for."""

    round: int
    clients: Sequence[int]
    models: Tensor
    """[C, d]: the model that each client starts from; methods do not write to it."""
    buffers: Tensor
    """[C, b]: floating buffers, updated in place by gradient calls."""
    task: Task
    layout: Layout
    data: ClientData
    randomness: Randomness
    _gradients: Gradients
    samples: np.ndarray = field(init=False)
    """[C]: gradients of single examples really computed."""

    def __post_init__(self) -> None:
        self.samples = np.zeros(len(self.clients), dtype=np.int64)
        self._loss_sums = torch.zeros(len(self.clients), dtype=torch.float64)

    @property
    def sizes(self) -> list[int]:
        """How many examples each client has."""
        return [self.data.size(client) for client in self.clients]

    def steps(self, positions: Callable[[int, np.random.Generator], Iterator[np.ndarray]]) -> Iterator[Step]:
        """Local steps until every client has finished; `positions(size, generator)` plans one client's batches."""
        plans = [
            positions(self.data.size(client), self.randomness.numpy("batches", self.round, client))
            for client in self.clients
        ]
        number = 0
        while True:
            chosen = [next(plan, None) for plan in plans]
            if all(choice is None for choice in chosen):
                return
            yield Step(number, [self._fetch(c, p) for c, p in zip(self.clients, chosen, strict=True)])
            number += 1

    def gradients(self, models: Tensor, step: Step) -> Tensor:
        """G [C, d]: each client's gradient at its row of `models`, on its batch of this step.

        Called twice in one step it uses the same batches and the same dropout masks.
        """
        purpose = f"dropout/{step.number}"
        seeds = [self.randomness.integer(purpose, self.round, client) for client in self.clients]
        result, losses = self._gradients(models, self.buffers, step.batches, seeds)
        examples = np.array(step.examples)
        self.samples += examples
        self._loss_sums += torch.nan_to_num(losses.double().cpu()) * torch.from_numpy(examples)
        return result

    def report(self, row: int, examples: int, loss: float) -> None:
        """Enter work that was done without `gradients`: examples used, and their mean loss (NaN if unknown)."""
        self.samples[row] += examples
        self._loss_sums[row] += loss * examples

    def mean_losses(self) -> list[float]:
        """The training loss of each client, averaged over the examples of all its gradient calls."""
        return (self._loss_sums / torch.from_numpy(self.samples).clamp(min=1)).tolist()

    def _fetch(self, client: int, positions: np.ndarray | None) -> Batch | None:
        if positions is None:
            return None
        batch = self.data.batch(client, positions, self.models.dtype)
        return tuple(part.to(self.models.device) for part in batch)
