"""Clients and test sets for data that has none: partitions, subsets of clients, held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from laconic.core.errors import ConfigError
from laconic.core.randomness import Draw, Randomness
from laconic.data.arrays import Pair
from laconic.data.federated import Indices
from laconic.data.partition import natural, parse_partition

DEFAULT_CLIENTS = 100


class Divisible(Protocol):
    """Data whose examples can be given to other clients."""

    @property
    def name(self) -> str:
        """The data set's name."""

    def __len__(self) -> int:
        """Number of clients."""

    def sizes(self) -> Indices:
        """Number of examples of every client."""

    def targets(self) -> np.ndarray[Any, Any]:
        """The targets of all examples, in the order in which `divided` numbers them."""

    def divided(self, split: Sequence[Indices]) -> Self:
        """The same examples with other clients."""

    def part(self, clients: Sequence[int]) -> Self:
        """The same data with some of the clients only."""


Data = TypeVar("Data", bound=Divisible)


def divide(data: Data, clients: int, partition: str, seed: int = 0) -> Data:
    """Return the same examples with a new partition, as `load` partitions a named data set.

    >>> from laconic.data import from_arrays
    >>> whole = from_arrays([(np.zeros((6, 2)), np.array([0, 1, 2, 0, 1, 2]))])
    >>> divide(whole, clients=3, partition="shards:1").label_counts().max(axis=1).tolist()
    [2, 2, 2]
    """
    split = parse_partition(partition).split(data.targets(), clients, Randomness(seed).numpy(Draw.PARTITION))
    return data.divided(split)


def some_clients(data: Data, clients: int, seed: int) -> Data:
    """Return the same data with a random subset of its clients, in their order."""
    groups = [np.array([client]) for client in range(len(data))]
    chosen = natural(groups, clients, Randomness(seed).numpy(Draw.PARTITION))
    return data.part([int(group[0]) for group in chosen])


def divided(data: Data, has_clients: bool, clients: int | None, partition: str | None, seed: int) -> Data:
    """Return the data's own clients, or some of them; or divide data without clients, by default iid among 100."""
    if not has_clients:
        count = clients or min(DEFAULT_CLIENTS, int(data.sizes().sum()))
        return divide(data, count, partition or "iid", seed)
    if partition not in (None, "natural"):
        raise ConfigError(f"partition '{partition}': {data.name} has its own clients; leave partition out")
    return data if clients is None or clients == len(data) else some_clients(data, clients, seed)


def held_out(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], Pair | None]:
    """Divide every client's examples: the rest for training, and a share of all for one test set.

    The choice does not depend on a seed, so that runs with different seeds are tested on the same examples.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"test = {share}: a share from 0 to below 1 is allowed")
    kept: list[Pair] = []
    tests: list[Pair] = []
    for client, (inputs, targets) in enumerate(pairs):
        order = Randomness(0).numpy(Draw.HELD_OUT, client=client).permutation(len(targets))
        count = min(round(share * len(targets)), max(0, len(targets) - 1))
        train, test = np.sort(order[count:]), np.sort(order[:count])
        kept.append((inputs[train], targets[train]))
        tests += [(inputs[test], targets[test])] if count else []
    if not tests:
        return kept, None
    return kept, (np.concatenate([pair[0] for pair in tests]), np.concatenate([pair[1] for pair in tests]))
