"""Which examples a client uses, step by step (algorithms.md, "Batches")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np

BatchOrder = Literal["shuffled", "fixed"]


def positions(
    size: int,
    batch_size: int,
    steps: int | None,
    epochs: int | None,
    order: BatchOrder,
    generator: np.random.Generator,
) -> Iterator[np.ndarray]:
    """The batches of one client in one round, as positions in its own data.

    With steps and shuffled data every batch has min(batch_size, size) examples, and one that reaches the end of a pass
    continues in the next. Epochs, and the fixed order of the client's data, keep the small last batch.

    >>> [len(b) for b in positions(10, 4, None, 1, "shuffled", np.random.default_rng(0))]
    [4, 4, 2]
    >>> [len(b) for b in positions(10, 4, 4, None, "shuffled", np.random.default_rng(0))]
    [4, 4, 4, 4]
    >>> [b.tolist() for b in positions(5, 3, 3, None, "fixed", np.random.default_rng(0))]
    [[0, 1, 2], [3, 4], [0, 1, 2]]
    """
    if epochs is not None:
        for _ in range(epochs):
            yield from _cut(_pass(size, order, generator), batch_size)
        return
    assert steps is not None
    if order == "fixed":
        fixed = list(_cut(np.arange(size), batch_size))
        for step in range(steps):
            yield fixed[step % len(fixed)]
        return
    length = min(batch_size, size)
    passes = -(-steps * length // size)
    together = np.concatenate([_pass(size, order, generator) for _ in range(passes)])
    for step in range(steps):
        yield together[step * length : (step + 1) * length]


def nominal_examples(size: int, batch_size: int, steps: int | None, epochs: int | None) -> int:
    """What the papers count: K b' for steps, whatever the client has; the data itself for epochs."""
    return steps * batch_size if steps is not None else (epochs or 0) * size


def batch_examples(size: int, batch: int | Literal["full"]) -> int:
    """The examples of one batch, for a client that has `size` of them."""
    return size if batch == "full" else min(size, batch)


def _pass(size: int, order: BatchOrder, generator: np.random.Generator) -> np.ndarray:
    return generator.permutation(size) if order == "shuffled" else np.arange(size)


def _cut(together: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(together), batch_size):
        yield together[start : start + batch_size]
