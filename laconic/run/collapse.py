"""Detection of runs that learn and then collapse without diverging, and of runs that never learn."""

from __future__ import annotations

import math
from collections.abc import Sequence

from laconic.run.records import Record

WINDOW = 5
"""Rounds over which the training loss is averaged, since each round has other clients."""

EXPLODED = 100
"""A training loss that is this many times its lowest value, and above its first one, is a collapse at once."""

AT_CHANCE = "no better than chance"
"""What a run that never learned is called."""


def at_chance(accuracies: Sequence[float], label_counts: Sequence[Sequence[float]]) -> bool:
    """Whether a run never learned: its best accuracy is about that of guessing, or of always the most frequent class.

    >>> at_chance([0.09, 0.14], [[10] * 10]), at_chance([0.09, 0.3], [[10] * 10]), at_chance([0.6], [[70, 30]])
    (True, False, True)

    Args:
        accuracies: The accuracies of a run.
        label_counts: The number of examples of each class, by client. Without it the answer is no.
    """
    classes = [count for count in map(sum, zip(*label_counts, strict=True)) if count]
    if not accuracies or len(classes) < 2:
        return False
    guessing = 1 / len(classes)
    return max(accuracies) <= max(min(1.5 * guessing, guessing + 0.05), max(classes) / sum(classes))


def collapse(history: Sequence[Record]) -> str | None:
    """Why the last round of a run is a collapse; None if it is none, or if an earlier round was one.

    >>> collapse([{"round": 5, "accuracy": 0.7}, {"round": 10, "accuracy": 0.3}])
    'collapsed in round 10: accuracy fell from 70.0 % to 30.0 %; try a smaller local_lr or server_lr'
    """
    if any("collapsed" in record for record in history):
        return None
    reason = _accuracy_fell(history) or _loss_exploded(history) or _loss_rose(history)
    advice = "try a smaller local_lr or server_lr"
    return None if reason is None else f"collapsed in round {history[-1]['round']}: {reason}; {advice}"


def _accuracy_fell(history: Sequence[Record]) -> str | None:
    """The accuracy is below half of its best, and a tenth of all examples below it."""
    values = [record["accuracy"] for record in history if "accuracy" in record]
    if "accuracy" not in history[-1] or values[-1] > min(max(values) / 2, max(values) - 0.1):
        return None
    return f"accuracy fell from {100 * max(values):.1f} % to {100 * values[-1]:.1f} %"


def _losses(history: Sequence[Record]) -> list[float]:
    """The training losses; none if the last round has none."""
    if history[-1].get("training_loss") is None:
        return []
    return [record["training_loss"] for record in history if record.get("training_loss") is not None]


def _loss_exploded(history: Sequence[Record]) -> str | None:
    """The training loss is infinite, or many times its lowest value and above its first one."""
    losses = _losses(history)
    if not losses:
        return None
    if not math.isfinite(losses[-1]):
        return "the training loss is infinite"
    if losses[-1] <= max(EXPLODED * abs(min(losses)), losses[0]):
        return None
    return f"the training loss rose from {min(losses):.3g} to {losses[-1]:.3g}"


def _loss_rose(history: Sequence[Record]) -> str | None:
    """The mean training loss is above twice its lowest value, and has risen by more than half of its decrease."""
    losses = _losses(history)
    if len(losses) <= WINDOW:
        return None
    means = [sum(losses[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(losses) + 1)]
    best = min(means)
    if means[-1] <= max(2 * best, (means[0] + best) / 2):
        return None
    return f"the training loss rose from {min(losses):.3g} to {means[-1]:.3g}, the mean of {WINDOW} rounds"
