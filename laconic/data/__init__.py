"""Data sets by name, partitions over clients, and users' own data.

>>> data = load("digits", clients=20, partition="dirichlet:0.3")
>>> len(data), data.kind, data.classes, data.input_shape
(20, 'classification', 10, (1, 8, 8))
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from laconic.core.errors import ConfigError, suggestion, unknown_name
from laconic.core.randomness import Draw, Randomness
from laconic.data.arrays import from_arrays
from laconic.data.augmentation import Augmentation, RandomCrop, RandomFlip, augment, parse_augmentation
from laconic.data.augmentation import augment as augmented
from laconic.data.divide import divide
from laconic.data.federated import AugmentedData, ClientData, Examples, FederatedData, Kind
from laconic.data.files import Finder
from laconic.data.generated import GeneratedData
from laconic.data.hugging_face import from_hugging_face
from laconic.data.images import from_images
from laconic.data.lazy import LazyData, from_datasets
from laconic.data.partition import Partition, parse_partition
from laconic.data.paths import from_path, split_path
from laconic.data.sources import SOURCES, DatasetInfo, Source
from laconic.data.supplied import as_data, from_file, is_file
from laconic.data.tables import from_table

__all__ = [
    "Augmentation",
    "AugmentedData",
    "ClientData",
    "DatasetInfo",
    "Examples",
    "FederatedData",
    "GeneratedData",
    "Kind",
    "LazyData",
    "Partition",
    "RandomCrop",
    "RandomFlip",
    "as_data",
    "augment",
    "datasets",
    "divide",
    "from_arrays",
    "from_datasets",
    "from_file",
    "from_hugging_face",
    "from_images",
    "from_table",
    "load",
    "parse_augmentation",
    "parse_partition",
]


def datasets() -> list[DatasetInfo]:
    """Every data set that `load` knows by name."""
    return [source.info for source in SOURCES.values()]


def load(
    name: str,
    *,
    clients: int | None = None,
    partition: str | None = None,
    seed: int = 0,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    augment: str | None = None,
    skip_empty: bool = False,
) -> ClientData:
    """Load a data set, partitioned over clients.

    Args:
        name: A name of `datasets()`; `file.py` or `file.py:function` (see `from_file`); a CSV or Parquet file, or a folder
            of them, as in `patients.csv:target=ill,client=hospital` (see `from_table`); or a folder of images
            (see `from_images`).
        clients: The number of clients. Defaults to 100 (digits: 20), or to all natural clients.
        partition: How examples are divided among clients. Defaults to the data set's own: `natural` if it has natural
            clients, else `iid`.
        seed: The seed of the partition.
        data_dir: A folder that is searched for the files before $LACONIC_DATA and the cache folder.
        download: Whether to download files that are missing.
        augment: Random augmentation of images in training, as in `crop:4+flip`.
        skip_empty: Leave out clients of your own data that have no examples.
    """
    data: ClientData
    if name in SOURCES:
        if skip_empty:
            raise ConfigError(f"skip_empty: {name} has no clients without examples; leave skip_empty out")
        data = _load_source(SOURCES[name], clients, partition, seed, data_dir, download)
    else:
        if data_dir is not None and (is_file(name) or split_path(name)):
            raise ConfigError(f"data_dir '{data_dir}': {name} reads its own files; leave data_dir out")
        data = _own_reader(name)(name, seed, clients, partition, skip_empty)
    return data if augment is None else augmented(data, augment)


def _own_reader(name: str) -> Callable[..., ClientData]:
    """What reads a user's own data of this name."""
    if is_file(name):
        return from_file
    if split_path(name):
        return from_path
    if Path(name).suffix:
        raise ConfigError(
            f"data set '{name}': of data files, only .csv and .parquet are read directly; write a Python file with a "
            "function clients() that reads it and returns clients (or examples for --partition to divide), and pass "
            "that file: --dataset clients.py; see docs/guides/own-data-and-model.md"
        )
    head, _, options = name.partition(":")
    if "=" in options and head not in SOURCES:
        raise ConfigError(f"data set '{head}': there is no file or folder with this name")
    unknown = unknown_name("data set", name, SOURCES, listed="`laconic datasets`")
    if suggestion(name, SOURCES):
        raise unknown
    raise ConfigError(
        f"{unknown}; data that a program or a Flower app passed as an object cannot be loaded by its name"
    )


def _load_source(
    source: Source,
    clients: int | None,
    partition: str | None,
    seed: int,
    data_dir: str | os.PathLike[str] | None,
    download: bool,
) -> FederatedData:
    info = source.info
    chosen = parse_partition(partition or info.default_partition)
    natural = chosen.name == "natural"
    if natural and info.natural_clients is None:
        raise ConfigError(
            f"partition 'natural': {info.name} has no natural clients; use iid, shards, pairs or dirichlet"
        )
    pool = source.read(Finder(None if data_dir is None else Path(data_dir), download, source.files))
    if clients is None:
        clients = len(pool.groups) if natural and pool.groups is not None else info.default_clients
    generator = Randomness(seed).numpy(Draw.PARTITION)
    split = chosen.split(pool.train.targets.numpy(), clients, generator, pool.groups)
    names = pool.client_names(split) if natural else None
    return FederatedData(info.name, pool.kind, pool.train, split, pool.test, pool.classes, client_names=names)
