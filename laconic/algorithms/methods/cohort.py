"""A cohort is one matrix (design rule 2): a chunk of C clients that a method handles together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from laconic.algorithms.methods.batches import BatchOrder
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.schedules import clipped
from laconic.core.task import Batch, Task
from laconic.data.federated import ClientData
from laconic.gradients.strategies import Gradients

PIECE = 512
"""Examples of a large batch that go through the model at a time."""
GATHERED = 1024
"""Examples of one client that are brought together at a time."""


@dataclass(frozen=True)
class Step:
    """One local step of every client in the cohort; a client that has finished has None."""

    number: int
    batches: list[Batch | None]
    purpose: str = Draw.DROPOUT
    """Under which name the model's own draws, such as dropout masks, are made."""

    def working(self, like: Tensor) -> Tensor:
        """[C, 1]: 1 for a client that takes this step, 0 for one that has finished."""
        return like.new_tensor([[batch is not None] for batch in self.batches])


class Vectors:
    """Vectors [C, d] that a method reads by name, as in `cohort.received.control`."""

    def __init__(self, names: Iterable[str], get: Callable[[str], Tensor]) -> None:
        self._names, self._get = tuple(names), get

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._names:
            raise AttributeError(f"no vector '{name}' here: {', '.join(self._names) or 'none'} is there")
        return self._get(name)


@dataclass
class Cohort:
    """C clients at the start of their phase, and what a method can ask for."""

    round: int
    phase: str
    clients: Sequence[int]
    states: Sequence[State]
    """The method's state on each client."""
    models: Tensor
    """[C, d]: the model that each client starts from; methods do not write to it."""
    buffers: Tensor
    """[C, b]: floating buffers, updated in place by gradient calls."""
    task: Task
    layout: Layout
    data: ClientData
    randomness: Randomness
    _gradients: Gradients
    _shared: Sequence[str] = ()
    _received: Mapping[str, Tensor] = field(default_factory=dict)
    _seen: list[tuple[Tensor, list[int]]] = field(default_factory=list)
    """Of every gradient call, the losses and the numbers of examples."""

    @property
    def state(self) -> Vectors:
        """[C, d] by name: the clients' side of the method's shared states."""
        return Vectors(self._shared, self.stacked)

    @property
    def received(self) -> Vectors:
        """[C, d] by stream: what came with the instruction, besides the model."""
        return Vectors(self._received, self._received.__getitem__)

    @property
    def sizes(self) -> list[int]:
        """How many examples each client has."""
        return [self.data.size(client) for client in self.clients]

    def zeros(self) -> Tensor:
        """[d]: where a state starts, on the host."""
        return torch.zeros(self.layout.size, dtype=self.models.dtype)

    def stacked(self, name: str) -> Tensor:
        """[C, d]: one entry of the clients' states, zero for a client that has none yet."""
        return torch.stack([state.get(name, self.zeros()) for state in self.states]).to(self.models.device)

    def steps(self, positions: Callable[[int, np.random.Generator], Iterator[np.ndarray]]) -> Iterator[Step]:
        """Local steps until every client has finished; `positions(size, generator)` plans one client's batches."""
        return self._planned(Draw.BATCHES, Draw.DROPOUT, positions)

    def _planned(
        self, purpose: str, dropout: str, positions: Callable[[int, np.random.Generator], Iterator[np.ndarray]]
    ) -> Iterator[Step]:
        plans = [
            self._batches(client, positions(self.data.size(client), self.randomness.numpy(purpose, self.round, client)))
            for client in self.clients
        ]
        for number in itertools.count():
            batches = [next(plan, None) for plan in plans]
            if all(batch is None for batch in batches):
                return
            yield Step(number, batches, dropout)

    def large_gradients(
        self,
        models: Sequence[Tensor],
        batch: int | Literal["full"] = "full",
        clip_norm: float | None = None,
        order: BatchOrder = "shuffled",
        purpose: str = Draw.LARGE_BATCH,
    ) -> list[Tensor]:
        """Each client's gradient on one large batch, or on all its data, at each of several models [C, d].

        The batch is the same for all models. It is computed in pieces, so its size costs time and not memory; batch-norm
        statistics of the pieces are dropped. Gradients longer than `clip_norm` are scaled to that norm. With a fixed order
        the batch is the first examples of the client's data; otherwise `purpose` names the draw.
        """
        count = None if batch == "full" else batch

        def plan(size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
            drawn = order == "shuffled" and count is not None and count < size
            chosen = generator.permutation(size)[:count] if drawn else np.arange(size)[:count]
            return iter(np.array_split(chosen, -(-len(chosen) // PIECE)))

        totals = [torch.zeros_like(each) for each in models]
        examples = torch.zeros(len(self.clients), 1, dtype=self.models.dtype, device=self.models.device)
        kept = self.buffers.clone()
        for step in self._planned(purpose, f"{purpose} {Draw.DROPOUT}", plan):
            counts = examples.new_tensor([[0 if batch is None else len(batch[0])] for batch in step.batches])
            examples += counts
            for total, each in zip(totals, models, strict=True):
                total += self.gradients(each, step) * counts
        self.buffers.copy_(kept)
        return [clipped(total / examples, clip_norm) for total in totals]

    def gradients(self, models: Tensor, step: Step) -> Tensor:
        """G [C, d]: each client's gradient at its row of `models`, on its batch of this step.

        Called twice in one step it uses the same batches and the same dropout masks.
        """

        def seed(row: int) -> int:
            return self.randomness.integer(f"{step.purpose}/{step.number}", self.round, self.clients[row])

        result, losses = self._gradients(models, self.buffers, step.batches, seed)
        self._enter(losses, step)
        return result

    def descend(self, models: Tensor, step: Step, rate: float) -> None:
        """models -= rate * G, in place; a strategy that can do both in one never stores G."""
        descend = getattr(self._gradients, "descend", None)
        if descend is None:
            models.sub_(self.gradients(models, step), alpha=rate)
        else:
            self._enter(descend(models, step.batches, rate), step)

    def _enter(self, losses: Tensor, step: Step) -> None:
        self._seen.append((losses, [0 if batch is None else len(batch[0]) for batch in step.batches]))

    def report(self, row: int, examples: int, loss: float) -> None:
        """Enter work that was done without `gradients`: examples used, and their mean loss (NaN if unknown)."""
        counts = [examples if each == row else 0 for each in range(len(self.clients))]
        self._seen.append((torch.full((len(self.clients),), loss), counts))

    def samples(self) -> list[int]:
        """[C]: gradients of single examples really computed."""
        return [sum(counts[row] for _, counts in self._seen) for row in range(len(self.clients))]

    def mean_losses(self) -> list[float]:
        """The training loss of each client, averaged over the examples of all its gradient calls."""
        if not self._seen:
            return [math.nan] * len(self.clients)
        losses = torch.stack([losses for losses, _ in self._seen]).cpu().double().numpy()
        examples = np.array([counts for _, counts in self._seen])
        sums = np.where(examples > 0, losses * examples, 0.0).sum(0)
        return [float(s / n) if n else math.nan for s, n in zip(sums, examples.sum(0), strict=True)]

    def _batches(self, client: int, plan: Iterator[np.ndarray]) -> Iterator[Batch]:
        """The planned batches of one client, several gathered at a time: a gather costs more than what it gathers."""
        for first in plan:
            block = [first, *itertools.islice(plan, GATHERED // len(first) - 1 if len(first) < GATHERED else 0)]
            together = self.data.batch(client, np.concatenate(block), self.models.dtype)
            lengths = [len(positions) for positions in block]
            pieces = [torch.split(part.to(self.models.device), lengths) for part in together]
            yield from zip(*pieces, strict=True)
