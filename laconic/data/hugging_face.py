"""Data sets of Hugging Face and of Flower Datasets, recognized by what they can do: neither is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from laconic.core.errors import DataError, warn
from laconic.data.columns import CLIENT_COLUMNS, TARGETS, Columns, is_hugging_face, shown
from laconic.data.divide import TEST_NAMES, TRAIN_NAMES, check_client_names, divided
from laconic.data.federated import FederatedData, Kind, Normalize
from laconic.data.lazy import LazyData, columns_of, from_datasets


def is_hub_data(value: object) -> bool:
    """Whether a value is a Hugging Face data set, a dict of its splits, or partitioned data of Flower Datasets."""
    splits = isinstance(value, Mapping) and len(value) > 0 and all(map(is_hugging_face, value.values()))
    return splits or is_hugging_face(value) or _is_list(value) or _is_partitioner(value) or _is_federated_dataset(value)


def from_hugging_face(
    data: Any,
    *,
    inputs: str | Sequence[str] | None = None,
    target: str | None = None,
    client: str | None = None,
    clients: int | None = None,
    partition: str | None = None,
    test: Any = None,
    kind: Kind | None = None,
    classes: int | None = None,
    labels: Sequence[str] | None = None,
    name: str = "datasets",
    normalize: Normalize | None = None,
    seed: int = 0,
    in_memory: bool = False,
    skip_empty: bool = False,
) -> FederatedData | LazyData:
    """Build federated data from a `datasets.Dataset`, a `DatasetDict` or a list of data sets, or from Flower Datasets.

    The first of these that applies gives the clients: the data sets of a list; the partitions of a Flower partitioner or
    `FederatedDataset`; the values of the column `client`; the splits of a `DatasetDict` without "train"; a partition of all
    examples, by default `iid` over 100 clients, as for a named data set. A data set with `set_transform` is read batch
    by batch, any other one once.

    Args:
        data: The data set, or one data set per client as listed above.
        inputs: The input's column, or several columns of numbers. Default: the columns of a tokenizer, if there
            are some; otherwise all columns but those with names of targets and clients.
        target: The target's column. Default: "label", "labels" or "target".
        client: The column that names each example's client. Default: "client" or "client_id", if there is one.
        clients: The number of clients, if the data does not name them. Default: 100.
        partition: How examples are divided, if the data does not name clients. Default: iid.
        test: The test set. Default: the split "test". If there is none, or if all of its labels are -1: another split of
            `TEST_NAMES`, such as "validation" or "dev".
        kind: As for `from_arrays`; next_token for tokens without labels, or with labels that equal them.
        classes: The number of classes. Default: that of the target's `ClassLabel`, or found in the data.
        labels: As for `from_arrays`.
        name: The name of the data in tables and reports.
        normalize: As for `from_arrays`. Images are scaled to -1..1 by default.
        seed: The seed of the partition.
        in_memory: Read every example once and keep it, even if the data set has a transform.
        skip_empty: Leave out clients without examples instead of refusing them.
    """
    parts, names, test, has_clients = _clients(data, test, client, Columns(inputs, target))
    if not parts:
        raise DataError(f"{name}: there are no clients")
    first = next((part for part in parts if len(part)), parts[0])
    columns, kind = columns_of(name, first, inputs, target, kind)
    if normalize is None and _has_images(first, columns):
        normalize = _half(first, columns)
    made = from_datasets(
        parts,
        test,
        kind,
        classes,
        name,
        normalize,
        labels,
        inputs=inputs,
        target=target,
        in_memory=in_memory,
        skip_empty=skip_empty,
    )
    if names is not None:
        # Empty clients were left out.
        made = made.named([owner for owner, part in zip(names, parts, strict=True) if len(part)])
    return divided(made, has_clients, clients, partition, seed)


def _clients(
    data: Any, test: Any, client: str | None, columns: Columns
) -> tuple[list[Any], list[str] | None, Any, bool]:
    """The data sets of the clients, or one that is not divided yet; their names, if they have some; the test set; and
    whether there are clients.
    """
    parts, names, test = _parts(data, test, columns)
    if client is None and len(parts) == 1 and not _is_list(data):
        client = next((column for column in CLIENT_COLUMNS if column in parts[0].column_names), None)
    if client is not None:
        by_client = _by_client(parts, client)
        return [part for _, part in by_client], [owner for owner, _ in by_client], _without(test, client), True
    return parts, names, test, len(parts) > 1 or _is_list(data) or _is_partitioner(data) or _is_federated_dataset(data)


def _has_images(part: Any, columns: Columns) -> bool:
    """Whether inputs are images. The types of the columns of a transform's result are unknown."""
    if part.format["type"] == "custom":
        return False
    return any(type(part.features[column]).__name__ == "Image" for column in columns.names(shown(part))[0])


def _parts(data: Any, test: Any, columns: Columns) -> tuple[list[Any], list[str] | None, Any]:
    """The data sets of the clients and their names, if they have some, or one that is not divided yet; and the test set."""
    if _is_federated_dataset(data):
        return _parts(*_split(data, test, columns), columns)
    if _is_partitioner(data):
        numbers = range(data.num_partitions)
        owners = getattr(data, "partition_id_to_natural_id", None)
        parts = [data.load_partition(number) for number in numbers]
        return parts, [str(owners[number]) for number in numbers] if owners else None, test
    if isinstance(data, Mapping):
        return _of_splits(data, test, columns)
    return [*data] if _is_list(data) else [data], None, test


def _of_splits(data: Mapping[Any, Any], test: Any, columns: Columns) -> tuple[list[Any], list[str] | None, Any]:
    """The parts of a `DatasetDict`: its split "train", or each other split as a client."""
    splits = {str(split).lower(): split for split in data}
    if test is None:
        test = _chosen_test(((name, data[splits[name]]) for name in TEST_NAMES if name in splits), columns)
    train = next((splits[name] for name in TRAIN_NAMES if name in splits), None)
    others = {str(split): data[split] for name, split in splits.items() if name not in TEST_NAMES}
    if train is not None:
        if test is None:
            _warn_of_ignored(str(train), others)
        return [data[train]], None, test
    if len(others) <= 1:
        return [*others.values()], None, test
    check_client_names("splits", others, "split", "pass the data sets of the clients in a list")
    return [*others.values()], [*others], test


def _warn_of_ignored(train: str, splits: Iterable[str]) -> None:
    """Warn if splits other than the training split are ignored although there is no test set."""
    ignored = [name for name in splits if name != train]
    if ignored:
        names = ", ".join(f"'{name}'" for name in ignored)
        warn(
            f"only the split '{train}' is used, not {names}, and there is no test set; pass from_hugging_face(data, "
            f"test=data['{ignored[0]}'])"
        )


def _split(data: Any, test: Any, columns: Columns) -> tuple[Any, Any]:
    """The partitioner of the training split of a `FederatedDataset`, and the test set."""
    splits = list(data.partitioners)
    if test is None:
        test = _chosen_test(_loaded(data, [name for name in TEST_NAMES if name not in splits]), columns)
    return data.partitioners[next((name for name in TRAIN_NAMES if name in splits), splits[0])], test


def _loaded(data: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The splits of a `FederatedDataset` that exist."""
    for name in names:
        try:
            split = data.load_split(name)
        except (KeyError, ValueError):
            continue
        yield name, split


def _chosen_test(tests: Iterable[tuple[str, Any]], columns: Columns) -> Any:
    """The first split whose labels are not kept secret; the first one if all are; None if there is none."""
    secret: list[tuple[str, Any]] = []
    for name, split in tests:
        if not _is_unlabeled(split, columns):
            if secret:
                warn(f"all labels of the split '{secret[0][0]}' are -1, so the split '{name}' is the test set")
            return split
        secret.append((name, split))
    return secret[0][1] if secret else None


def _by_client(parts: Sequence[Any], client: str) -> list[tuple[str, Any]]:
    """The clients' names and data sets."""
    divided: list[tuple[str, Any]] = []
    for part in parts:
        if client not in part.column_names:
            raise DataError(
                f"there is no column '{client}' that names clients; allowed: {', '.join(part.column_names)}"
            )
        owners = np.array(part.with_format(None, columns=[client])[:][client])
        rest = part.remove_columns(client)
        for owner in dict.fromkeys(owners.tolist()):
            divided.append((str(owner), rest.select(np.flatnonzero(owners == owner))))
    return divided


def _without(test: Any, client: str) -> Any:
    return test.remove_columns(client) if is_hugging_face(test) and client in test.column_names else test


def _is_unlabeled(part: Any, columns: Columns) -> bool:
    """Whether the labels are kept secret, as in the test splits of GLUE: all are -1."""
    if part.format["type"] == "custom" or not any(name in shown(part) for name in (columns.target, *TARGETS)):
        return False
    _, target = columns.names(shown(part))
    labels = part.with_format(None, columns=[target])[:][target]
    return len(labels) > 0 and all(label == -1 for label in labels)


def _half(part: Any, columns: Columns) -> Normalize:
    pair = columns.tensors(part.select(range(1)))
    assert pair is not None
    return ((0.5,) * pair[0].shape[1], (0.5,) * pair[0].shape[1])


def _is_list(value: object) -> bool:
    """Whether a value is a list with one Hugging Face data set per client."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(is_hugging_face, value))


def _is_partitioner(value: object) -> bool:
    return hasattr(value, "load_partition") and hasattr(value, "num_partitions")


def _is_federated_dataset(value: object) -> bool:
    return hasattr(value, "load_partition") and hasattr(value, "load_split")
