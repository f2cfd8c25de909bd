"""How long honest updates are: what a client sends that is far longer than what others have sent is refused.

The median of accepted lengths is not moved by a few that are wrong, and follows training as updates become shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

import torch

from laconic.core.errors import PacketError
from laconic.core.part import State

FACTOR = 100.0
"""How many times the median length is too long: honest clients differ by far less."""
ENOUGH = 5
"""How many lengths must be known before anybody is judged by them."""
KEPT = 100
"""How many are remembered, so that the median is that of late rounds."""


class UpdateNormFilter:
    """The lengths of the last updates that were accepted, by kind: what anchors and miners send has not the same length."""

    def __init__(self) -> None:
        self._known: dict[str, deque[float]] = {}

    def limit(self, kind: str) -> float | None:
        """Above which an update of that kind is too long; None while too few are known."""
        known = self._known.get(kind, ())
        return FACTOR * median(known) if len(known) >= ENOUGH else None

    def check(self, found: Mapping[str, float], client: int) -> None:
        """Refuse a reply of which one vector is too long."""
        for kind, length in found.items():
            limit = self.limit(kind)
            if limit is not None and length > limit:
                usual = f"{FACTOR:g} times the median of those before it"
                raise PacketError(
                    "exploding", f"the update of client {client} has length {length:.3g}, above {limit:.3g}, {usual}"
                )

    def enter(self, found: Mapping[str, float]) -> None:
        """Remember the lengths of a reply that was accepted; one that says nothing new has none."""
        for kind, length in found.items():
            if length > 0:
                self._known.setdefault(kind, deque(maxlen=KEPT)).append(length)

    def state(self) -> State:
        """For a checkpoint."""
        return {kind: torch.tensor([*known], dtype=torch.float64) for kind, known in self._known.items()}

    def restore(self, state: State) -> None:
        """The inverse of `state`."""
        self._known = {kind: deque(known.tolist(), maxlen=KEPT) for kind, known in state.items()}
