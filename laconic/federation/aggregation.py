"""How updates become a mean: added one after the other as they arrive, in client order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from laconic.compression import Payload


class RunningMean:
    """A weighted mean of payloads that holds one accumulator, however many clients there are.

    Where torch's operators may use several threads, other threads add a large payload while the caller decodes the next
    one, and the caller helps with what is left before it hands over another: at most two are in memory at a time. A payload
    is added when the one before it is there in full, so the sums are the same to the bit.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        # NumPy asks the system for huge pages: adding at scattered positions is up to a third faster than in torch.zeros.
        kind = torch.empty(0, dtype=dtype).numpy().dtype
        self._sum = torch.from_numpy(np.zeros(size, dtype=kind)).to(device)
        self._weight = 0.0
        self._waiting: deque[Callable[[], object]] = deque()
        self._helpers: list[Future[None]] = []
        self._pool: ThreadPoolExecutor | None = None

    def add(self, payload: Payload, weight: float, factor: float = 1.0) -> None:
        """Fold one payload in, `factor` times as long as it is."""
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
        """The mean, or None when nothing was folded."""
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
            if not helper.cancel():  # one that has not begun is not waited for
                helper.result()
        self._helpers = []
