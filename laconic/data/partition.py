"""How a data set is divided among clients.

`iid` and `natural` need nothing but the examples; `shards`, `pairs` and `dirichlet` give clients unlike
labels. Every split is disjoint, and all but a `natural` one with fewer clients than groups use every
example.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from laconic.core.errors import ConfigError, unknown_name

Indices = npt.NDArray[np.int64]

FORMS = {
    "iid": "iid",
    "shards": "shards:2 (a whole number of label shards per client)",
    "pairs": "pairs or pairs:shuffled",
    "dirichlet": "dirichlet:0.3 (a concentration above 0)",
    "natural": "natural",
}


@dataclass(frozen=True)
class Partition:
    """One way to divide examples; `parse_partition` makes it from text."""

    name: str
    value: float = 0.0
    shuffled: bool = False

    def __str__(self) -> str:
        if self.name in ("shards", "dirichlet"):
            return f"{self.name}:{self.value:g}"
        return f"{self.name}:shuffled" if self.shuffled else self.name

    def split(
        self,
        labels: npt.NDArray[Any],
        clients: int,
        generator: np.random.Generator,
        groups: Sequence[Indices] | None = None,
    ) -> list[Indices]:
        """Positions of every client's examples; `groups` are the data's natural clients, if it has any."""
        if clients < 1:
            raise ConfigError(f"clients is {clients}; at least 1 is needed")
        if self.name == "natural":
            return natural(groups, clients, generator)
        if clients > len(labels):
            raise ConfigError(f"clients is {clients}, but there are only {len(labels)} examples to share out")
        if self.name == "iid":
            return np.array_split(generator.permutation(len(labels)).astype(np.int64), clients)
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
            raise ConfigError(f"partition '{self}' needs one class label per example; use iid or natural here")
        if self.name == "shards":
            return shards(labels, clients, int(self.value), generator)
        if self.name == "pairs":
            return pairs(labels, clients, generator, self.shuffled)
        return dirichlet(labels, clients, self.value, generator)


def parse_partition(text: str) -> Partition:
    """Read `iid`, `shards:s`, `pairs`, `dirichlet:alpha` or `natural`.

    >>> parse_partition("dirichlet:0.3")
    Partition(name='dirichlet', value=0.3, shuffled=False)
    """
    name, colon, argument = text.strip().partition(":")
    if name not in FORMS:
        raise unknown_name("partition", name, FORMS)
    wrong = ConfigError(f"partition '{text}' cannot be read; write it as {FORMS[name]}")
    if name in ("shards", "dirichlet"):
        try:
            value = float(int(argument)) if name == "shards" else float(argument)
        except ValueError:
            raise wrong from None
        if name == "shards" and value < 1:
            raise ConfigError(f"partition '{text}': shards per client must be 1 or more")
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"partition '{text}': the concentration must be a finite number above 0")
        return Partition(name, value)
    if name == "pairs" and argument == "shuffled":
        return Partition(name, shuffled=True)
    if colon:
        raise wrong
    return Partition(name)


def shards(labels: npt.NDArray[Any], clients: int, per_client: int, generator: np.random.Generator) -> list[Indices]:
    """Sort by label, cut into clients * per_client shards, deal each client `per_client` of them at random.

    The non-IID split of McMahan et al. (2017), as in FedCAMS (Wang et al., 2022; 100 clients, 2 shards) and
    Fed-EF (Li and Li, 2023; 200 clients, 2 shards). Where counts do not divide (MNIST), shard sizes differ
    by at most one and a shard may hold the end of one label and the beginning of the next: nothing is
    dropped.
    """
    count = clients * per_client
    if count > len(labels):
        raise ConfigError(
            f"partition 'shards:{per_client}' with {clients} clients needs {count} shards, "
            f"but there are only {len(labels)} examples"
        )
    cut = np.array_split(np.argsort(labels, kind="stable").astype(np.int64), count)
    dealt = generator.permutation(count).reshape(clients, per_client)
    return [np.concatenate([cut[shard] for shard in hand]) for hand in dealt]


def pairs(
    labels: npt.NDArray[Any], clients: int, generator: np.random.Generator, shuffled: bool = False
) -> list[Indices]:
    """Two distinct labels per client, every label equally many holders: FedAMD's split (Wu et al., 2023).

    Permutations of the labels are concatenated and cut into pairs; each label's examples are shuffled and
    divided equally among its holders. Within a client the examples stand label by label, in the order of
    its pair, so that a fixed batch order meets one label after the other. FedAMD's published code shuffles
    each client's examples once more after that: `pairs:shuffled`.
    """
    present = np.unique(labels)
    if len(present) < 2:
        raise ConfigError("partition 'pairs' needs at least 2 labels in the data")
    if (2 * clients) % len(present):
        step = len(present) // math.gcd(2, len(present))
        lower, upper = clients // step * step, -(-clients // step) * step
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise ConfigError(
            f"partition 'pairs' with {len(present)} labels needs a multiple of {step} clients, "
            f"so that every label has as many holders; {clients} is not: use {nearest}"
        )
    drawn = _label_sequence(len(present), 2 * clients, generator)
    holders = 2 * clients // len(present)
    parts: list[list[Indices]] = []
    for label in present:
        positions = generator.permutation(np.flatnonzero(labels == label)).astype(np.int64)
        if len(positions) < holders:
            raise ConfigError(
                f"partition 'pairs' with {clients} clients gives label {label} to {holders} of them, "
                f"but it has only {len(positions)} examples"
            )
        parts.append(np.array_split(positions, holders))
    split = [np.concatenate([parts[label].pop(0) for label in pair]) for pair in drawn.reshape(clients, 2)]
    return [generator.permutation(held) for held in split] if shuffled else split


def _label_sequence(labels: int, length: int, generator: np.random.Generator) -> Indices:
    """Permutations end to end; one that would make a pair of twins (odd number of labels) is drawn again."""
    sequence: list[int] = []
    while len(sequence) < length:
        permutation = generator.permutation(labels).tolist()
        if len(sequence) % 2 and sequence[-1] == permutation[0]:
            continue
        sequence.extend(permutation)
    return np.array(sequence, dtype=np.int64)


def dirichlet(
    labels: npt.NDArray[Any], clients: int, concentration: float, generator: np.random.Generator
) -> list[Indices]:
    """Each label is divided in proportions drawn from Dirichlet(concentration) (Hsu et al., 2019).

    Every client has at least 1 example: one that drew none takes an example from the client that has most,
    which ends for any concentration, where drawing again might not. Each client's examples are shuffled.
    """
    held: list[list[Indices]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        positions = generator.permutation(np.flatnonzero(labels == label)).astype(np.int64)
        proportions = generator.dirichlet(np.full(clients, concentration))
        cuts = (np.cumsum(proportions)[:-1] * len(positions)).astype(np.int64)
        for client, part in enumerate(np.split(positions, np.minimum(cuts, len(positions)))):
            held[client].append(part)
    split = [generator.permutation(np.concatenate(parts)) for parts in held]
    sizes = np.array([len(part) for part in split])
    for client in np.flatnonzero(sizes == 0).tolist():
        richest = int(sizes.argmax())
        split[client], split[richest] = split[richest][-1:], split[richest][:-1]
        sizes[client], sizes[richest] = 1, sizes[richest] - 1
    return split


def natural(groups: Sequence[Indices] | None, clients: int, generator: np.random.Generator) -> list[Indices]:
    """The data's own clients (writers, roles, hospitals), or a random choice of them in their order."""
    if groups is None:
        raise ConfigError("partition 'natural': this data set has no natural clients; use iid or another partition")
    if clients > len(groups):
        raise ConfigError(f"clients is {clients}, but there are only {len(groups)} natural clients")
    if clients == len(groups):
        return list(groups)
    chosen = np.sort(generator.choice(len(groups), clients, replace=False))
    return [groups[group] for group in chosen]
