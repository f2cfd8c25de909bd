"""Clients and test sets for data that has none: partitions, subsets of clients, held-out examples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

import numpy as np

from laconic.core.errors import ConfigError, DataError
from laconic.core.randomness import Draw, Randomness
from laconic.data.arrays import Pair
from laconic.data.federated import ClientData, Indices, sizes_of
from laconic.data.partition import natural, parse_partition

DEFAULT_CLIENTS = 100
TRAIN_NAMES = ("train", "training")
"""The names of a folder or split of training examples, in lower case."""
TEST_NAMES = ("test", "testing", "validation", "valid", "val", "dev", "eval", "evaluation")
"""The names of a file, folder or split of test examples, in lower case. The first one that is there is used, and none is a
client.
"""


def check_client_names(where: str, names: Iterable[str], what: str, otherwise: str) -> None:
    """Refuse clients that are probably training data, such as `train_a`.

    Names that begin as those of test data do are allowed: dev1 may be a device, Val-de-Marne is a place.

    Args:
        where: The start of an error message.
        names: The names of the clients.
        what: What has these names: file or split.
        otherwise: What else the user can do.
    """
    for name in names:
        if re.split(r"[^a-z]", name.lower())[0] in TRAIN_NAMES:
            raise DataError(
                f"{where}: '{name}' looks like training data, not like a client. Name the {what}s train and test, rename "
                f"the {what}, or {otherwise}"
            )


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

    Args:
        data: The data; its own clients are ignored.
        clients: The number of clients.
        partition: How examples are divided among clients, such as `iid` or `dirichlet:0.3`.
        seed: The seed of the random partition.

    >>> from laconic.data import from_arrays
    >>> whole = from_arrays([(np.zeros((6, 2)), np.array([0, 1, 2, 0, 1, 2]))])
    >>> divide(whole, clients=3, partition="shards:1").label_counts().max(axis=1).tolist()
    [2, 2, 2]
    """
    if not hasattr(data, "divided"):
        how = "pass laconic.data.from_arrays([(inputs, targets)])"
        raise DataError(f"divide: a {type(data).__name__} cannot be divided; {how}")
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


def split_test(pairs: Sequence[Pair], share: float) -> tuple[list[Pair], Pair | None]:
    """Divide every client's examples: the rest for training, and a share of all for one test set.

    The choice does not depend on a seed, so that runs with different seeds are tested on the same examples.
    """
    if not 0 <= share < 1:
        raise ConfigError(f"test = {share}: a share from 0 to below 1 is allowed")
    kept: list[Pair] = []
    tests: list[Pair] = []
    for client, (inputs, targets) in enumerate(pairs):
        train, test = _positions(Draw.HELD_OUT, client, len(targets), share)
        kept.append((inputs[train], targets[train]))
        tests += [(inputs[test], targets[test])] if len(test) else []
    if not tests:
        return kept, None
    return kept, (np.concatenate([pair[0] for pair in tests]), np.concatenate([pair[1] for pair in tests]))


@runtime_checkable
class Selectable(Protocol):
    """The capability to leave out examples of clients."""

    def selected(self, positions: Sequence[Indices]) -> Self:
        """The same clients with some of their examples: those at `positions[client]`, in this order."""


def hold_out(data: ClientData, share: float) -> tuple[ClientData, list[Indices]]:
    """The data that clients train on, and the positions of the examples that each client holds out.

    A client with too few examples holds out none. The choice does not depend on the run's seed, so that runs with different
    seeds are evaluated on the same examples.
    """
    if not isinstance(data, Selectable):
        raise ConfigError("client_eval: this data cannot leave out examples: it needs a method `selected(positions)`")
    sizes = enumerate(sizes_of(data).tolist())
    divided = [_positions(Draw.CLIENT_EVALUATION, client, size, share) for client, size in sizes]
    held_out = [test for _, test in divided]
    if not any(map(len, held_out)):
        raise ConfigError(f"client_eval = {share}: no client has enough examples to hold one out; use a larger share")
    return data.selected([train for train, _ in divided]), held_out


def _positions(purpose: Draw, client: int, size: int, share: float) -> tuple[Indices, Indices]:
    """Return the positions of a client's examples to keep, and those to hold out. One example at least is kept."""
    order = Randomness(0).numpy(purpose, client=client).permutation(size)
    count = min(round(share * size), max(0, size - 1))
    return np.sort(order[count:]), np.sort(order[:count])
