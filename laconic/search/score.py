"""How good a run is: the accuracy that it ends with, or what it cost to a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from laconic.run import WINDOW, Reached, Record, RunRecords, reached


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


def score(run: RunRecords, target: float | None, by: str) -> Score:
    """A run's score; `by` names the cost to the target as `Reached` has it."""
    at = None if target is None or run.diverged else reached(run.records, target)
    cost = None if at is None else getattr(at, by)
    return Score(run.diverged, final(run.records, "accuracy"), final(run.records, "loss"), at, cost)


def mean_of(scores: Sequence[Score]) -> Score:
    """The score of a setting that was run with several seeds; what one of them has not reached, it has not."""
    if len(scores) == 1:
        return scores[0]
    places = [each.at for each in scores if each.at is not None]
    costs = [each.cost for each in scores if each.cost is not None]
    everywhere = len(places) == len(costs) == len(scores)
    return Score(
        any(each.diverged for each in scores),
        _mean([each.accuracy for each in scores]),
        _mean([each.loss for each in scores]),
        _mean_place(places) if everywhere else None,
        fmean(costs) if everywhere else None,
    )


def _mean_place(places: Sequence[Reached]) -> Reached:
    return Reached(
        round(fmean(at.rounds for at in places)),
        round(fmean(at.bytes for at in places)),
        fmean(at.seconds for at in places),
        _mean([at.simulated_seconds for at in places]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def spread(values: Sequence[float | None]) -> float | None:
    """The standard deviation over seeds; none where there is one seed only, or where one of them has no value."""
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) == len(values) > 1 else None


def final(records: Sequence[Record], metric: str) -> float | None:
    """The mean of a metric's last five values."""
    values: list[Any] = [record[metric] for record in records if record.get(metric) is not None][-WINDOW:]
    return fmean(values) if values else None
