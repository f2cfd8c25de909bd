"""Data sets by name, partitions over clients, and users' own data.

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
    """Load a data set by name, or from your own file (`file.py` or `file.py:function`), partitioned over clients.

    Args:
        partition: Defaults to the data set's own: `natural` if it has natural clients, else `iid`.
        clients: Defaults to 100 (digits: 20), or to all natural clients.
    """
    if is_file(name):
        if data_dir is not None:
            raise ConfigError(f"data_dir '{data_dir}': {name} reads its own files; leave data_dir out")
        return from_file(name, seed, clients, partition)
    if name not in SOURCES:
        if Path(name).suffix:
            raise ConfigError(
                f"data set '{name}': data files are not read directly; write a Python file with a function clients() "
                "that reads it and returns clients (or examples for --partition to divide), and pass that file: "
                "--dataset clients.py; see docs/guides/own-data-and-model.md"
            )
        raise unknown_name("data set", name, SOURCES)
    source = SOURCES[name]
    chosen = parse_partition(partition or source.info.default_partition)
    if chosen.name == "natural" and source.info.natural_clients is None:
        raise ConfigError(f"partition 'natural': {name} has no natural clients; use iid, shards, pairs or dirichlet")
    pool = source.read(Finder(None if data_dir is None else Path(data_dir), download, source.files))
    if clients is None:
        natural = chosen.name == "natural" and pool.groups is not None
        clients = len(pool.groups or ()) if natural else source.info.default_clients
    generator = Randomness(seed).numpy(Draw.PARTITION)
    split = chosen.split(pool.train.targets.numpy(), clients, generator, pool.groups)
    return FederatedData(name, pool.kind, pool.train, split, pool.test, pool.classes)
