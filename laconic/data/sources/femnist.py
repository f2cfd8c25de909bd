"""FEMNIST: handwritten digits and letters by writer (Caldas et al., "LEAF: a benchmark for federated settings", 2018).

Nobody hosts the prepared files: LEAF's script creates them from NIST's. Laconic reads its output,
`train/*.json` and `test/*.json`, or one `femnist_leaf_sample.npz` (x_train, y_train, writer_train, x_test,
y_test). LEAF has dark ink on white paper; the images are inverted to look like MNIST's.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laconic.core.errors import DataError
from laconic.data.files import DataFile, Finder
from laconic.data.sources.pool import DatasetInfo, Pool, Source, group_by, image_pool

SAMPLE = DataFile("femnist", "femnist_leaf_sample.npz")
HOME = "https://github.com/TalwalkarLab/leaf"
HOW_TO = (
    f"make it with LEAF ({HOME}): in data/femnist run './preprocess.sh -s niid --sf 1.0 -k 0 -t sample', "
    "then put data/train and data/test into a folder femnist in $LACONIC_DATA"
)

Bytes = npt.NDArray[np.uint8]


def read(finder: Finder) -> Pool:
    """Read FEMNIST with one natural client per writer and LEAF's test split of each writer."""
    for folder in finder.folders("femnist"):
        for home in (folder, folder / "data"):
            if any((home / "train").glob("*.json")):
                train, test = _read_json(home / "train"), _read_json(home / "test")
                return _pool(*train[:3], *test[:2], train[3])
    sample = finder.look(SAMPLE)
    if sample is None:
        roots = ", ".join(map(str, finder.roots()))
        raise DataError(f"femnist is not on this machine (looked in {roots}): {HOW_TO}")
    return _pool(*_read_sample(sample))


def _pool(
    train: Bytes,
    labels: Bytes,
    writers: npt.NDArray[np.integer],
    test: Bytes,
    test_labels: Bytes,
    names: Sequence[str],
) -> Pool:
    """The data set. `names[number]` is the name of the writer with this number."""
    present = [names[writer] for writer in np.unique(writers)]
    return image_pool(255 - train, labels, 255 - test, test_labels, 62, groups=group_by(writers), names=present)


def _read_sample(path: Path) -> tuple[Bytes, Bytes, npt.NDArray[np.integer], Bytes, Bytes, Sequence[str]]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            names = ("x_train", "y_train", "writer_train", "x_test", "y_test")
            x_train, y_train, writer, x_test, y_test = (stored[name] for name in names)
            numbers = range(int(writer.max()) + 1 if len(writer) else 0)
            writers = stored["writers"].tolist() if "writers" in stored else [*map(str, numbers)]
            if len(writers) < len(numbers):
                raise ValueError(f"{len(writers)} names for {len(numbers)} writers")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    return x_train, y_train, writer, x_test, y_test, writers


def _read_json(folder: Path) -> tuple[Bytes, Bytes, npt.NDArray[np.integer], list[str]]:
    """Read all LEAF files in a folder, writer by writer. An image is 784 numbers: white is 1.0, ink 0.0."""
    pictures: list[Bytes] = []
    labels: list[Bytes] = []
    sizes: list[int] = []
    names: list[str] = []
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise DataError(f"{folder} has no *.json files; LEAF writes train and test together")
    for path in paths:
        try:
            for name, user in _users(path):
                pictures.append(_pixels(user["x"]))
                labels.append(np.asarray(user["y"], dtype=np.uint8))
                if pictures[-1].shape != (len(labels[-1]), 28, 28):
                    raise ValueError(f"{len(labels[-1])} labels for {len(pictures[-1])} images")
                sizes.append(len(labels[-1]))
                names.append(name)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise DataError(f"{path} is not a LEAF file of FEMNIST: {type(error).__name__}: {error}") from error
    return np.concatenate(pictures), np.concatenate(labels), np.repeat(np.arange(len(sizes)), sizes), names


def _users(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and examples of the non-empty writers of one file, in LEAF's order."""
    content = json.loads(path.read_text(encoding="utf-8"))
    users = [(str(name), content["user_data"][name]) for name in content["users"]]
    return [(name, user) for name, user in users if len(user["y"])]


def _pixels(rows: list[list[float]]) -> Bytes:
    values = np.asarray(rows, dtype=np.float64).reshape(len(rows), 28, 28)
    if not (values.min() >= 0 and values.max() <= 1):
        raise ValueError("pixels must lie between 0 and 1")
    return np.rint(values * 255).astype(np.uint8)


FEMNIST = Source(
    DatasetInfo(
        name="femnist",
        description="handwritten digits and letters, one client per writer (817,851 images); made with LEAF",
        train_size=None,
        test_size=None,
        shape=(1, 28, 28),
        classes=62,
        natural_clients=3_597,
        license="US government work (NIST Special Database 19); LEAF BSD 2-Clause",
        citation="Caldas et al., LEAF: a benchmark for federated settings, 2018",
        address=HOME,
    ),
    read,
)
