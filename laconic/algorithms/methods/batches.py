"""The mini-batches of a client's local steps."""

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
    """The batches of one client in one round, as positions in the client's data.

    With steps and shuffled data every batch has min(batch_size, size) examples; a batch may extend into the next epoch. With
    epochs, or in fixed order, the last batch of an epoch may be smaller.

    >>> [len(b) for b in positions(10, 4, None, 1, "shuffled", np.random.default_rng(0))]
    [4, 4, 2]
    >>> [len(b) for b in positions(10, 4, 4, None, "shuffled", np.random.default_rng(0))]
    [4, 4, 4, 4]
    >>> [b.tolist() for b in positions(5, 3, 3, None, "fixed", np.random.default_rng(0))]
    [[0, 1, 2], [3, 4], [0, 1, 2]]
    """
    if epochs is not None:
        for _ in range(epochs):
            yield from _split(_epoch(size, order, generator), batch_size)
        return
    assert steps is not None
    if order == "fixed":
        fixed = list(_split(np.arange(size), batch_size))
        for step in range(steps):
            yield fixed[step % len(fixed)]
        return
    length = min(batch_size, size)
    passes = -(-steps * length // size)
    examples = np.concatenate([_epoch(size, order, generator) for _ in range(passes)])
    for step in range(steps):
        yield examples[step * length : (step + 1) * length]


def batch_examples(size: int, batch: int | Literal["full"]) -> int:
    """The number of examples in one batch of a client with `size` examples."""
    return size if batch == "full" else min(size, batch)


def _epoch(size: int, order: BatchOrder, generator: np.random.Generator) -> np.ndarray:
    return generator.permutation(size) if order == "shuffled" else np.arange(size)


def _split(examples: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(examples), batch_size):
        yield examples[start : start + batch_size]
