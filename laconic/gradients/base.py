"""The base of the gradient strategies, and what several of them need."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from laconic.core.layout import Layout
from laconic.core.task import Batch

Seed = Callable[[int], int]
"""Returns the seed of a row's random draws. It is a function because few models need the seed."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Gradients(ABC):
    """Gradients of the loss for every row of `models`, each on its own batch.

    A row whose batch is None has gradient 0 and loss NaN. `buffers` [C, b] is updated in place. `seed(row)` is the seed of a
    row's dropout masks.
    """

    joins_steps: bool = False
    """Whether `descend_steps` is faster than single steps."""

    @abstractmethod
    def __call__(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed
    ) -> tuple[Tensor, Tensor]:
        """The gradients [C, d] and the losses [C]."""

    def at(self, layout: Layout) -> Gradients:
        """The same gradients for the layout of a round, which differs where subspaces are redrawn."""
        return self

    def descend(
        self, models: Tensor, buffers: Tensor, batches: Sequence[Batch | None], seed: Seed, rate: float
    ) -> Tensor:
        """models -= rate * gradients, in place; returns the losses [C]."""
        gradients, losses = self(models, buffers, batches, seed)
        models.sub_(gradients, alpha=rate)
        return losses

    def descend_steps(
        self,
        models: Tensor,
        buffers: Tensor,
        steps: Sequence[Sequence[Batch | None]],
        seeds: Sequence[Seed],
        rates: Sequence[float],
    ) -> list[Tensor]:
        """Several steps of `descend`, in place; returns the losses [C] of each."""
        return [self.descend(models, buffers, *step) for step in zip(steps, seeds, rates, strict=True)]


def by_batch_size(batches: Sequence[Batch | None]) -> Iterable[list[tuple[int, Batch]]]:
    """Groups of rows whose batches have the same size; rows without a batch are left out."""
    groups: dict[int, list[tuple[int, Batch]]] = defaultdict(list)
    for row, batch in enumerate(batches):
        if batch is not None:
            groups[len(batch[0])].append((row, batch))
    return groups.values()


def has_hooks(module: nn.Module) -> bool:
    """Whether the module or one of its submodules has hooks, which compiled kernels would not call."""
    return any(getattr(child, kind) for child in module.modules() for kind in _HOOKS)
