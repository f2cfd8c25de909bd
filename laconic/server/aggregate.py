"""How updates become a mean: added one after the other as they arrive, in client order."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from laconic.link.compressors import Payload

Weighting = Literal["uniform", "size"]


class RunningMean:
    """A weighted mean of payloads that holds one accumulator, however many clients there are."""

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._sum = torch.zeros(size, dtype=dtype, device=device)
        self._weight = 0.0

    def add(self, payload: Payload, weight: float) -> None:
        """Fold one payload in."""
        payload.add_to(self._sum, weight)
        self._weight += weight

    def mean(self) -> Tensor | None:
        """The mean, or None when nothing was folded."""
        return self._sum / self._weight if self._weight else None
