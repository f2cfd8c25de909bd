"""Scores of runs: cost to a target accuracy, final accuracy and loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from laconic.run import WINDOW, Reached, Record, RunRecords, Target, over_seeds, reached


@dataclass(frozen=True)
class Score:
    """The score of a run. Runs are ordered by cost to the target, then by accuracy; diverged runs are last."""

    diverged: bool
    accuracy: float | None
    """The mean of the last five evaluations."""
    loss: float | None
    at: Reached | None
    """The evaluation at which the target was reached."""
    cost: float | None
    """The cost until then: bytes, rounds, or simulated seconds."""

    @property
    def order(self) -> tuple[bool, float, float, float]:
        """Sort key: best first."""
        cost = math.inf if self.cost is None else self.cost
        return self.diverged, cost, -(self.accuracy or 0.0), math.inf if self.loss is None else self.loss

    @property
    def value(self) -> float:
        """The same order as one number to maximize, for optuna."""
        if self.diverged:
            return -1e6
        if self.cost is not None:
            return 1e3 - math.log(max(self.cost, 1e-9))
        return self.accuracy if self.accuracy is not None else -(self.loss or 0.0)


def score(run: RunRecords, target: float | None, by: str) -> Score:
    """Score a run. `by` is the cost: a field of `Reached`."""
    at = None if target is None or run.diverged else reached(run.records, Target(target))
    cost = None if at is None else getattr(at, by)
    return Score(run.diverged, final(run.records, "accuracy"), final(run.records, "loss"), at, cost)


def mean_of(scores: Sequence[Score]) -> Score:
    """Average the scores of several seeds. The target counts as reached only if every seed reached it."""
    if len(scores) == 1:
        return scores[0]
    points = [score.at for score in scores if score.at is not None]
    costs = [score.cost for score in scores if score.cost is not None]
    all_reached = len(points) == len(costs) == len(scores)
    return Score(
        any(score.diverged for score in scores),
        over_seeds([score.accuracy for score in scores]),
        over_seeds([score.loss for score in scores]),
        _mean_point(points) if all_reached else None,
        fmean(costs) if all_reached else None,
    )


def _mean_point(points: Sequence[Reached]) -> Reached:
    return Reached(
        round(fmean(point.rounds for point in points)),
        round(fmean(point.bytes for point in points)),
        fmean(point.seconds for point in points),
        over_seeds([point.simulated_seconds for point in points]),
    )


def spread(values: Sequence[float | None]) -> float | None:
    """Return the standard deviation over seeds; None for a single seed or if a value is missing."""
    return over_seeds(values, stdev, least=2)


def final(records: Sequence[Record], metric: str) -> float | None:
    """Return the mean of a metric's last five values."""
    values: list[Any] = [record[metric] for record in records if record.get(metric) is not None][-WINDOW:]
    return fmean(values) if values else None
