"""A filter that refuses updates whose norm is far above the median norm of recently accepted updates.

The median is robust to a few malicious updates, and it follows training as updates become smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

import torch

from laconic.core.errors import PacketError
from laconic.core.part import State

FACTOR = 100.0
"""An update is refused if its norm exceeds this multiple of the median. The norms of honest clients vary far less."""
ENOUGH = 5
"""The number of accepted norms below which no update is refused."""
KEPT = 100
"""The number of recent norms whose median is taken."""


class UpdateNormFilter:
    """The norms of recently accepted updates by kind: the phases and streams of a method have different norms."""

    def __init__(self) -> None:
        self._norms: dict[str, deque[float]] = {}

    def limit(self, kind: str) -> float | None:
        """The norm above which an update of that kind is refused; None while too few norms are known."""
        norms = self._norms.get(kind, ())
        return FACTOR * median(norms) if len(norms) >= ENOUGH else None

    def check(self, norms: Mapping[str, float], client: int) -> None:
        """Refuse a reply with a vector whose norm is too large."""
        for kind, norm in norms.items():
            limit = self.limit(kind)
            if limit is not None and norm > limit:
                reason = f"has norm {norm:.3g}, above {limit:.3g}, {FACTOR:g} times the median of earlier updates"
                raise PacketError("exploding", f"the update of client {client} {reason}")

    def add(self, norms: Mapping[str, float]) -> None:
        """Add the norms of an accepted reply, except zeros: a skipped update has norm 0."""
        for kind, norm in norms.items():
            if norm > 0:
                self._norms.setdefault(kind, deque(maxlen=KEPT)).append(norm)

    def state_dict(self) -> State:
        """All norms as tensors."""
        return {kind: torch.tensor([*norms], dtype=torch.float64) for kind, norms in self._norms.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        self._norms = {kind: deque(norms.tolist(), maxlen=KEPT) for kind, norms in state.items()}
