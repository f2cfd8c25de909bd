"""Images in folders: `class/image.png`, or `client/class/image.png`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from laconic.core.errors import DataError
from laconic.data.arrays import Pair, from_arrays
from laconic.data.divide import divided, split_test
from laconic.data.federated import FederatedData

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
TEST_FOLDERS = ("test", "validation", "val")


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

    Folders `root/train` and `root/test` may contain these. Images are kept as uint8 and scaled to -1..1 for the model.

    Args:
        root: The folder.
        size: Resize every image to `size` x `size`. Without it, all images must have the same size.
        clients: Number of clients, if the folders do not name them (default: 100). Or a random subset of those that do.
        partition: How images are divided, if the folders do not name clients. Default: iid.
        test: Share of each client's images that is held out, the same ones with every seed, if there is no folder `test`.
        seed: The seed of the partition.
        skip_empty: Leave out clients without examples instead of refusing them.
    """
    root = Path(root)
    files = sorted(file for file in root.rglob("*") if file.suffix.lower() in IMAGES)
    if not files:
        raise DataError(f"{root}: no images ({', '.join(IMAGES)}) in this folder")
    in_test = [file for file in files if _is_test(root, file)]
    groups = _by_client(root, [file for file in files if not _is_test(root, file)])
    has_clients = groups.keys() != {""}
    mode = _mode(files)
    labels = sorted({file.parent.name for file in files})
    pairs = [_pair(group, mode, size, labels) for group in groups.values()]
    test_pair: Pair | None = _pair(in_test, mode, size, labels)
    if not in_test:
        pairs, test_pair = split_test(pairs, test)
    halves = (0.5,) * (1 if mode == "L" else 3)
    data = from_arrays(
        pairs, test_pair, "classification", len(labels), root.name, (halves, halves), skip_empty=skip_empty
    )
    if has_clients:
        data = data.named([name for name, group in groups.items() if group])
    return replace(divided(data, has_clients, clients, partition, seed), labels=tuple(labels), labels_found=True)


def _is_test(root: Path, file: Path) -> bool:
    return file.relative_to(root).parts[0] in TEST_FOLDERS


def _by_client(root: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The training images of each client by its name, or all under "" if the folders do not name clients."""
    start = root / "train" if (root / "train").is_dir() else root
    train = [file for file in files if file.is_relative_to(start)]
    depths = {len(file.relative_to(start).parts) - 1 for file in train}
    if depths == {1}:
        return {"": train}
    if depths != {2}:
        raise DataError(f"{start}: images must all be in class/ or all in client/class/ folders")
    names = sorted(folder.name for folder in start.iterdir() if folder.is_dir() and folder.name not in TEST_FOLDERS)
    return {name: [file for file in train if file.relative_to(start).parts[0] == name] for name in names}


def _mode(files: Sequence[Path]) -> str:
    """Gray if all images are gray, otherwise color."""
    modes = set()
    for file in files:
        try:
            with Image.open(file) as image:
                modes.add(image.mode)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error}") from error
    return "L" if modes <= {"L", "1"} else "RGB"


def _pair(files: Sequence[Path], mode: str, size: int | None, labels: Sequence[str]) -> Pair:
    """Images [N, channels, height, width] and their class numbers."""
    images: list[np.ndarray] = []
    for file in files:
        with Image.open(file) as image:
            converted = image.convert(mode)
            pixels = np.array(converted if size is None else converted.resize((size, size)))
        images.append(pixels[None] if mode == "L" else pixels.transpose(2, 0, 1))
        if images[-1].shape != images[0].shape:
            raise DataError(
                f"{file} has size {images[-1].shape[2]} x {images[-1].shape[1]}, {files[0].name} "
                f"{images[0].shape[2]} x {images[0].shape[1]}; resize all of them: size=32 (or another number)"
            )
    stacked = np.stack(images) if images else np.zeros((0, 1, 1, 1), np.uint8)
    return stacked, np.array([labels.index(file.parent.name) for file in files], dtype=np.int64)
