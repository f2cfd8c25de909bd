"""When a run reached a target accuracy, and its costs up to that point."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from laconic.core.errors import ConfigError

WINDOW = 5
"""The number of consecutive evaluations whose mean must reach the target, so that one lucky round does not count."""


RankBy = Literal["bytes", "time", "rounds"]
RANK_BY: dict[RankBy, str] = {"bytes": "bytes", "time": "simulated_seconds", "rounds": "rounds"}
"""The costs that runs can be ranked by, and the name of the cost in `Reached`."""


@dataclass(frozen=True)
class Reached:
    """The costs at the first evaluation where the mean accuracy of the last five reaches the target."""

    rounds: int
    bytes: int
    seconds: float
    simulated_seconds: float | None = None


def check_target(target: float | None, measured: Collection[str]) -> None:
    """Refuse a target that is not a fraction, or that runs with these metrics cannot reach."""
    if target is None:
        return
    if not 0 < target <= 1:
        raise ConfigError(f"target = {target:g}: a fraction between 0 and 1 is allowed, as in 0.9 for 90 %")
    if "accuracy" not in measured:
        found = ", ".join(sorted(measured))
        raise ConfigError(
            f"target = {target:g}: it is an accuracy on test examples, but the run measures only: {found}"
        )


def reached(history: Iterable[dict[str, Any]], target: float) -> Reached | None:
    """The costs at the first evaluation where the mean accuracy of the last five reaches the target; None if none does.

    >>> records = [{"round": r, "accuracy": r / 10, "bytes_up": r, "bytes_down": r, "seconds": r} for r in range(1, 9)]
    >>> reached(records, 0.5)
    Reached(rounds=7, bytes=14, seconds=7, simulated_seconds=None)
    """
    for mean, last in means(history):
        if mean >= target:
            traffic = last["bytes_up"] + last["bytes_down"]
            return Reached(last["round"], traffic, last["seconds"], last.get("simulated_seconds"))
    return None


def means(history: Iterable[dict[str, Any]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The moving average of the accuracy over five evaluations, each with the record of its last evaluation."""
    last: deque[float] = deque(maxlen=WINDOW)
    for record in history:
        if record.get("accuracy") is not None:
            last.append(record["accuracy"])
            if len(last) == WINDOW:
                yield sum(last) / WINDOW, record
