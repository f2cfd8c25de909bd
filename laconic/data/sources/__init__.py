"""The named data sets, one module per family."""

from __future__ import annotations

from laconic.data.sources.cifar import CIFAR10, CIFAR100
from laconic.data.sources.digits import DIGITS
from laconic.data.sources.femnist import FEMNIST
from laconic.data.sources.heart_disease import HEART_DISEASE
from laconic.data.sources.mnist import EMNIST_DIGITS, FASHION_MNIST, MNIST, MNIST_BY_WRITER
from laconic.data.sources.pool import DatasetInfo, Pool, Source
from laconic.data.sources.tinyshakespeare import TINYSHAKESPEARE

SOURCES: dict[str, Source] = {
    source.info.name: source
    for source in (
        DIGITS,
        MNIST,
        MNIST_BY_WRITER,
        FASHION_MNIST,
        EMNIST_DIGITS,
        CIFAR10,
        CIFAR100,
        FEMNIST,
        TINYSHAKESPEARE,
        HEART_DISEASE,
    )
}

__all__ = ["SOURCES", "DatasetInfo", "Pool", "Source"]
