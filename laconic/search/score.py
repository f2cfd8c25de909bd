"""How good a run is: the accuracy that it ends with, or what it cost to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from laconic.run.ensure import Trial
from laconic.run.target import WINDOW, Reached, reached
from laconic.run.training import Record


@dataclass(frozen=True)
class Score:
    """What runs are ordered by: who reached the target first, then who is more accurate; who diverged is last."""

    diverged: bool
    accuracy: float | None
    """The mean of the last five evaluations."""
    loss: float | None
    at: Reached | None
    """Where the target was reached."""
    cost: float | None
    """What it had cost there: bytes, rounds, or simulated seconds."""

    @property
    def order(self) -> tuple[bool, float, float, float]:
        """Sorts the best first."""
        cost = math.inf if self.cost is None else self.cost
        return self.diverged, cost, -(self.accuracy or 0.0), math.inf if self.loss is None else self.loss

    @property
    def value(self) -> float:
        """The same as one number, the higher the better, for those who can only compare numbers."""
        if self.diverged:
            return -1e6
        if self.cost is not None:
            return 1e3 - math.log(max(self.cost, 1e-9))
        return self.accuracy if self.accuracy is not None else -(self.loss or 0.0)


def score(trial: Trial, target: float | None, by: str) -> Score:
    """A run's score; `by` names the cost to the target as `Reached` has it."""
    at = None if target is None or trial.diverged else reached(trial.records, target)
    cost = None if at is None else getattr(at, by)
    return Score(trial.diverged, final(trial.records, "accuracy"), final(trial.records, "loss"), at, cost)


def final(records: Sequence[Record], metric: str) -> float | None:
    """The mean of a metric's last five values."""
    values: list[Any] = [record[metric] for record in records if record.get(metric) is not None][-WINDOW:]
    return fmean(values) if values else None
