"""The 8x8 handwritten digits that come with Laconic: 1797 images, values 0..16, no download.

The test part of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998, UCI Machine
Learning Repository, https://doi.org/10.24432/C50P49), licensed CC BY 4.0; the copy was taken from
scikit-learn. The stored test set is a fixed fifth of each class.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from laconic.data.files import Finder
from laconic.data.sources.pool import DatasetInfo, Pool, Source, image_pool


def read(finder: Finder) -> Pool:
    """Read the file that ships with the package."""
    shipped = resources.files("laconic.data") / "shipped" / "digits.npz"
    with shipped.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
        arrays = [stored[name] for name in ("train_images", "train_labels", "test_images", "test_labels")]
    return image_pool(*arrays)


DIGITS = Source(
    DatasetInfo(
        name="digits",
        description="handwritten digits of 8x8 pixels; comes with Laconic",
        train_size=1438,
        test_size=359,
        shape=(1, 8, 8),
        classes=10,
        default_clients=20,
        license="CC BY 4.0",
        citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998",
        address="https://archive.ics.uci.edu/dataset/80",
    ),
    read,
)
