"""The common form of a data set before partitioning, and its description."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from laconic.data.federated import Examples, Indices, Kind, Normalize
from laconic.data.files import DataFile, Finder

Array = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pool:
    """A data set before partitioning. `groups` are the indices of its natural clients, if any."""

    train: Examples
    test: Examples
    kind: Kind
    classes: int
    groups: Sequence[Indices] | None = None
    names: Sequence[str] | None = None
    """The names of the natural clients."""

    def client_names(self, split: Sequence[Indices]) -> tuple[str, ...] | None:
        """The names of the clients of a split into natural clients, or some of them; None if they have none."""
        if self.names is None:
            return None
        assert self.groups is not None
        # No example has two owners, so the first one identifies the client.
        owners = {int(group[0]): name for group, name in zip(self.groups, self.names, strict=True)}
        return tuple(owners[int(indices[0])] for indices in split)


@dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set. Sizes are None if they depend on how the user prepared the files."""

    name: str
    description: str
    train_size: int | None
    test_size: int | None
    shape: tuple[int, ...]
    classes: int
    license: str
    citation: str
    address: str
    natural_clients: int | None = None
    """Number of natural clients, such as writers, if the data set has any."""
    default_clients: int = 100
    """Number of clients of a partition other than `natural`."""

    @property
    def default_partition(self) -> str:
        """`natural` if the data set has natural clients, else `iid`."""
        return "natural" if self.natural_clients else "iid"


@dataclass(frozen=True)
class Source:
    """A data set's description, reader and files."""

    info: DatasetInfo
    read: Callable[[Finder], Pool]
    files: tuple[DataFile, ...] = ()
    """All files, if there is more than one."""


def images(pixels: Array, labels: npt.NDArray[np.integer], normalize: Normalize) -> Examples:
    """Build examples of uint8 images (NHW or NCHW) and labels."""
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels
    return Examples(_tensor(pixels), _tensor(labels.astype(np.uint8)), normalize)


def image_pool(
    train: Array,
    train_labels: npt.NDArray[np.integer],
    test: Array,
    test_labels: npt.NDArray[np.integer],
    classes: int = 10,
    normalize: Normalize | None = None,
    groups: Sequence[Indices] | None = None,
    names: Sequence[str] | None = None,
) -> Pool:
    """Build a data set of images. They are normalized with the moments of the training images unless given."""
    normalize = normalize or moments(train)
    examples = images(train, train_labels, normalize), images(test, test_labels, normalize)
    return Pool(*examples, "classification", classes, groups, names)


def _tensor(values: Array) -> torch.Tensor:
    # torch warns about read-only arrays, such as those made from bytes.
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def moments(pixels: Array) -> Normalize:
    """Return the exact mean and standard deviation of one-channel images divided by 255."""
    counts = np.zeros(256, dtype=np.int64)
    for block in np.array_split(pixels, max(1, len(pixels) // 10_000)):
        counts += np.bincount(block.ravel(), minlength=256)
    # Integer arithmetic until the last step makes the result, and so the fingerprint, the same on every machine.
    count = int(counts.sum())
    total = sum(value * int(times) for value, times in enumerate(counts))
    squares = sum(value * value * int(times) for value, times in enumerate(counts))
    return (total / (255 * count),), (math.sqrt((count * squares - total * total) / (255 * count) ** 2),)


def group_by(owners: npt.NDArray[np.integer]) -> list[Indices]:
    """Return one array of example indices per owner, both in ascending order."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    _, starts = np.unique(owners[order], return_index=True)
    return np.split(order, starts[1:])
