"""Partitions: how examples are divided among clients.

`shards`, `pairs` and `dirichlet` give clients different labels; `iid` and `natural` ignore labels. Every split is
disjoint and uses every example, except `natural` with fewer clients than the data set has.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from laconic.core.counts import counted
from laconic.core.errors import ConfigError, warn
from laconic.core.spelling import Choice, choose

Indices = npt.NDArray[np.int64]
Labels = npt.NDArray[Any]


@dataclass(frozen=True)
class Partition(Choice):
    """A rule that divides examples among clients. `parse_partition` creates one from text."""

    by_label: ClassVar[bool] = False
    """Whether the rule needs a class label of every example."""

    def split(
        self, labels: Labels, clients: int, generator: np.random.Generator, groups: Sequence[Indices] | None = None
    ) -> list[Indices]:
        """Return the indices of every client's examples. `groups` are the data set's natural clients, if any."""
        if self.by_label and (labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer)):
            raise ConfigError(f"partition '{self}' needs one class label per example; use iid or natural here")
        if clients < 1:
            raise ConfigError(f"clients is {clients}; at least 1 is needed")
        if clients > len(labels):
            raise ConfigError(f"clients is {clients}, but the data has only {counted(len(labels), 'example')}")
        return self.divide(labels, clients, generator)

    @abstractmethod
    def divide(self, labels: Labels, clients: int, generator: np.random.Generator) -> list[Indices]:
        """Return the indices of every client's examples. `clients` is at most the number of examples."""


@dataclass(frozen=True)
class IID(Partition):
    """Shuffle the examples and cut them into equal parts."""

    name: ClassVar[str] = "iid"

    def divide(self, labels: Labels, clients: int, generator: np.random.Generator) -> list[Indices]:
        return np.array_split(generator.permutation(len(labels)).astype(np.int64), clients)


@dataclass(frozen=True)
class Shards(Partition):
    """Sort by label, cut into clients * per_client shards, give each client `per_client` random shards.

    The non-IID split of McMahan et al. (2017), as in FedCAMS (Wang et al., 2022; 100 clients, 2 shards) and
    Fed-EF (Li and Li, 2023; 200 clients, 2 shards). No example is dropped: if counts do not divide evenly (MNIST),
    shard sizes differ by at most one and a shard may span two labels. With `shards:2:single` every shard has one label, as
    Fed-EF's paper has it, so that a client has at most two: each label is cut into a number of shards in proportion to its
    examples, and shard sizes differ between labels.
    """

    name: ClassVar[str] = "shards"
    by_label: ClassVar[bool] = True
    per_client: PositiveInt
    labels: Literal["mixed", "single"] = "mixed"

    def divide(self, labels: Labels, clients: int, generator: np.random.Generator) -> list[Indices]:
        count = clients * self.per_client
        if count > len(labels):
            raise ConfigError(
                f"partition '{self}' with {counted(clients, 'client')} needs {counted(count, 'shard')}, "
                f"but the data has only {counted(len(labels), 'example')}"
            )
        if self.labels == "single":
            shards = _single_label_shards(labels, count)
        else:
            shards = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), count)
        assignment = generator.permutation(count).reshape(clients, self.per_client)
        return [np.concatenate([shards[shard] for shard in chosen]) for chosen in assignment]


def _single_label_shards(labels: Labels, count: int) -> list[Indices]:
    """Cut each label into shards, whose numbers are as close to its share of the examples as whole numbers allow."""
    present, sizes = np.unique(labels, return_counts=True)
    if count < len(present):
        raise ConfigError(
            f"{counted(count, 'shard')} of one label each, but the data has {counted(len(present), 'label')}; "
            "use more clients or shards"
        )
    # The largest-remainder method; every label has at least one shard, and no shard is empty.
    shares = count * sizes / len(labels)
    numbers = np.clip(np.floor(shares).astype(np.int64), 1, sizes)
    while numbers.sum() != count:
        step = 1 if numbers.sum() < count else -1
        possible = numbers < sizes if step == 1 else numbers > 1
        numbers[np.where(possible, step * (shares - numbers), -np.inf).argmax()] += step
    return [
        shard
        for label, number in zip(present, numbers, strict=True)
        for shard in np.array_split(np.flatnonzero(labels == label).astype(np.int64), number)
    ]


@dataclass(frozen=True)
class Pairs(Partition):
    """Two distinct labels per client, each label on equally many clients: FedAMD's split (Wu et al., 2023).

    Permutations of the labels are concatenated and cut into pairs. Each label's examples are shuffled and divided
    equally among its clients. A client's examples are ordered by label, so that a fixed batch order visits one label
    after the other. FedAMD's published code then shuffles each client's examples: `pairs:shuffled`.
    """

    name: ClassVar[str] = "pairs"
    by_label: ClassVar[bool] = True
    order: Literal["by_label", "shuffled"] = "by_label"

    def divide(self, labels: Labels, clients: int, generator: np.random.Generator) -> list[Indices]:
        present = np.unique(labels)
        _check_pairs(len(present), clients)
        pairs = _label_sequence(len(present), 2 * clients, generator).reshape(clients, 2)
        clients_per_label = 2 * clients // len(present)
        parts: list[list[Indices]] = []
        for label in present:
            indices = generator.permutation(np.flatnonzero(labels == label)).astype(np.int64)
            if len(indices) < clients_per_label:
                raise ConfigError(
                    f"partition 'pairs' with {counted(clients, 'client')} gives label {label} to "
                    f"{clients_per_label} of them, but it has only {counted(len(indices), 'example')}"
                )
            parts.append(np.array_split(indices, clients_per_label))
        split = [np.concatenate([parts[label].pop(0) for label in pair]) for pair in pairs]
        return [generator.permutation(indices) for indices in split] if self.order == "shuffled" else split


def _check_pairs(labels: int, clients: int) -> None:
    if labels < 2:
        raise ConfigError("partition 'pairs' needs at least 2 labels in the data")
    if (2 * clients) % labels:
        step = labels // math.gcd(2, labels)
        lower, upper = clients // step * step, -(-clients // step) * step
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise ConfigError(
            f"partition 'pairs' with {counted(labels, 'label')} needs a multiple of {counted(step, 'client')}, "
            f"so that every label is on equally many clients; {clients} is not: use {nearest}"
        )


def _label_sequence(labels: int, length: int, generator: np.random.Generator) -> Indices:
    """Concatenate random permutations. Redraw one that would pair a label with itself (odd number of labels)."""
    sequence: list[int] = []
    while len(sequence) < length:
        permutation = generator.permutation(labels).tolist()
        if len(sequence) % 2 and sequence[-1] == permutation[0]:
            continue
        sequence.extend(permutation)
    return np.array(sequence, dtype=np.int64)


@dataclass(frozen=True)
class Dirichlet(Partition):
    """Divide each label in proportions drawn from Dirichlet(concentration) (Hsu et al., 2019).

    Every client gets at least 1 example: an empty client takes one from the largest client. Unlike redrawing, this
    terminates for any concentration. Each client's examples are shuffled.
    """

    name: ClassVar[str] = "dirichlet"
    by_label: ClassVar[bool] = True
    concentration: Annotated[float, Field(gt=0, allow_inf_nan=False)]

    def divide(self, labels: Labels, clients: int, generator: np.random.Generator) -> list[Indices]:
        parts_of: list[list[Indices]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            indices = generator.permutation(np.flatnonzero(labels == label)).astype(np.int64)
            proportions = generator.dirichlet(np.full(clients, self.concentration))
            cuts = (np.cumsum(proportions)[:-1] * len(indices)).astype(np.int64)
            for client, part in enumerate(np.split(indices, np.minimum(cuts, len(indices)))):
                parts_of[client].append(part)
        split = [generator.permutation(np.concatenate(parts)) for parts in parts_of]
        sizes = np.array([len(part) for part in split])
        for client in np.flatnonzero(sizes == 0).tolist():
            largest = int(sizes.argmax())
            split[client], split[largest] = split[largest][-1:], split[largest][:-1]
            sizes[client], sizes[largest] = 1, sizes[largest] - 1
        return split


@dataclass(frozen=True)
class Natural(Partition):
    """The data set's own clients (writers, roles, hospitals), or a random subset in the original order."""

    name: ClassVar[str] = "natural"

    def split(
        self, labels: Labels, clients: int, generator: np.random.Generator, groups: Sequence[Indices] | None = None
    ) -> list[Indices]:
        if clients < 1:
            raise ConfigError(f"clients is {clients}; at least 1 is needed")
        return natural(groups, clients, generator)


def natural(groups: Sequence[Indices] | None, clients: int, generator: np.random.Generator) -> list[Indices]:
    """Return all groups, or with a warning a random subset in the original order."""
    if groups is None:
        raise ConfigError("partition 'natural': this data set has no natural clients; use iid or another partition")
    if clients > len(groups):
        raise ConfigError(f"clients is {clients}, but the data has only {counted(len(groups), 'natural client')}")
    if clients == len(groups):
        return list(groups)
    warn(
        f"clients = {clients}: the data has {len(groups)} clients of its own, and a random choice of {clients} is used; "
        "leave clients out to use all"
    )
    chosen = np.sort(generator.choice(len(groups), clients, replace=False))
    return [groups[group] for group in chosen]


PARTITIONS: dict[str, type[Partition]] = {cls.name: cls for cls in (IID, Shards, Pairs, Dirichlet, Natural)}


def parse_partition(text: str) -> Partition:
    """Read `iid`, `shards:PER_CLIENT[:single]`, `pairs`, `pairs:shuffled`, `dirichlet:CONCENTRATION` or `natural`.

    >>> parse_partition("dirichlet:0.3")
    Dirichlet(concentration=0.3)
    """
    try:
        return choose(text, PARTITIONS)
    except ValueError as error:
        raise ConfigError(f"partition '{text}': {error}") from None
