"""The norms of honest updates: an update whose norm is far above those of others is refused.

A few wrong updates do not move the median of accepted norms, and the median follows training as updates become smaller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

import torch

from laconic.core.errors import PacketError
from laconic.core.part import State

FACTOR = 100.0
"""How many times the median is too much: honest clients differ by far less."""
ENOUGH = 5
"""How many norms must be known before anybody is judged by them."""
KEPT = 100
"""How many norms are remembered, so that the median is that of recent rounds."""


class UpdateNormFilter:
    """The norms of the last accepted updates, by kind: anchors and miners, say, send vectors of different norms."""

    def __init__(self) -> None:
        self._known: dict[str, deque[float]] = {}

    def limit(self, kind: str) -> float | None:
        """The norm above which an update of that kind is refused; None while too few are known."""
        known = self._known.get(kind, ())
        return FACTOR * median(known) if len(known) >= ENOUGH else None

    def check(self, norms: Mapping[str, float], client: int) -> None:
        """Refuse a reply with a vector whose norm is too large."""
        for kind, norm in norms.items():
            limit = self.limit(kind)
            if limit is not None and norm > limit:
                usual = f"{FACTOR:g} times the median of the updates before it"
                raise PacketError(
                    "exploding", f"the update of client {client} has norm {norm:.3g}, above {limit:.3g}, {usual}"
                )

    def add(self, norms: Mapping[str, float]) -> None:
        """Remember the norms of an accepted reply. A skipped update has norm 0 and is left out."""
        for kind, norm in norms.items():
            if norm > 0:
                self._known.setdefault(kind, deque(maxlen=KEPT)).append(norm)

    def state_dict(self) -> State:
        """All norms as tensors."""
        return {kind: torch.tensor([*known], dtype=torch.float64) for kind, known in self._known.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore a `state_dict`."""
        self._known = {kind: deque(known.tolist(), maxlen=KEPT) for kind, known in state.items()}
