"""Costs to an accuracy that the study's own dense references set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from laconic.reproduce.measures import LAST_FIVE, Curve, Measure, both, mean, reached
from laconic.reproduce.runner import Data, curves
from laconic.reproduce.study import Study

POINT = 0.01
SHARE = 0.9
COSTS: dict[str, Callable[[dict[str, Any]], float]] = {
    "rounds": lambda record: record["round"],
    "MB up": lambda record: record["bytes_up"] / 1e6,
    "MB down": lambda record: record["bytes_down"] / 1e6,
    "MB both ways": lambda record: both(record) / 1e6,
    "1e5 gradients": lambda record: record["gradients"] / 1e5,
    "simulated seconds": lambda record: record.get("simulated_seconds", float("nan")),
}
IN_SHORT = ("rounds", "MB both ways")
IN_DETAIL = ("rounds", "MB up", "MB down", "1e5 gradients", "simulated seconds")


def cost_to(accuracy: float, name: str) -> Measure:
    """Return the measure of a cost up to the evaluation where the mean of five reaches the accuracy."""
    cost, significant = COSTS[name], 0 if name == "rounds" else 3
    name = f"{name} to {100 * accuracy:.1f} %"
    return Measure(name, lambda curve: _at(curve, accuracy, cost), 0, significant=significant, absent="not reached")


def times_fewer(accuracy: float, reference: float) -> Measure:
    """Return the measure of how many times fewer bytes a run needs than the reference."""
    return Measure(
        f"times fewer bytes to {100 * accuracy:.1f} %",
        lambda curve: _at(curve, accuracy, lambda record: reference / both(record)),
        absent="",
    )


def _at(curve: Curve, accuracy: float, cost: Callable[[dict[str, Any]], float]) -> float | None:
    record = reached(curve, accuracy)
    return None if record is None else cost(record)


def goals(study: Study, data: Data) -> list[float]:
    """Return one point below the end of the best reference, nine tenths of its gain, and the accuracies that the study sets.

    The end is the mean of the last five evaluations, averaged over seeds.
    """
    ends = [mean(LAST_FIVE, curves(data["runs"][label])) for label in _references(study, data)]
    best = max((end for end in ends if end is not None), default=None)
    if best is None:
        return []
    end = best / 100
    return [end - POINT, study.chance + SHARE * (end - study.chance), *study.goals]


def _references(study: Study, data: Data) -> list[str]:
    return [label for label in study.references if label in data.get("runs", {})]


def fewest_bytes(study: Study, data: Data, accuracy: float) -> float | None:
    """Return the bytes of the reference that needs the fewest to an accuracy, averaged over seeds."""
    total = Measure("bytes", lambda curve: _at(curve, accuracy, both))
    needed = [mean(total, curves(data["runs"][label])) for label in _references(study, data)]
    return min((bytes_ for bytes_ in needed if bytes_ is not None), default=None)


def measures(study: Study, data: Data) -> tuple[Measure, ...]:
    """Return the study's measures and, if it has references, the costs to the accuracies that they set."""
    columns = list(study.measures)
    for number, accuracy in enumerate(goals(study, data)):
        columns += [cost_to(accuracy, name) for name in (IN_DETAIL if number == 0 else IN_SHORT)]
        if (reference := fewest_bytes(study, data, accuracy)) is not None:
            columns.append(times_fewer(accuracy, reference))
    return tuple(columns)
