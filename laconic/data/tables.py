"""CSV and Parquet files and DataFrames: one per client, or one with a column that names each row's client."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np

from laconic.core.counts import counted
from laconic.core.errors import DataError, missing_extra, suggestion, warn
from laconic.data.arrays import Pair, doubt_guesses, not_a_number, pooled, without_empty
from laconic.data.columns import Columns
from laconic.data.divide import TEST_NAMES, check_client_names, divided, split_test
from laconic.data.doubts import doubt_scale
from laconic.data.federated import FederatedData, Kind, Normalize

TABLES = (".csv", ".parquet")


def from_table(
    table: str | os.PathLike[str] | Any,
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
    scale: bool = False,
    seed: int = 0,
    skip_empty: bool = False,
) -> FederatedData:
    """Build federated data from a CSV or Parquet file, a folder of them with one file per client, or a pandas DataFrame.

    The target is a column of text or whole numbers (classification) or of other numbers (regression); `kind` overrides
    this. A file named `test` in a folder is the test set; without one, `validation` is.

    Args:
        table: The file, folder or DataFrame.
        target: The column to predict.
        inputs: The columns of numbers that the model gets. Default: all but `target` and `client`.
        client: The column that names each row's client. Without it, each file of a folder is a client, and the rows of one
            file are divided among clients.
        clients: The number of clients, if the rows of one file are divided. Default: 100.
        partition: How the rows of one file are divided. Default: iid.
        test: Share of each client's rows that is held out for the test, the same rows with every seed.
        kind: Defaults to what the target column suggests, as above.
        classes: As for `from_arrays`.
        labels: As for `from_arrays`.
        scale: Subtract the mean of each input column and divide by its standard deviation. Both are computed from the
            training rows of all clients together, so every client's inputs depend on the others' data. In a deployment,
            pass the same `normalize` to `from_arrays` on every node instead.
        seed: The seed of the partition.
        skip_empty: Leave out clients without examples instead of refusing them.
    """
    name, sources, test_source = _sources(table)
    read = _Reader(target, inputs, client)
    tables = read.tables(sources)
    pairs = [read.pair(rows) for rows in tables.values()]
    without_empty(name, pairs, lambda pair: len(pair[1]), skip_empty, [*tables])
    if test_source is None:
        pairs, test_pair = split_test(pairs, test)
    else:
        test_pair = read.test_pair(test_source)
    data = pooled(pairs, test_pair, kind, classes, name, _scales(pairs) if scale else None, labels, skip_empty)
    data = replace(data, columns=tuple(read.inputs or ()), selection=Columns(target=target))
    doubt_guesses(data, kind, classes)
    if not scale:
        doubt_scale(name, data.examples.inputs, read.inputs, "pass scale=True (--dataset …,scale=true)")
    if client is None and len(tables) == 1:
        return divided(data, False, clients, partition, seed)
    if client is None:
        check_client_names(name, tables, "file", "pass client=COLUMN")
    data = data.named([owner for owner, rows in tables.items() if len(rows)])
    return divided(data, True, clients, partition, seed)


def _scales(pairs: Sequence[Pair]) -> Normalize:
    """Mean and standard deviation of each input column over all clients. A column of one value is only shifted."""
    rows = np.concatenate([inputs for inputs, _ in pairs if len(inputs)]).astype(np.float64)
    deviations = rows.std(0)
    return tuple(rows.mean(0).tolist()), tuple(np.where(deviations > 0, deviations, 1).tolist())


@dataclass(frozen=True, eq=False)
class _Source:
    """A table, and the file that it comes from."""

    name: str
    rows: Any
    file: Path | None = None

    def __post_init__(self) -> None:
        repeated = self.rows.columns[self.rows.columns.duplicated()]
        if len(repeated):
            raise DataError(f"{self.where}: several columns have the name '{repeated[0]}'; rename all but one of them")

    @property
    def where(self) -> str:
        """The start of an error message."""
        return self.name if self.file is None else self.file.name

    def place(self, row: int) -> str:
        """A row of the table as the user can find it."""
        # The first line of a CSV file has the names of the columns.
        is_text = self.file is not None and self.file.suffix.lower() == ".csv"
        return f"line {row + 2}" if is_text else f"row {self.rows.index[row]}"

    def content(self, column: str) -> Literal["numbers", "text"] | None:
        """What a column has; None if there is no such column."""
        if column not in self.rows.columns:
            return None
        return "numbers" if self.rows[column].dtype.kind in "iufb" else "text"

    def check_column(self, column: str) -> None:
        """Raise `DataError` if there is no such column, or if one of its values is missing or infinite."""
        if column not in self.rows.columns:
            names = list(map(str, self.rows.columns))
            near = suggestion(column, names) or f"allowed: {', '.join(names)}"
            raise DataError(f"{self.where}: there is no column '{column}'; {near}")
        missing = self.rows[column].isna()
        if missing.any():
            place, more = self.place(int(missing.to_numpy().argmax())), int(missing.sum()) - 1
            others = f" and {counted(more, 'more row')}" if more else ""
            raise DataError(
                f"{self.where}: column '{column}' has no value in {place}{others}; fill it in, or drop the row"
            )
        infinite = self.rows[column].isin([np.inf, -np.inf])
        if infinite.any():
            place = self.place(int(infinite.to_numpy().argmax()))
            raise DataError(
                f"{self.where}: column '{column}' is infinite in {place}; write a finite number, or drop the row"
            )


def _sources(table: str | os.PathLike[str] | Any) -> tuple[str, list[_Source], _Source | None]:
    """The data's name, the tables of the clients, and that of the test, if a folder has one."""
    if hasattr(table, "iloc"):
        return "table", [_Source("table", table)], None
    path = Path(table)
    if not path.is_dir():
        return path.stem, [_read(path)], None
    files = _files(path)
    tests = {name: [file for file in files if file.stem.lower() == name] for name in TEST_NAMES}
    held_out = [file for named in tests.values() for file in named]
    used = next((named for named in tests.values() if named), [])
    if len(used) > 1:
        raise DataError(f"{path}: {used[0].name} and {used[1].name} are both test sets; keep one of them")
    train = [_read(file) for file in files if file not in held_out]
    if not train:
        raise DataError(f"{path}: there is no file beside the test set {used[0].name}")
    return path.stem, train, _read(used[0]) if used else None


def is_table_file(path: Path) -> bool:
    """Whether the name of a file is that of a table."""
    return path.suffix.lower() in TABLES


def _files(path: Path) -> list[Path]:
    files = sorted(filter(is_table_file, path.iterdir()))
    if not files:
        raise DataError(f"{path}: no {' or '.join(TABLES)} file in this folder")
    return files


def _pandas(what: str) -> Any:
    try:
        return import_module("pandas")  # an extra
    except ImportError:
        raise missing_extra(f"{what} needs pandas", "tables") from None


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A pandas DataFrame with one row per mapping."""
    return _pandas("to_pandas()").DataFrame(list(rows))


def _read(file: Path) -> _Source:
    pd = _pandas(f"{file}: a table")
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    try:
        rows = pd.read_csv(file) if file.suffix.lower() == ".csv" else pd.read_parquet(file)
    except pd.errors.EmptyDataError:
        rows = pd.DataFrame()
    except (ValueError, OSError, ImportError) as error:
        raise DataError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if len(rows.columns) == 1 and (found := re.search(r"[;\t|]", str(rows.columns[0]))):
        raise DataError(
            f"{file.name}: the columns are separated by {found[0]!r}; write the file with commas, or read it in Python: "
            f"from_table(pandas.read_csv('{file.name}', sep={found[0]!r}), …)"
        )
    return _Source(file.stem, rows, file)


def _by_client(tables: Mapping[str, Any], client: str) -> dict[str, Any]:
    rows: dict[str, list[Any]] = {}
    for table in tables.values():
        for owner, part in table.groupby(client, sort=False):
            rows.setdefault(str(owner), []).append(part)
    import pandas as pd  # an extra

    return {owner: pd.concat(parts) for owner, parts in rows.items()}


class _Reader:
    """Converts tables with the same columns to arrays."""

    def __init__(self, target: str, inputs: Sequence[str] | None, client: str | None) -> None:
        self.target, self.client = target, client
        self.inputs = None if inputs is None else list(inputs)

    def tables(self, sources: Sequence[_Source]) -> dict[str, Any]:
        """Check the sources, and return the rows of each client, or of each source if no column names clients."""
        self.check_same([source for source in sources if len(source.rows)])
        for source in sources:
            self.check(source, owned=True)
        tables = {source.name: source.rows for source in sources}
        return tables if self.client is None else _by_client(tables, self.client)

    def test_pair(self, source: _Source) -> Pair:
        """Check the test set, and return its inputs and targets."""
        self.check(source, owned=False)
        return self.pair(source.rows)

    def check_same(self, sources: Sequence[_Source]) -> None:
        """Raise `DataError` if only some tables have an input, or if targets are numbers in some and text in others."""
        pairs = [(sources[0], other) for other in sources[1:]]
        for one, other in pairs + [(other, one) for one, other in pairs]:
            more = [column for column in self._candidates(one) if column not in other.rows.columns]
            if more and self.inputs is None:
                raise DataError(
                    f"{one.where} has the column '{more[0]}', but {other.where} does not; add or remove it, or list the "
                    "inputs (inputs=A+B on the command line)"
                )
            if (one.content(self.target), other.content(self.target)) == ("numbers", "text"):
                raise DataError(
                    f"{one.where} has numbers in column '{self.target}', but {other.where} has text; write it in one way"
                )

    def _candidates(self, source: _Source) -> list[str]:
        """All columns that may be inputs."""
        return [column for column in source.rows.columns if column not in (self.target, self.client)]

    def check(self, source: _Source, owned: bool) -> None:
        """Raise `DataError` for a missing column, a missing value, or inputs that are not numbers.

        `owned` says whether the rows belong to clients: not those of a test file.
        """
        rows = source.rows
        if len(rows) == 0:
            return
        if self.inputs is None:
            self.inputs = self._all_inputs(source)
        clients = [self.client] if owned and self.client is not None else []
        for column in (*clients, *self.inputs, self.target):
            source.check_column(column)
        for column in self.inputs:
            if source.content(column) == "text":
                self._refuse(source, column, rows[column])

    def _all_inputs(self, source: _Source) -> list[str]:
        inputs = self._candidates(source)
        for column in inputs:
            if str(column).startswith("Unnamed:"):
                warn(
                    f"{source.where}: an input has no name ('{column}'); is it the index of a DataFrame? write the file "
                    "with to_csv(…, index=False), or list the inputs (inputs=A+B on the command line)"
                )
        return inputs

    def _refuse(self, source: _Source, column: str, values: Any) -> None:
        """Refuse an input that is not numbers. If values repeat, it may be the column of clients."""
        found, row = not_a_number(values)
        if row is not None:
            raise DataError(
                f"{source.where}: column '{column}' has '{found}' in {source.place(row)}; write a number, or drop the row"
            )
        clients = self.client is None and values.nunique() <= len(values) / 2
        question = f"is it the column of clients? client={column}; if not, " if clients else ""
        raise DataError(
            f"{source.where}: column '{column}' has no numbers, such as '{found}'; {question}convert it to numbers, "
            "or list the inputs (inputs=A+B on the command line)"
        )

    def pair(self, rows: Any) -> Pair:
        """Inputs and targets of one client or of the test."""
        if len(rows) == 0:
            return np.zeros((0, len(self.inputs or ())), np.float32), np.zeros(0, np.int64)
        targets = rows[self.target]
        if targets.dtype.kind in "iub":
            values: np.ndarray[Any, Any] = targets.to_numpy(np.int64, copy=True)
        elif targets.dtype.kind == "f":
            values = targets.to_numpy(np.float32, copy=True)
        else:
            values = np.array([str(value) for value in targets], dtype=object)
        return rows[self.inputs].to_numpy(np.float32, copy=True), values
