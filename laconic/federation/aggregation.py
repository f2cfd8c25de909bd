"""The running mean of updates, added one at a time in client order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from laconic.compression import Payload


class RunningMean:
    """A weighted mean of payloads in one accumulator. Its memory does not depend on the number of clients.

    If torch may use several threads, helper threads add the pieces of a large payload while the caller decodes the next one.
    The caller adds the remaining pieces before it hands over the next payload, so at most two payloads are in memory.
    Payloads are added strictly one after the other, so the sums do not depend on the number of threads.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        # NumPy uses huge pages, which makes scattered additions up to a third faster than with torch.zeros.
        numpy_dtype = torch.empty(0, dtype=dtype).numpy().dtype
        self._sum = torch.from_numpy(np.zeros(size, dtype=numpy_dtype)).to(device)
        self._weight = 0.0
        self._waiting: deque[Callable[[], object]] = deque()
        self._helpers: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Add one payload, scaled by `factor`, with weight `weight` in the mean."""
        pieces = payload.pieces(self._sum, weight * factor)
        self._finish()
        self._waiting.extend(pieces)
        self._weight += weight
        helpers = min(torch.get_num_threads(), len(pieces)) - 1
        if helpers > 0:
            self._pool = self._pool or ThreadPoolExecutor()
            self._helpers = [self._pool.submit(self._work) for _ in range(helpers)]
        else:
            self._work()

    def total(self) -> Tensor:
        """The weighted sum."""
        self._finish()
        return self._sum

    def mean(self) -> Tensor | None:
        """The mean, or None if no payload was added."""
        self._finish()
        return self._sum / self._weight if self._weight else None

    def _work(self) -> None:
        while self._waiting:
            try:
                piece = self._waiting.popleft()
            except IndexError:  # another thread was faster
                return
            piece()

    def _finish(self) -> None:
        self._work()
        for helper in self._helpers:
            if not helper.cancel():  # a helper that has not started has nothing left to do
                helper.result()
        self._helpers = []


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """The mean of (value, weight) pairs, without values that are NaN; NaN if nothing is left.

    >>> weighted_mean([(1.0, 1), (4.0, 2), (math.nan, 5)])
    3.0
    """
    known = [(value, weight) for value, weight in values if not math.isnan(value)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan
