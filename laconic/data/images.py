"""Images in folders: `class/image.png`, or `client/class/image.png`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from laconic.core.errors import DataError
from laconic.data.arrays import Pair, from_arrays
from laconic.data.columns import eight_bits
from laconic.data.divide import TEST_NAMES, TRAIN_NAMES, divided, split_test
from laconic.data.doubts import doubt_classes
from laconic.data.federated import FederatedData

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")


def from_images(
    root: str | os.PathLike[str],
    *,
    size: int | None = None,
    clients: int | None = None,
    partition: str | None = None,
    test: float = 0.2,
    seed: int = 0,
    skip_empty: bool = False,
) -> FederatedData:
    """Build federated data from a folder of images, `root/class/*.png` or `root/client/class/*.png`.

    Folders `root/train` and `root/test` may contain these. `root/validation` is the test set if there is no `root/test`.
    Images are kept as uint8 and scaled to -1..1 for the model.

    Args:
        root: The folder.
        size: Resize every image to `size` x `size`. Without it, all images must have the same size.
        clients: Number of clients, if the folders do not name them (default: 100); else, how many to draw at random.
        partition: How images are divided, if the folders do not name clients. Default: iid.
        test: Share of each client's images that is held out, the same ones with every seed, if there is no folder `test`.
        seed: The seed of the partition.
        skip_empty: Leave out clients without examples instead of refusing them.
    """
    root = Path(root)
    start, tests = _parts(root)
    groups = _by_client(start, tests)
    in_test = _files(tests[0]) if tests else []
    has_clients = groups.keys() != {""}
    parts = [*groups.values(), in_test]
    files = [file for part in parts for file in part]
    mode = _mode(files)
    labels = sorted({file.parent.name for file in files})
    images, targets = _pair(files, mode, size, labels)
    ends = np.cumsum([0, *map(len, parts)])
    *pairs, test_images = [(images[start:end], targets[start:end]) for start, end in pairwise(ends)]
    test_pair: Pair | None = test_images
    if not in_test:
        pairs, test_pair = split_test(pairs, test)
    halves = (0.5,) * (1 if mode == "L" else 3)
    data = from_arrays(
        pairs, test_pair, "classification", len(labels), root.name, (halves, halves), skip_empty=skip_empty
    )
    doubt_classes(
        root.name, data.examples.targets, None if data.test is None else data.test.targets, len(labels), labels
    )
    if has_clients:
        data = data.named([name for name, group in groups.items() if group])
    return replace(divided(data, has_clients, clients, partition, seed), labels=tuple(labels), labels_found=True)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, without hidden ones."""
    return sorted(inner for inner in folder.iterdir() if inner.is_dir() and not inner.name.startswith("."))


def _parts(root: Path) -> tuple[Path, list[Path]]:
    """The folder of the training images, and those of test images, of which the first is used.

    A folder named `test` or `train` without folders in it is a class.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder")
    named = {folder.name.lower(): folder for folder in _folders(root)}
    parts = {name: folder for name, folder in named.items() if _folders(folder)}
    tests = [parts[name] for name in TEST_NAMES if name in parts]
    train = next((parts[name] for name in TRAIN_NAMES if name in parts), None)
    if train is None:
        return root, tests
    others = [folder.name for name, folder in named.items() if name not in (*TRAIN_NAMES, *TEST_NAMES)]
    if others:
        raise DataError(
            f"{root}: the folder '{others[0]}' is beside '{train.name}', where only {' or '.join(TEST_NAMES)} may be; "
            f"move it to another place, or into '{train.name}'"
        )
    return train, tests


def _files(folder: Path, without: Sequence[Path] = ()) -> list[Path]:
    """All images in a folder, but not hidden ones and those in some of its folders."""
    return sorted(
        file
        for file in folder.rglob("*")
        if file.suffix.lower() in IMAGES
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
        and not any(file.is_relative_to(other) for other in without)
    )


def _by_client(start: Path, tests: Sequence[Path]) -> dict[str, list[Path]]:
    """The training images of each client by its name, or all under "" if the folders do not name clients."""
    files, folders = _files(start, tests), [folder for folder in _folders(start) if folder not in tests]
    if not files:
        raise DataError(f"{start}: no images ({', '.join(IMAGES)}) in this folder")
    depths = {len(file.relative_to(start).parts) - 1 for file in files}
    if depths == {1}:
        _check_classes(folders, files, empty_allowed=False)
        return {"": files}
    if depths != {2}:
        raise DataError(f"{start}: images must all be in class/ or all in client/class/ folders")
    _check_classes([inner for folder in folders for inner in _folders(folder)], files, empty_allowed=True)
    return {folder.name: [file for file in files if file.is_relative_to(folder)] for folder in folders}


def _check_classes(classes: Sequence[Path], files: Sequence[Path], empty_allowed: bool) -> None:
    """Refuse a class folder whose files are no images that can be read, or that is empty."""
    found = {file.parent for file in files}
    for folder in (folder for folder in classes if folder not in found):
        others = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
        if others or not empty_allowed:
            example = f", but {others[0]}" if others else ""
            raise DataError(
                f"{folder}: no images ({', '.join(IMAGES)}) of this class{example}; convert them, or remove the folder"
            )


def _mode(files: Sequence[Path]) -> str:
    """Gray if all images are gray, otherwise color."""
    modes = set()
    for file in files:
        try:
            with Image.open(file) as image:
                modes.add("L" if image.mode.startswith("I;16") else image.mode)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}") from error
        if image.mode in ("I", "F"):
            raise DataError(
                f"{file} has pixels of 32 bits (mode {image.mode}), whose range is unknown; convert it to 8 or 16 bits"
            )
    return "L" if modes <= {"L", "1"} else "RGB"


def _pair(files: Sequence[Path], mode: str, size: int | None, labels: Sequence[str]) -> Pair:
    """Images [N, channels, height, width] and their class numbers."""
    images: list[np.ndarray] = []
    for file in files:
        with Image.open(file) as image:
            small = Image.fromarray(eight_bits(np.array(image))) if image.mode.startswith("I;16") else image
            converted = small.convert(mode)
            pixels = np.array(converted if size is None else converted.resize((size, size)))
        images.append(pixels[None] if mode == "L" else pixels.transpose(2, 0, 1))
        if images[-1].shape != images[0].shape:
            raise DataError(
                f"{file} has size {images[-1].shape[2]} x {images[-1].shape[1]}, {files[0]} "
                f"{images[0].shape[2]} x {images[0].shape[1]}; resize all of them: size=32 (or another number)"
            )
    return np.stack(images), np.array([labels.index(file.parent.name) for file in files], dtype=np.int64)
