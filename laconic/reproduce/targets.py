"""Costs to an accuracy that the study's own dense references set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from laconic.reproduce.measures import LAST_FIVE, Curve, Measure, both, cost_to, reached
from laconic.reproduce.plans import Data
from laconic.reproduce.runner import curves
from laconic.reproduce.study import Study
from laconic.run import over_seeds

POINT = 0.01
SHARE = 0.9
WHY = ("one point below the best dense method", "nine tenths of the best dense method's gain over guessing")
"""Descriptions of the first two targets."""
COLUMNS = {
    **{"MB": "MB both ways", "MB up": "uplink MB", "MB down": "downlink MB", "rounds": "rounds"},
    **{"1e5 gradients": "1e5 gradients", "simulated s": "simulated seconds"},
}
"""Costs in the table of a target, by their title there."""
SMALL_COLUMNS = {
    **{"kB": "kB both ways", "kB up": "uplink kB", "kB down": "downlink kB", "rounds": "rounds"},
    **{"1e3 gradients": "1e3 gradients", "simulated s": "simulated seconds"},
}
"""The same if the cheapest reference needs less than a megabyte."""
WITH_DEVIATION = ("MB", "kB", "rounds")
"""Costs with a standard deviation. The others vary as these do, and the table is narrower."""
END = replace(LAST_FIVE, name="final accuracy, %")


def bytes_to(curve: Curve, accuracy: float) -> float | None:
    """Return the bytes of both directions until a run reaches an accuracy."""
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
    needed = [over_seeds([bytes_to(curve, accuracy) for curve in runs]) for runs in _references(study, data)]
    return min((bytes_ for bytes_ in needed if bytes_ is not None), default=None)


def costs(study: Study, data: Data, accuracy: float) -> list[Measure]:
    """Return the columns of a target's table: the final accuracy, the costs to the target, and the byte ratio.

    The byte ratio divides the bytes of the cheapest reference by those of the run.
    """
    find, reference = partial(reached, accuracy=accuracy), fewest_bytes(study, data, accuracy)
    titles = COLUMNS if reference is None or reference >= 1e6 else SMALL_COLUMNS
    columns = [
        replace(cost_to(title, cost, find, 0 if cost == "rounds" else 3), spread=title in WITH_DEVIATION)
        for title, cost in titles.items()
    ]
    if reference is not None:
        columns.append(Measure("byte ratio", lambda curve: _ratio(reference, bytes_to(curve, accuracy)), significant=2))
    return [END, *columns]


def _ratio(reference: float, needed: float | None) -> float | None:
    return None if needed is None else reference / needed
