"""Data files and folders as the name of a data set: `patients.csv:target=ill,client=hospital`, `photos/:size=32`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laconic.core.errors import ConfigError, DataError
from laconic.core.spelling import convert, parse
from laconic.data.federated import FederatedData
from laconic.data.images import from_images
from laconic.data.tables import from_table, is_table_file

_TABLE_OPTIONS: dict[str, Any] = {
    "target": str,
    "client": str,
    "inputs": str,
    "test": float,
    "kind": str,
    "classes": int,
    "scale": bool,
}
_IMAGE_OPTIONS: dict[str, Any] = {"size": int, "test": float}


def split_path(name: str) -> tuple[Path, str] | None:
    """The path of a data file or folder, and the options after it. None if the name is no such path."""
    head, colon, options = name.partition(":")
    path = Path(head)
    return (path, colon + options) if is_table_file(path) or (head and path.is_dir()) else None


def from_path(
    name: str, seed: int = 0, clients: int | None = None, partition: str | None = None, skip_empty: bool = False
) -> FederatedData:
    """Load a CSV or Parquet file, a folder of them, or a folder of images."""
    found = split_path(name)
    assert found is not None
    path, rest = found
    is_table = not path.is_dir() or any(map(is_table_file, path.iterdir()))
    options = _options(name, rest, _TABLE_OPTIONS if is_table else _IMAGE_OPTIONS)
    shared: dict[str, Any] = {"clients": clients, "partition": partition, "seed": seed, "skip_empty": skip_empty}
    if not is_table:
        return from_images(path, **options, **shared)
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if "target" not in options:
        raise ConfigError(f"data set '{name}': name the column to predict, as in {path}:target=COLUMN,client=COLUMN")
    if "inputs" in options:
        options["inputs"] = options["inputs"].split("+")
    return from_table(path, options.pop("target"), **options, **shared)


def _options(name: str, rest: str, allowed: dict[str, Any]) -> dict[str, Any]:
    try:
        _, arguments, keywords = parse(rest)
        for given in (*arguments, *keywords):
            if given and given not in keywords.keys() & allowed.keys():
                raise ValueError(f"'{given}' is unknown; allowed: {', '.join(f'{key}=' for key in allowed)}")
        return {key: convert(value, allowed[key]) for key, value in keywords.items()}
    except ValueError as error:
        raise ConfigError(f"data set '{name}': {error}") from None
