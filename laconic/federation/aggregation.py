"""The running mean of updates, added one at a time in client order."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import median_low

import numpy as np
import torch
from torch import Tensor

from laconic.compression import Payload
from laconic.federation.sampling import limited

FARTHEST = 20.0
"""On Flower, a metric that a client reports counts as at most this multiple of the median client's, or `SMALLEST_LIMIT`."""
SMALLEST_LIMIT = 10.0
"""No limit of a metric is below this: late in training, the median loss may be near 0 while some honest clients' are not."""


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


def mean_loss(losses: Sequence[tuple[float, float]], limit: float | None) -> float:
    """The mean of clients' (loss, weight) pairs that one client cannot own: weights are `limited`, losses `clamped`.

    If the median loss is positive, negative ones count as 0. Without a limit this is `weighted_mean`.
    """
    known = [(loss, weight) for loss, weight in losses if weight > 0 and not math.isnan(loss)]
    if limit is None or not known:
        return weighted_mean(known)
    weights = limited(np.array([weight for _, weight in known]), limit)
    values = clamped([loss for loss, _ in known])
    if median_low(values) > 0:
        values = [max(loss, 0.0) for loss in values]
    return weighted_mean(zip(values, weights.tolist(), strict=True))


def clamped(values: Sequence[float]) -> list[float]:
    """Clients' values of one metric, none farther from 0 than `FARTHEST` times the median client's, or `SMALLEST_LIMIT` if
    that is more.

    >>> clamped([0.4, 0.5, 9e8, -9e8]), clamped([0.02, 0.02, 3.0])
    ([0.4, 0.5, 10.0, -10.0], [0.02, 0.02, 3.0])
    """
    most = max(SMALLEST_LIMIT, FARTHEST * median_low(map(abs, values))) if values else SMALLEST_LIMIT
    return [min(max(value, -most), most) for value in values]


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """The mean of (value, weight) pairs, without values that are NaN; NaN if nothing is left.

    >>> weighted_mean([(1.0, 1), (4.0, 2), (math.nan, 5)])
    3.0
    """
    known = [(value, weight) for value, weight in values if not math.isnan(value)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan
