"""CSV and Parquet files: one per client, or one with a column that names each row's client."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from laconic.core.errors import ConfigError, DataError
from laconic.data.arrays import Pair, from_arrays
from laconic.data.divide import divided, held_out
from laconic.data.federated import FederatedData, Kind

TABLES = (".csv", ".parquet")


def from_table(
    path: str | os.PathLike[str],
    target: str,
    *,
    inputs: Sequence[str] | None = None,
    client: str | None = None,
    clients: int | None = None,
    partition: str | None = None,
    test: float = 0.2,
    kind: Kind | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    seed: int = 0,
    skip_empty: bool = False,
) -> FederatedData:
    """Build federated data from a CSV or Parquet file, or from a folder of them with one file per client.

    The target is a column of text or whole numbers (classification) or of other numbers (regression). Inputs are passed
    to the model as they are. A file named `test` in a folder is the test set.

    Args:
        inputs: The columns of numbers that the model gets. Default: all but `target` and `client`.
        client: The column that names each row's client. Without it, each file of a folder is a client, and the rows of one
            file are divided by `partition` (default: iid) among `clients` (default: 100).
        test: Share of each client's rows that is held out for the test, the same rows with every seed.
        labels: As for `from_arrays`.
    """
    path = Path(path)
    tables = {file.stem: _read(file) for file in _files(path)}
    test_table = tables.pop("test", None) if path.is_dir() else None
    if client is not None:
        tables = _by_client(path.stem, tables, client)
    read = _Reader(path.stem, target, inputs, client, kind)
    pairs = [read.pair(f"client '{name}'", table) for name, table in tables.items()]
    if test_table is None:
        pairs, test_pair = held_out(pairs, test)
    else:
        test_pair = read.pair("test", test_table)
    data = from_arrays(pairs, test_pair, kind, classes, path.stem, None, labels, skip_empty)
    return divided(data, client is not None or len(tables) > 1, clients, partition, seed)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.suffix in TABLES)
    if not files:
        raise DataError(f"{path}: no {' or '.join(TABLES)} file in this folder")
    return files


def _pandas(what: str) -> Any:
    try:
        return import_module("pandas")  # an extra
    except ImportError:
        raise ConfigError(f"{what} needs pandas: pip install 'laconic[tables]'") from None


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with one row per mapping."""
    return _pandas("to_pandas()").DataFrame(list(rows))


def _read(file: Path) -> Any:
    pd = _pandas(f"{file}: a table")
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    try:
        return pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (ValueError, OSError, ImportError) as error:
        raise DataError(f"{file} cannot be read: {' '.join(str(error).split())}") from error


def _by_client(name: str, tables: Mapping[str, Any], client: str) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {}
    for table in tables.values():
        if client not in table.columns:
            raise _missing(name, client, table)
        if table[client].isna().any():
            raise DataError(f"{name}: row {int(table[client].isna().argmax())} has no '{client}'")
        for owner, part in table.groupby(client, sort=False):
            rows.setdefault(str(owner), []).append(part)
    import pandas as pd  # an extra

    return {owner: pd.concat(parts) for owner, parts in rows.items()}


def _missing(where: str, column: str, table: Any) -> DataError:
    return DataError(f"{where}: there is no column '{column}'; allowed: {', '.join(map(str, table.columns))}")


class _Reader:
    """Converts tables with the same columns to arrays."""

    def __init__(
        self, name: str, target: str, inputs: Sequence[str] | None, client: str | None, kind: Kind | None
    ) -> None:
        self.name, self.target, self.client, self.kind = name, target, client, kind
        self.inputs = None if inputs is None else list(inputs)

    def _check(self, where: str, table: Any, inputs: Sequence[str]) -> None:
        """Raise `DataError` for a missing column, a missing value, or inputs that are not numbers."""
        for column in (*inputs, self.target):
            if column not in table.columns:
                raise _missing(where, column, table)
            if table[column].isna().any():
                row = int(table[column].isna().argmax())
                raise DataError(f"{where}: column '{column}' has no value in row {row}; fill it in, or drop the row")
        for column in inputs:
            if table[column].dtype.kind not in "iufb":
                raise DataError(
                    f"{where}: column '{column}' has no numbers, such as '{table[column].iloc[0]}'; convert it to numbers, "
                    "or list the inputs (inputs=A+B on the command line)"
                )

    def pair(self, part: str, table: Any) -> Pair:
        """Inputs and targets of one client or of the test."""
        where = f"{self.name}, {part}"
        if len(table) == 0:
            return np.zeros((0, len(self.inputs or ())), np.float32), np.zeros(0, np.int64)
        if self.inputs is None:
            self.inputs = [column for column in table.columns if column not in (self.target, self.client)]
        self._check(where, table, self.inputs)
        targets = table[self.target]
        if targets.dtype.kind in "iub" or (self.kind == "classification" and targets.dtype.kind == "f"):
            values: np.ndarray[Any, Any] = targets.to_numpy(np.int64, copy=True)
        elif targets.dtype.kind == "f":
            values = targets.to_numpy(np.float32, copy=True)
        else:
            values = np.array([str(value) for value in targets], dtype=object)
        return table[self.inputs].to_numpy(np.float32, copy=True), values
