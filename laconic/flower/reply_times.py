"""The deadline of an exchange, from the times that recent replies took: a silent node must not hold every round."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

FACTOR, QUANTILE = 3.0, 0.9
"""An exchange waits this many times the quantile of the recent reply times."""
SHORTEST = 30.0
"""The shortest deadline, in seconds: a node may start a process first."""
ENOUGH, KEPT = 5, 200
"""The number of reply times that a deadline needs, and the number of recent ones that are kept."""


class ReplyTimes:
    """The recent reply times of each phase, whose work may differ by orders of magnitude. Late replies count, too."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._times: dict[str, deque[float]] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Record the time between an instruction and its reply."""
        self._times.setdefault(phase, deque(maxlen=KEPT)).append(seconds)

    def deadline(self, phases: Iterable[str]) -> float:
        """The seconds to wait for replies of these phases: at most the longest deadline, also while too few are known."""
        return max((self._deadline(phase) for phase in phases), default=self._longest)

    def _deadline(self, phase: str) -> float:
        times = self._times.get(phase, ())
        if len(times) < ENOUGH:
            return self._longest
        return min(self._longest, max(SHORTEST, FACTOR * float(np.quantile(times, QUANTILE))))

    def forget(self, phases: Iterable[str]) -> None:
        """Start over: nobody answered in time, so the known times say nothing any more."""
        for phase in phases:
            self._times.pop(phase, None)
