"""Copies from host memory to a device, and the number of torch's threads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. A copy to a GPU does not wait for the work that the GPU has not finished.

    >>> to_device(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    # Torch keeps the pinned memory until the copy is done.
    return tensor.pin_memory().to(device, non_blocking=True)


def all_finite(tensor: Tensor) -> bool:
    """Whether no entry is NaN or infinite, in one pass without temporaries."""
    # A finite sum implies finite entries. Otherwise the sum may have overflowed, and the slow test decides.
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


@contextmanager
def one_operator_thread() -> Iterator[None]:
    """Let each of torch's operators use one thread, so that no bit depends on the number of cores.

    >>> with one_operator_thread():
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
