"""When a run reached a target value of a metric, its costs up to that point, and which of two values is better."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from laconic.core.errors import ConfigError, unknown_name

WINDOW = 5
"""The number of consecutive evaluations whose mean must reach the target, so that one lucky round does not count."""
COSTS = {"bytes": "bytes", "time": "simulated_seconds", "rounds": "rounds"}
"""The costs that runs can be ranked by, and the name of the cost in `Reached`."""
_LOWER_IS_BETTER = re.compile(
    "loss|error|rmse|mse|mae|perplexity|nll|brier|hamming|distance|divergence|objective|gradient_norm|spread"
    r"|(?<![a-z])err(?![a-z])",
    re.IGNORECASE,
)


def lower_is_better(name: str, metrics: Mapping[str, Any] | None = None) -> bool:
    """Whether a metric should decrease: as its object in `metrics` says (`higher_is_better`), or else by its name.

    >>> lower_is_better("worst_client_loss"), lower_is_better("auroc")
    (True, False)
    """
    for key, metric in (metrics or {}).items():
        if not key and hasattr(metric, "items"):  # a MetricCollection of torchmetrics
            return lower_is_better(name, dict(metric.items()))
        is_this = name == key or name.endswith(f"_{key}") or re.search(rf"(^|_){re.escape(key)}_\d+$", name)
        higher = getattr(metric, "higher_is_better", None)
        if is_this and higher is not None:
            return not higher
    return _LOWER_IS_BETTER.search(name) is not None


@dataclass(frozen=True)
class Target:
    """A value that a metric is to reach: at least this value, or at most if `lower` is better."""

    value: float
    metric: str = "accuracy"
    lower: bool = False

    @classmethod
    def of(cls, given: float | str | Target | None) -> Target | None:
        """An accuracy as a fraction, or `METRIC=VALUE`.

        >>> Target.of("loss=0.5")
        Target(value=0.5, metric='loss', lower=True)
        """
        if given is None or isinstance(given, Target):
            return given
        metric, _, value = given.rpartition("=") if isinstance(given, str) else ("", "", given)
        metric = metric.strip() or "accuracy"
        try:
            target = cls(float(value), metric, lower_is_better(metric))
        except ValueError:
            raise ConfigError(f"target = '{given}': METRIC=VALUE is allowed, as in f1=0.8, or an accuracy") from None
        if metric == "accuracy" and not 0 < target.value <= 1:
            raise ConfigError(f"target = {target.value:g}: a fraction between 0 and 1 is allowed, as in 0.9 for 90 %")
        return target

    def checked(self, measured: Collection[str], metrics: Mapping[str, Any]) -> Target:
        """This target for runs that measure these metrics; raises if they do not measure its metric."""
        if self.metric not in measured:
            what = "an accuracy" if self.metric == "accuracy" else f"of the metric '{self.metric}'"
            found = ", ".join(sorted(measured))
            raise ConfigError(
                f"target = {self.value:g}: it is {what} on test examples, but the run measures only: {found}"
            )
        return replace(self, lower=lower_is_better(self.metric, metrics))

    def holds(self, value: float) -> bool:
        """Whether a value reaches the target."""
        return value <= self.value if self.lower else value >= self.value

    def __str__(self) -> str:
        return f"{100 * self.value:g} %" if self.metric == "accuracy" else f"{self.metric} {self.value:g}"


@dataclass(frozen=True)
class Reached:
    """The costs at the first evaluation where the mean of the last five values reaches the target."""

    rounds: int
    bytes: int
    seconds: float
    simulated_seconds: float | None = None


def check_ranking(
    rank_by: str, target: Target | None, measured: Collection[str] | None = None, networks: Collection[bool] = ()
) -> None:
    """Refuse a ranking by what the runs do not measure.

    Args:
        rank_by: A cost of reaching the target, or a metric.
        measured: The metrics of every run; None if they are not known yet.
        networks: Whether each run simulates a network.
    """
    if rank_by not in COSTS:
        if measured is not None and rank_by not in measured:
            raise unknown_name("ranking", rank_by, [*COSTS, *measured])
        return
    if target is None and rank_by != "bytes":
        raise ConfigError(f"--rank-by {rank_by}: needs a --target")
    if rank_by == "time" and not all(networks):
        raise ConfigError("--rank-by time: describe the network, as in --bandwidth-up 1Mbit --bandwidth-down 10Mbit")


def reached(history: Iterable[dict[str, Any]], target: Target) -> Reached | None:
    """The costs at the first evaluation where the mean of the last five values reaches the target; None if none does.

    >>> records = [{"round": r, "accuracy": r / 10, "bytes_up": r, "bytes_down": r, "seconds": r} for r in range(1, 9)]
    >>> reached(records, Target(0.5))
    Reached(rounds=7, bytes=14, seconds=7, simulated_seconds=None)
    """
    for mean, last in means(history, target.metric):
        if target.holds(mean):
            traffic = last["bytes_up"] + last["bytes_down"]
            return Reached(last["round"], traffic, last["seconds"], last.get("simulated_seconds"))
    return None


def means(history: Iterable[dict[str, Any]], metric: str = "accuracy") -> Iterator[tuple[float, dict[str, Any]]]:
    """The moving average of a metric over five evaluations, each with the record of its last evaluation."""
    last: deque[float] = deque(maxlen=WINDOW)
    for record in history:
        if record.get(metric) is not None:
            last.append(record[metric])
            if len(last) == WINDOW:
                yield sum(last) / WINDOW, record
