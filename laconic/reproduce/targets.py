"""Costs to an accuracy that the study's own dense references set."""

from __future__ import annotations

from functools import partial

from laconic.reproduce.measures import LAST_FIVE, Curve, Measure, both, cost_to, reached
from laconic.reproduce.runner import Data, curves
from laconic.reproduce.study import Study
from laconic.run import over_seeds

POINT = 0.01
SHARE = 0.9
IN_SHORT = ("rounds", "MB both ways")
IN_DETAIL = ("rounds", "uplink MB", "downlink MB", "1e5 gradients", "simulated seconds")


def byte_ratio(accuracy: float, reference: float) -> Measure:
    """Return the measure of the reference's bytes divided by those of a run."""
    name = f"byte ratio to {100 * accuracy:.1f} %"
    return Measure(
        name, lambda curve: None if (needed := _bytes(curve, accuracy)) is None else reference / needed, absent=""
    )


def _bytes(curve: Curve, accuracy: float) -> float | None:
    record = reached(curve, accuracy)
    return None if record is None else both(record)


def goals(study: Study, data: Data) -> list[float]:
    """Return one point below the end of the best reference, nine tenths of its gain, and the accuracies that the study sets.

    The end is the mean of the last five evaluations, averaged over seeds.
    """
    ends = [over_seeds([LAST_FIVE.of(curve) for curve in runs]) for runs in _references(study, data)]
    best = max((end for end in ends if end is not None), default=None)
    if best is None:
        return []
    end = best / 100
    return [end - POINT, study.chance + SHARE * (end - study.chance), *study.goals]


def _references(study: Study, data: Data) -> list[list[Curve]]:
    """Return the curves of each reference, one for each seed."""
    return [curves(data["runs"][label]) for label in study.references if label in data.get("runs", {})]


def fewest_bytes(study: Study, data: Data, accuracy: float) -> float | None:
    """Return the bytes of the reference that needs the fewest to an accuracy, averaged over seeds."""
    needed = [over_seeds([_bytes(curve, accuracy) for curve in runs]) for runs in _references(study, data)]
    return min((bytes_ for bytes_ in needed if bytes_ is not None), default=None)


def measures(study: Study, data: Data) -> tuple[Measure, ...]:
    """Return the study's measures and, if it has references, the costs to the accuracies that they set."""
    columns = list(study.measures)
    for number, accuracy in enumerate(goals(study, data)):
        find = partial(reached, accuracy=accuracy)
        columns += [
            cost_to(f"{cost} to {100 * accuracy:.1f} %", cost, find, significant=0 if cost == "rounds" else 3)
            for cost in (IN_DETAIL if number == 0 else IN_SHORT)
        ]
        if (reference := fewest_bytes(study, data, accuracy)) is not None:
            columns.append(byte_ratio(accuracy, reference))
    return tuple(columns)
