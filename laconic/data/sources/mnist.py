"""MNIST and its relatives: 28x28 gray images in idx files.

MNIST: LeCun, Bottou, Bengio and Haffner, "Gradient-based learning applied to document recognition", 1998.
Writers: Yadav and Bottou, "Cold case: the lost MNIST digits" (QMNIST), 2019. Fashion-MNIST: Xiao, Rasul and
Vollgraf, 2017. EMNIST: Cohen, Afshar, Tapson and van Schaik, 2017.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from laconic.core.errors import DataError
from laconic.data.files import Checksum, DataFile, Finder, blocks
from laconic.data.sources import idx
from laconic.data.sources.pool import DatasetInfo, Pool, Source, group_by, image_pool

MNIST_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
FASHION_MIRRORS = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
)
PARTS = (
    ("train-images-idx3-ubyte.gz", (60_000, 28, 28)),
    ("train-labels-idx1-ubyte.gz", (60_000,)),
    ("t10k-images-idx3-ubyte.gz", (10_000, 28, 28)),
    ("t10k-labels-idx1-ubyte.gz", (10_000,)),
)


def _files(folder: str, mirrors: tuple[str, ...], sums: tuple[str, ...]) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(folder, name, tuple(mirror + name for mirror in mirrors), Checksum("sha256", value), idx.size(shape))
        for (name, shape), value in zip(PARTS, sums, strict=True)
    )


MNIST_FILES = _files(
    "mnist",
    MNIST_MIRRORS,
    (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
FASHION_FILES = _files(
    "fashion-mnist",
    FASHION_MIRRORS,
    (
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
)
WRITERS_FILE = DataFile(
    "mnist",
    "qmnist-train-labels-idx2-int.gz",
    ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",),
    Checksum("sha256", "bb1b6e1ec7b04fd5696f1ed50b5f58f8ef195118edd5c93c81783df9740b8ac5"),
    idx.size((60_000, 8), 4),
)
EMNIST_ARCHIVE = DataFile(
    "emnist",
    "gzip.zip",
    ("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
    Checksum("md5", "58c8d27c78d21e728a6bc7b3cc06412e"),
    563_000_000,
)
# The published checksums of the members cover the .gz files. There are none for the labels: the archive's checksum
# covers them, and for unpacked files the reader checks header and length.
EMNIST_FILES = (
    DataFile(
        "emnist",
        "emnist-digits-train-images-idx3-ubyte.gz",
        checksum=Checksum("sha256", "f7c95004d14d81af89522e67d8f0c781dfb3bd544181c81bfe1eb6b41c35b726", stored=True),
        size=idx.size((240_000, 28, 28)),
    ),
    DataFile("emnist", "emnist-digits-train-labels-idx1-ubyte.gz", size=idx.size((240_000,))),
    DataFile(
        "emnist",
        "emnist-digits-test-images-idx3-ubyte.gz",
        checksum=Checksum("sha256", "20ebe43509264f7639d37c835a3f0b009e90b29e00a099a03101abe1644a3f63", stored=True),
        size=idx.size((40_000, 28, 28)),
    ),
    DataFile("emnist", "emnist-digits-test-labels-idx1-ubyte.gz", size=idx.size((40_000,))),
)
EMNIST_COUNTS = (240_000, 40_000)


def read_mnist(finder: Finder) -> Pool:
    """Read MNIST, normalized with its own mean and standard deviation."""
    return _read(finder, MNIST_FILES, 0.1307, 0.3081)


def read_mnist_by_writer(finder: Finder) -> Pool:
    """Read MNIST with one natural client per writer, from QMNIST's extended labels (column 2 is the writer)."""
    pool = read_mnist(finder)
    extended = idx.parse(finder.read(WRITERS_FILE), WRITERS_FILE.name, (60_000, 8))
    if not np.array_equal(extended[:, 0], pool.train.targets.numpy()):
        raise DataError(f"the digits in {WRITERS_FILE.name} differ from MNIST's labels")
    writers = extended[:, 2]
    return replace(pool, groups=group_by(writers), names=[str(writer) for writer in np.unique(writers)])


def read_emnist_digits(finder: Finder) -> Pool:
    """Read EMNIST's digits. The published images are transposed; this function transposes them back."""
    archive = None if finder.look(EMNIST_FILES[0]) else finder.find(EMNIST_ARCHIVE)
    arrays = []
    for position, file in enumerate(EMNIST_FILES):
        content = finder.read(file) if archive is None else _member(archive, file)
        count = EMNIST_COUNTS[position // 2]
        arrays.append(idx.parse(content, file.name, (count, 28, 28) if position % 2 == 0 else (count,)))
    train, train_labels, test, test_labels = arrays
    return image_pool(_bytes(train).transpose(0, 2, 1), train_labels, _bytes(test).transpose(0, 2, 1), test_labels)


def _read(finder: Finder, files: tuple[DataFile, ...], mean: float, deviation: float) -> Pool:
    arrays = [idx.parse(finder.read(file), file.name, shape) for file, (_, shape) in zip(files, PARTS, strict=True)]
    train, train_labels, test, test_labels = arrays
    return image_pool(_bytes(train), train_labels, _bytes(test), test_labels, normalize=((mean,), (deviation,)))


def _bytes(array: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    return array.astype(np.uint8, copy=False)


def _member(archive: Path, file: DataFile) -> bytes:
    """Read one idx file from NIST's archive, uncompressed."""
    try:
        with zipfile.ZipFile(archive) as opened:
            member = opened.getinfo(f"gzip/{file.name}")
            if member.file_size > file.most:
                raise zipfile.BadZipFile(f"it has {member.file_size} bytes, at most {file.most} are expected")
            stored = opened.read(member)
        with gzip.open(io.BytesIO(stored)) as stream:
            content = b"".join(blocks(archive, stream, file.size))
    except (KeyError, zipfile.BadZipFile, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} has no readable member gzip/{file.name}: {error}") from error
    expected = file.checksum
    if expected is not None and hashlib.new(expected.algorithm, stored).hexdigest() != expected.value:
        raise DataError(f"{archive}: member {file.name} is damaged: expected {expected.algorithm} {expected.value}")
    return content


def _info(name: str, description: str, license: str, citation: str, address: str, **others: Any) -> DatasetInfo:
    sizes: dict[str, Any] = {"train_size": 60_000, "test_size": 10_000, "shape": (1, 28, 28), "classes": 10}
    return DatasetInfo(name, description, license=license, citation=citation, address=address, **(sizes | others))


MNIST_LICENSE = "none stated (often given as CC BY-SA 3.0)"
MNIST = Source(
    _info("mnist", "handwritten digits", MNIST_LICENSE, "LeCun et al., 1998", MNIST_MIRRORS[0]), read_mnist, MNIST_FILES
)
MNIST_BY_WRITER = Source(
    _info(
        "mnist-by-writer",
        "MNIST, one client per writer (19 to 131 images each)",
        f"MNIST: {MNIST_LICENSE}; writer labels: BSD",
        "LeCun et al., 1998; Yadav and Bottou, 2019",
        "https://github.com/facebookresearch/qmnist",
        natural_clients=539,
    ),
    read_mnist_by_writer,
    (*MNIST_FILES, WRITERS_FILE),
)
FASHION_MNIST = Source(
    _info("fashion-mnist", "pictures of clothing", "MIT", "Xiao, Rasul and Vollgraf, 2017", FASHION_MIRRORS[0]),
    partial(_read, files=FASHION_FILES, mean=0.2860, deviation=0.3530),
    FASHION_FILES,
)
EMNIST_DIGITS = Source(
    _info(
        "emnist-digits",
        "handwritten digits, four times as many as MNIST",
        "US government work",
        "Cohen, Afshar, Tapson and van Schaik, 2017",
        EMNIST_ARCHIVE.addresses[0],
        train_size=240_000,
        test_size=40_000,
    ),
    read_emnist_digits,
)
