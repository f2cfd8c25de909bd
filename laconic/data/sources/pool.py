"""What every data set's reader returns, and what is said about it in lists."""

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
    """A data set before it is divided; `groups` are its natural clients, if it has any."""

    train: Examples
    test: Examples
    kind: Kind
    classes: int
    groups: Sequence[Indices] | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """What a person wants to know before choosing a data set.

    Sizes are None where they depend on how the person made the files, `natural_clients` where there are none, and
    `default_clients` where the default is all the natural ones.
    """

    name: str
    description: str
    train_size: int | None
    test_size: int | None
    shape: tuple[int, ...]
    classes: int
    natural_clients: int | None
    default_partition: str
    default_clients: int | None
    license: str
    citation: str
    address: str


@dataclass(frozen=True)
class Source:
    """A data set's description and its reader."""

    info: DatasetInfo
    read: Callable[[Finder], Pool]
    files: tuple[DataFile, ...] = ()
    """What it is made of, where that is more than one file."""


def images(pixels: Array, labels: npt.NDArray[np.integer], normalize: Normalize) -> Examples:
    """Images (NHW or NCHW) and labels as they are stored, one byte each."""
    pixels = pixels[:, None] if pixels.ndim == 3 else pixels
    return Examples(_tensor(pixels), _tensor(labels.astype(np.uint8)), normalize)


def _tensor(values: Array) -> torch.Tensor:
    # Arrays made from bytes are read-only, which torch does not accept in silence.
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def moments(pixels: Array) -> Normalize:
    """Mean and standard deviation of one-channel images over 255, exact: from how often each value occurs."""
    counts = np.zeros(256, dtype=np.int64)
    for block in np.array_split(pixels, max(1, len(pixels) // 10_000)):
        counts += np.bincount(block.ravel(), minlength=256)
    # Whole numbers up to the last step: the result, and the data's fingerprint with it, is the same everywhere.
    count = int(counts.sum())
    total = sum(value * int(times) for value, times in enumerate(counts))
    squares = sum(value * value * int(times) for value, times in enumerate(counts))
    return (total / (255 * count),), (math.sqrt((count * squares - total * total) / (255 * count) ** 2),)


def group_by(owners: npt.NDArray[np.integer]) -> list[Indices]:
    """One array of positions per owner, owners ascending, positions in the order of the data set."""
    order = np.argsort(owners, kind="stable").astype(np.int64)
    _, starts = np.unique(owners[order], return_index=True)
    return np.split(order, starts[1:])
