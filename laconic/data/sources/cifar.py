"""CIFAR-10 and CIFAR-100: 32x32 color images.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.

The official binary version is one record per image: the label (CIFAR-100: coarse label, fine label), then
1024 red, 1024 green and 1024 blue bytes. CIFAR-10 can also be read from its unpacked batches, or from
lossless WebP sheets of 100x100 tiles (`data_batch_1.webp`, ...) with idx labels, which are converted back to the
official layout to verify them.
"""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from itertools import takewhile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from laconic.core.errors import DataError, warn
from laconic.data.federated import Normalize
from laconic.data.files import Checksum, DataFile, Finder
from laconic.data.sources import idx
from laconic.data.sources.pool import DatasetInfo, Pool, Source, image_pool

PIXELS = 3 * 32 * 32
HOME = "https://www.cs.toronto.edu/~kriz/"
CIFAR10_ARCHIVE = DataFile(
    "cifar10",
    "cifar-10-binary.tar.gz",
    (HOME + "cifar-10-binary.tar.gz",),
    Checksum("md5", "c32a1d4ab5d03f1284b67883e8d87530"),
    171_000_000,
)
CIFAR100_ARCHIVE = DataFile(
    "cifar100",
    "cifar-100-binary.tar.gz",
    (HOME + "cifar-100-binary.tar.gz",),
    Checksum("md5", "03b5dce01913d631647c71ecec9e9cb8"),
    170_000_000,
)
CIFAR10_SUMS = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
TRAIN_BATCHES = [name for name in CIFAR10_SUMS if name != "test_batch"]
BATCH_SIZE = 10_000
CIFAR100_COUNTS = {"train": 50_000, "test": 10_000}
CIFAR10_NORMALIZE = ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
CIFAR100_NORMALIZE = ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))

Bytes = npt.NDArray[np.uint8]


def read_cifar10(finder: Finder) -> Pool:
    """Read CIFAR-10 from the first that exists: archive, unpacked batches, WebP sheets. Otherwise download it."""
    if finder.look(CIFAR10_ARCHIVE) is None:
        if finder.look(_unpacked("test_batch")) is not None:
            return _cifar10({name: finder.read(_unpacked(name)) for name in CIFAR10_SUMS})
        if finder.look(_sheet("test_batch")) is not None:
            return _cifar10(_sheets(finder))
    archive = finder.find(CIFAR10_ARCHIVE)
    return _cifar10({name: _member(archive, f"cifar-10-batches-bin/{name}.bin") for name in CIFAR10_SUMS})


def read_cifar100(finder: Finder) -> Pool:
    """Read CIFAR-100 with its 100 fine labels."""
    archive = finder.find(CIFAR100_ARCHIVE)
    train, test = (
        _records(_member(archive, f"cifar-100-binary/{name}.bin"), f"{name}.bin", 2, count)
        for name, count in CIFAR100_COUNTS.items()
    )
    return _pool(train, test, 100, CIFAR100_NORMALIZE)


def _cifar10(batches: dict[str, bytes]) -> Pool:
    """Verify batches in the official layout and split them into images and labels."""
    for name, content in batches.items():
        actual = hashlib.sha256(content).hexdigest()
        if actual != CIFAR10_SUMS[name]:
            raise DataError(f"cifar10: {name} is damaged: sha256 {actual}, expected {CIFAR10_SUMS[name]}")
    records = {name: _records(content, name, 1, BATCH_SIZE) for name, content in batches.items()}
    train = np.concatenate([records[name] for name in TRAIN_BATCHES if name in records])
    return _pool(train, records["test_batch"], 10, CIFAR10_NORMALIZE)


def _pool(train: Bytes, test: Bytes, classes: int, normalize: Normalize) -> Pool:
    """Split records into images and labels. The last byte before the image is the label."""
    train_images, test_images = (part[:, -PIXELS:].reshape(-1, 3, 32, 32) for part in (train, test))
    label = -PIXELS - 1
    return image_pool(train_images, train[:, label], test_images, test[:, label], classes, normalize)


def _records(content: bytes, name: str, label_bytes: int, count: int) -> Bytes:
    expected = count * (label_bytes + PIXELS)
    if len(content) != expected:
        raise DataError(f"{name} has {len(content)} bytes, expected {expected}")
    return np.frombuffer(content, np.uint8).reshape(count, label_bytes + PIXELS)


def _member(archive: Path, name: str) -> bytes:
    try:
        with tarfile.open(archive) as opened:
            stream = opened.extractfile(name)
            if stream is None:
                raise KeyError(name)
            # No member has more than 50,000 records of two labels and an image. Nothing is unpacked to disk.
            return stream.read(50_000 * (2 + PIXELS) + 1)
    except (KeyError, tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} has no readable member {name}: {error}") from error


def _unpacked(name: str) -> DataFile:
    return DataFile("cifar10", f"{name}.bin", checksum=Checksum("sha256", CIFAR10_SUMS[name]))


def _sheet(name: str) -> DataFile:
    return DataFile("cifar10", f"{name}.webp")


def _sheets(finder: Finder) -> dict[str, bytes]:
    """Read the consecutive training sheets that exist and the test sheet, in the official layout."""
    present = list(takewhile(lambda name: finder.look(_sheet(name)) is not None, TRAIN_BATCHES))
    if not present:
        raise DataError("cifar10: found test_batch.webp, but not data_batch_1.webp")
    if len(present) < len(TRAIN_BATCHES):
        count = BATCH_SIZE * len(present)
        warn(f"cifar10: only the first {count} of 50000 training images are here")
    train_labels, test_labels = (
        idx.parse(finder.read(DataFile("cifar10", name)), name, (count,))
        for name, count in (
            ("train-labels-idx1-ubyte", BATCH_SIZE * len(TRAIN_BATCHES)),
            ("test-labels-idx1-ubyte", BATCH_SIZE),
        )
    )
    labels = dict(zip(TRAIN_BATCHES, np.split(train_labels, len(TRAIN_BATCHES)), strict=True))
    labels["test_batch"] = test_labels
    return {name: _official(finder.find(_sheet(name)), labels[name]) for name in [*present, "test_batch"]}


def _official(path: Path, labels: npt.NDArray[np.integer]) -> bytes:
    """Convert a sheet and its labels to the bytes of the official batch."""
    try:
        with Image.open(path) as image:
            sheet = np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if sheet.shape != (3200, 3200, 3):
        raise DataError(f"{path} is a picture of {sheet.shape[1]}x{sheet.shape[0]} pixels, expected 3200x3200")
    tiles = sheet.reshape(100, 32, 100, 32, 3).transpose(0, 2, 4, 1, 3).reshape(BATCH_SIZE, PIXELS)
    return np.concatenate([labels.astype(np.uint8)[:, None], tiles], axis=1).tobytes()


def _info(name: str, description: str, classes: int, address: str) -> DatasetInfo:
    return DatasetInfo(
        name=name,
        description=description,
        train_size=50_000,
        test_size=10_000,
        shape=(3, 32, 32),
        classes=classes,
        license="none stated; the authors ask to be cited",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        address=address,
    )


CIFAR10 = Source(_info("cifar10", "color photographs of 10 things", 10, CIFAR10_ARCHIVE.addresses[0]), read_cifar10)
CIFAR100 = Source(
    _info("cifar100", "color photographs of 100 things", 100, CIFAR100_ARCHIVE.addresses[0]), read_cifar100
)
