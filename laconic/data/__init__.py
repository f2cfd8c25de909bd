"""Data sets, their division among clients, and data that people bring.

>>> data = load("digits", clients=20, partition="dirichlet:0.3")
>>> len(data), data.kind, data.classes, data.input_shape
(20, 'classification', 10, (1, 8, 8))
"""

from __future__ import annotations

import os
from pathlib import Path

from laconic.core.errors import ConfigError, unknown_name
from laconic.core.randomness import Draw, Randomness
from laconic.data.federated import ClientData, Examples, FederatedData, GeneratedData, Kind
from laconic.data.files import Finder
from laconic.data.partition import Partition, parse_partition
from laconic.data.sources import SOURCES, DatasetInfo
from laconic.data.supplied import divide, from_arrays, from_datasets, from_file, is_file

__all__ = [
    "ClientData",
    "DatasetInfo",
    "Examples",
    "FederatedData",
    "GeneratedData",
    "Kind",
    "Partition",
    "datasets",
    "divide",
    "from_arrays",
    "from_datasets",
    "from_file",
    "load",
    "parse_partition",
]


DEFAULT_CLIENTS = 100
"""Clients where neither the person nor the data set says how many."""


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
) -> FederatedData | ClientData:
    """A data set by name, divided among clients, or a person's own file (`file.py` or `file.py:function`).

    Without `partition` the data set's own default applies: natural clients where they are its point, else
    iid. Without `clients` there are 100 (digits: 20), or all the natural ones.
    """
    if is_file(name):
        return from_file(name, seed, clients, partition)
    if name not in SOURCES:
        if Path(name).suffix:
            own = "write a Python file with a function clients() that reads it, and name that one: --dataset clients.py"
            ways = (
                "it returns clients, or examples that --partition divides; docs/guides/own-data-and-model.md shows both"
            )
            raise ConfigError(f"data set '{name}': files of data are not read as they are; {own}; {ways}")
        raise unknown_name("data set", name, SOURCES)
    source = SOURCES[name]
    chosen = parse_partition(partition or source.info.default_partition)
    if chosen.name == "natural" and source.info.natural_clients is None:
        raise ConfigError(f"partition 'natural': {name} has no natural clients; use iid, shards, pairs or dirichlet")
    pool = source.read(Finder(None if data_dir is None else Path(data_dir), download, source.files))
    if clients is None:
        whole = chosen.name == "natural" and pool.groups is not None
        clients = len(pool.groups or ()) if whole else source.info.default_clients or DEFAULT_CLIENTS
    generator = Randomness(seed).numpy(Draw.PARTITION)
    split = chosen.split(pool.train.targets.numpy(), clients, generator, pool.groups)
    return FederatedData(name, pool.kind, pool.train, split, pool.test, pool.classes)
