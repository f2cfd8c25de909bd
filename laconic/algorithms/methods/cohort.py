"""A cohort: C clients that compute together, with their models as the rows of one matrix [C, d]."""

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
from laconic.core.devices import to_device
from laconic.core.layout import Layout, aligned_rows
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.schedules import clipped
from laconic.core.task import Batch, Task
from laconic.data.federated import AugmentedData, ClientData
from laconic.gradients.base import Gradients, Seed

Plan = Callable[[int, np.random.Generator], Iterator[np.ndarray]]
"""The batches of a client with that many examples, as positions in its data."""
PIECE = 512
"""Examples of a large batch per forward pass."""
GATHERED = 1024
"""Examples of one client that are gathered at once."""


@dataclass(frozen=True)
class Step:
    """One local step of all clients in the cohort; the batch of a client that has finished is None."""

    number: int
    batches: list[Batch | None]
    purpose: str = Draw.DROPOUT
    """Names the random draws inside the model, such as dropout masks."""

    def working(self, like: Tensor) -> Tensor:
        """[C, 1]: 1 for a client that takes this step, 0 for one that has finished."""
        flags = torch.tensor([[batch is not None] for batch in self.batches], dtype=like.dtype)
        return to_device(flags, like.device)


class Vectors:
    """Matrices [C, d] by name, as in `cohort.received.control`."""

    def __init__(self, names: Iterable[str], get: Callable[[str], Tensor], advice: str = "") -> None:
        self._names, self._get, self._advice = tuple(names), get, advice

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("_") or name not in self._names:
            available = ", ".join(self._names) or "none"
            raise AttributeError(f"no vector '{name}': available are {available}{self._advice.format(name)}")
        return self._get(name)


@dataclass
class Cohort:
    """C clients at the start of a phase: models, states, data and gradients."""

    round: int
    phase: str
    clients: Sequence[int]
    states: Sequence[State]
    """The method's state on each client."""
    models: Tensor
    """[C, d]: the model that each client starts from; read-only."""
    buffers: Tensor
    """[C, b]: floating buffers, updated in place by gradient calls."""
    task: Task
    layout: Layout
    data: ClientData
    randomness: Randomness
    _gradients: Gradients
    regularization: float = 0.0
    """phi: gradients are those of the loss plus phi / 2 ||w||^2. The training loss is that without this term."""
    augment: bool = True
    """Whether batches are augmented, if the data has augmentation."""
    _shared: Sequence[str] = ()
    _received: Mapping[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)
    """Matrices [C, …] by name that `Method.local` leaves here: new entries of the clients' states."""
    _seen: list[tuple[Tensor, list[int], Tensor]] = field(default_factory=list)
    """The losses of every gradient call, the example counts, and the share of the targets that count; [C] each."""
    _training: list[bool] = field(default_factory=list)
    """Whether each gradient call counts for the training loss."""

    @property
    def state(self) -> Vectors:
        """[C, d] by name: the clients' values of the method's shared states."""
        advice = "; other entries of the clients' states are cohort.stacked('{}')"
        return Vectors(self._shared, self.stacked, advice)

    @property
    def received(self) -> Vectors:
        """[C, d] by stream: the vectors that the instruction contains besides the model."""
        return Vectors(self._received, self._received.__getitem__)

    @property
    def sizes(self) -> list[int]:
        """The number of examples of each client."""
        return [self.data.size(client) for client in self.clients]

    def start(self) -> Tensor:
        """[C, d]: a copy of the models, for local steps that change it in place."""
        return aligned_rows(self.models).copy_(self.models)

    def zeros(self) -> Tensor:
        """[d]: the initial value of a state, in host memory."""
        return torch.zeros(self.layout.size, dtype=self.models.dtype)

    def stacked(self, name: str) -> Tensor:
        """[C, d]: one entry of the clients' states; 0 for a client that does not have it yet."""
        return to_device(torch.stack([state.get(name, self.zeros()) for state in self.states]), self.models.device)

    def moving_average(self, name: str, fresh: Tensor, rate: float) -> Tensor:
        """v = (1 - rate) v + rate fresh, [C, d], an entry of the clients' states. A client's first v is `fresh`."""
        started = fresh.new_tensor([[name in state] for state in self.states])
        self.kept[name] = torch.lerp(fresh, self.stacked(name), (1 - rate) * started)
        return self.kept[name]

    def steps(self, positions: Plan) -> Iterator[Step]:
        """Local steps until all clients have finished; `positions(size, generator)` yields the batches of one client."""
        return self._planned(Draw.BATCHES, Draw.DROPOUT, positions)

    def _planned(self, purpose: str, dropout: str, positions: Plan) -> Iterator[Step]:
        augmented = self.data if self.augment and isinstance(self.data, AugmentedData) else None
        plans = [
            self._batches(client, purpose, positions(self.data.size(client), generator), augmented)
            for client, generator in ((i, self.randomness.numpy(purpose, self.round, i)) for i in self.clients)
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
        training: bool = True,
    ) -> list[Tensor]:
        """Each client's gradient on one large batch, or on all its data, at each of `models` [C, d].

        All models use the same batch: in fixed order the client's first examples, otherwise the draw named by `purpose`. The
        batch is processed in pieces to save memory, and batch-norm statistics are left unchanged. Gradients whose norm
        exceeds `clip_norm` are scaled to it. `training` is as in `gradients`.
        """
        count = None if batch == "full" else batch

        def plan(size: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
            drawn = order == "shuffled" and count is not None and count < size
            chosen = generator.permutation(size)[:count] if drawn else np.arange(size)[:count]
            return iter(np.array_split(chosen, -(-len(chosen) // PIECE)))

        return self.batch_gradients(models, plan, clip_norm, purpose, training)

    def batch_gradients(
        self,
        models: Sequence[Tensor],
        plan: Plan,
        clip_norm: float | None = None,
        purpose: str = Draw.LARGE_BATCH,
        training: bool = True,
    ) -> list[Tensor]:
        """Each client's mean gradient over the batches of `plan(size, generator)`, at each of `models` [C, d]."""
        totals = [torch.zeros_like(model) for model in models]
        examples = torch.zeros(len(self.clients), 1, dtype=self.models.dtype, device=self.models.device)
        buffers = self.buffers.clone()
        for step in self._planned(purpose, f"{purpose} {Draw.DROPOUT}", plan):
            lengths = torch.tensor(self._lengths(step), dtype=examples.dtype)
            counts = (to_device(lengths, examples.device) * self._shares(step).to(examples.dtype)).unsqueeze(1)
            examples += counts
            for total, model in zip(totals, models, strict=True):
                total += self.gradients(model, step, training) * counts
        self.buffers.copy_(buffers)
        # Without a target that counts, the gradient is 0.
        return [clipped(total / examples.where(examples > 0, 1), clip_norm) for total in totals]

    def gradients(self, models: Tensor, step: Step, training: bool = True) -> Tensor:
        """[C, d]: each client's gradient at its row of `models`, on its batch of this step.

        Calls in the same step use the same batches and dropout masks. With `training=False` the call does not count for the
        training loss, as at an earlier point of the same step.
        """
        result, losses = self._gradients(models, self.buffers, step.batches, self._seed(step))
        self._record(losses, step, training)
        if self.regularization:
            result = result.add(models * step.working(models), alpha=self.regularization)
        return result

    def descend(self, models: Tensor, steps: Iterable[Step], rate: Callable[[Step], float]) -> None:
        """models -= rate * gradients in every step, in place; some strategies do it without storing the gradients."""
        if self.regularization:
            for step in steps:
                models.sub_(self.gradients(models, step), alpha=rate(step))
            return
        remaining = iter(steps)
        for first in remaining:
            # As many steps at once as `_batches` gathers.
            more = GATHERED // max(1, *self._lengths(first)) - 1 if self._gradients.joins_steps else 0
            group = [first, *itertools.islice(remaining, max(0, more))]
            batches, seeds, rates = [step.batches for step in group], map(self._seed, group), map(rate, group)
            losses = self._gradients.descend_steps(models, self.buffers, batches, list(seeds), list(rates))
            for step, own in zip(group, losses, strict=True):
                self._record(own, step)

    def _seed(self, step: Step) -> Seed:
        purpose = f"{step.purpose}/{step.number}"
        return lambda row: self.randomness.integer(purpose, self.round, self.clients[row])

    def _record(self, losses: Tensor, step: Step, training: bool = True) -> None:
        self._seen.append((losses, self._lengths(step), self._shares(step)))
        self._training.append(training)

    def _lengths(self, step: Step) -> list[int]:
        return [0 if batch is None else batch[0].shape[0] for batch in step.batches]

    def _shares(self, step: Step) -> Tensor:
        """[C]: the share of the targets of each client's batch that count."""
        one, counted = torch.ones((), dtype=torch.float64, device=self.models.device), self.task.counted
        if counted is None:
            return one.expand(len(self.clients))
        return torch.stack([one if batch is None else counted(batch).to(one) for batch in step.batches])

    def report(self, row: int, examples: int, loss: float) -> None:
        """Record examples that a client used without `gradients`, and their mean loss (NaN if unknown)."""
        counts = [examples if other == row else 0 for other in range(len(self.clients))]
        losses = torch.full((len(self.clients),), loss, device=self.models.device)
        self._seen.append((losses, counts, torch.ones_like(losses, dtype=torch.float64)))
        self._training.append(True)

    def samples(self) -> list[int]:
        """[C]: per-example gradients that were computed."""
        return [sum(counts[row] for _, counts, _ in self._seen) for row in range(len(self.clients))]

    def counted_shares(self) -> list[float]:
        """[C]: the share of the samples' targets that count."""
        weights = self._weights().sum(0)
        return [float(weight / n) if n else 1.0 for weight, n in zip(weights, self.samples(), strict=True)]

    def mean_losses(self) -> list[float]:
        """The training loss of each client, averaged over the targets that count of its gradient calls in training."""
        if not self._seen:
            return [math.nan] * len(self.clients)
        losses = torch.stack([losses for losses, _, _ in self._seen]).cpu().double().numpy()
        weights = self._weights() * np.array(self._training)[:, None]
        sums = np.where(weights > 0, losses * weights, 0.0).sum(0)
        return [float(s / n) if n else math.nan for s, n in zip(sums, weights.sum(0), strict=True)]

    def _weights(self) -> np.ndarray:
        """[calls, C]: the examples of each gradient call, times the share of their targets that count."""
        if not self._seen:
            return np.zeros((0, len(self.clients)))
        shares: np.ndarray = torch.stack([shares for _, _, shares in self._seen]).cpu().numpy()
        weights: np.ndarray = np.array([counts for _, counts, _ in self._seen]) * shares
        return weights

    def _batches(
        self, client: int, purpose: str, plan: Iterator[np.ndarray], augmented: AugmentedData | None
    ) -> Iterator[Batch]:
        if augmented is not None:
            for number, positions in enumerate(plan):
                seed = self.randomness.integer(f"{Draw.AUGMENTATION}/{purpose}/{number}", self.round, client)
                read = augmented.augmented(client, positions, self.models.dtype, seed)
                yield tuple(to_device(tensor, self.models.device) for tensor in read)
            return
        # One gather for several batches: a call costs more than the copy of a small batch.
        for first in plan:
            block = [first, *itertools.islice(plan, GATHERED // len(first) - 1 if len(first) < GATHERED else 0)]
            gathered = self.data.batch(client, np.concatenate(block), self.models.dtype)
            lengths = [len(positions) for positions in block]
            pieces = [torch.split(to_device(tensor, self.models.device), lengths) for tensor in gathered]
            yield from zip(*pieces, strict=True)
