"""Measures of a run's curve: the columns of a study's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp, floor, inf, isfinite, log, log10
from statistics import fmean
from typing import Any

from laconic.core import counted
from laconic.run import WINDOW, Target
from laconic.run import reached as first_reached

Record = dict[str, Any]
Curve = list[Record]
"""The records of one run, in order. Records of rounds without evaluation have no metrics."""


@dataclass(frozen=True)
class Measure:
    """A function of a run's curve. Its value is None if it does not exist, as for a target that was not reached."""

    name: str
    of: Callable[[Curve], float | None]
    digits: int = 1
    scientific: bool = False
    """Whether to print three digits and an exponent."""
    significant: int = 0
    """The number of significant digits, instead of `digits` decimals."""
    absent: str = "none"
    """The text for None."""
    at_least: Callable[[Curve], float] | None = None
    """A lower bound of a value that does not exist: a target that was not reached costs at least the whole run."""
    spread: bool = True
    """Whether to print the standard deviation over seeds."""
    otherwise: float | None = None
    """The number that stands for None in comparisons."""
    metric: str = ""
    """A metric that every run needs for it. Published runs without it are run again."""

    def text(self, value: float | None) -> str:
        """Format a value."""
        if value is None:
            return self.absent
        if self.scientific:
            return f"{value:.2e}".replace("e+", "e")
        return f"{value:,.{self._decimals(value)}f}"

    def mean_text(self, value: float | None, deviation: float | None) -> str:
        """Format a mean and, if it exists, the standard deviation, with as many decimals as the mean."""
        text = self.text(value)
        if value is None or deviation is None or not self.spread:
            return text
        return f"{text} ± {self.text(deviation) if self.scientific else f'{deviation:,.{self._decimals(value)}f}'}"

    def printed(self, value: float) -> str:
        """Format a number of a paper: with at least our digits, and all of its own."""
        ours = self.text(value)
        return ours if self.scientific else max(ours, f"{value:,g}", key=len)

    def bounds(self, numbers: Mapping[str, float | None], curve: Curve) -> tuple[float, float]:
        """Return bounds of a run's value. They are equal if it exists."""
        value = numbers.get(self.name)
        value = self.otherwise if value is None else value
        if value is not None:
            return value, value
        return (self.at_least(curve) if self.at_least and curve else -inf), inf

    def difference(self, value: float) -> str:
        """Format a difference, with its sign."""
        if self.scientific:
            return f"{value:+.1e}".replace("e+", "e")
        return f"{value:+,.{self._decimals(value)}f}"

    def _decimals(self, value: float) -> int:
        if not self.significant:
            return self.digits
        exponent = floor(log10(abs(value))) if value and isfinite(value) else 0
        return max(0, self.significant - 1 - exponent)


def column(curve: Curve, name: str) -> list[float]:
    """Return the values of one metric, without missing ones."""
    return [record[name] for record in curve if record.get(name) is not None]


def mean_of_last(curve: Curve) -> float:
    """Return the mean accuracy of the last five evaluations, in %."""
    return 100 * fmean(column(curve, "accuracy")[-WINDOW:] or [0.0])


def reached(curve: Curve, accuracy: float) -> Record | None:
    """Return the evaluation at which the mean of five reaches the accuracy, the rule of `compare --target`."""
    point = first_reached([record | {"seconds": 0.0} for record in curve], Target(accuracy))
    return next(record for record in curve if record["round"] == point.rounds) if point else None


def both(record: Record, name: str = "bytes") -> float:
    """Return the bytes (or the papers' bits) of both directions."""
    return float(record[f"{name}_up"] + record[f"{name}_down"])


def _last(curve: Curve, name: str) -> float | None:
    values = column(curve, name)
    return values[-1] if values else None


FINAL = Measure(
    "final accuracy, %",
    lambda curve: None if (value := _last(curve, "accuracy")) is None else 100 * value,
    otherwise=0.0,
)
LAST_FIVE = Measure(
    "mean accuracy of the last five evaluations, %",
    lambda curve: mean_of_last(curve) if column(curve, "accuracy") else None,
    otherwise=0.0,
)
LOSS = Measure("test loss", lambda curve: _last(curve, "loss"), 3)
TRAINING_LOSS = Measure("training loss", lambda curve: _last(curve, "training_loss"), 3, metric="training_loss")
TRAINING_CURVE = Measure(
    "training loss, mean of all evaluations",
    lambda curve: fmean(values) if (values := column(curve, "training_loss")) else None,
    3,
    metric="training_loss",
)
GRADIENT_NORM = Measure(
    "squared norm of the gradient", lambda curve: _last(curve, "gradient_norm_squared"), scientific=True
)
GRADIENT_CURVE = Measure(
    "squared norm of the gradient, geometric mean of all evaluations",
    lambda curve: exp(fmean(map(log, values))) if (values := column(curve, "gradient_norm_squared")) else None,
    scientific=True,
)
OBJECTIVE = Measure("objective (training loss over all clients)", lambda curve: _last(curve, "objective"), 4)
MEGABYTES_UP = Measure("MB up", lambda curve: curve[-1]["bytes_up"] / 1e6 if curve else None)
MEGABYTES = Measure("MB both ways", lambda curve: both(curve[-1]) / 1e6 if curve else None)
PAPER_BITS_UP = Measure(
    "bits up, as the paper counts them",
    lambda curve: float(curve[-1]["paper_bits_up"]) if curve else None,
    scientific=True,
)
PAPER_BITS = Measure(
    "bits both ways, as the paper counts them",
    lambda curve: both(curve[-1], "paper_bits") if curve else None,
    scientific=True,
)
SKIP_RATE = Measure("skipped updates, %", lambda curve: 100 * fmean(column(curve, "skip_rate") or [0.0]))


def accuracy_at(round_: int) -> Measure:
    """Return the measure of the accuracy after a round."""

    def value(curve: Curve) -> float | None:
        return next((100 * r["accuracy"] for r in curve if r["round"] == round_ and "accuracy" in r), None)

    return Measure(f"accuracy after {counted(round_, 'round')}, %", value, otherwise=0.0)


def largest_and_mean(metric: str, name: str) -> tuple[Measure, Measure]:
    """Return the measures of the largest and of the mean value of a metric."""
    return (
        Measure(f"largest {name}", lambda curve: max(column(curve, metric), default=None), 3),
        Measure(f"mean {name}", lambda curve: fmean(values) if (values := column(curve, metric)) else None, 3),
    )


COSTS: dict[str, Callable[[Record], float]] = {
    "rounds": lambda record: record["round"],
    "1e3 gradients": lambda record: record["gradients"] / 1e3,
    "1e5 gradients": lambda record: record["gradients"] / 1e5,
    # The unit of FedAMD's table: a million floats.
    "x 32 Mbit": lambda record: both(record, "paper_bits") / 32e6,
    "uplink MB": lambda record: record["bytes_up"] / 1e6,
    "downlink MB": lambda record: record["bytes_down"] / 1e6,
    "MB both ways": lambda record: both(record) / 1e6,
    "uplink kB": lambda record: record["bytes_up"] / 1e3,
    "downlink kB": lambda record: record["bytes_down"] / 1e3,
    "kB both ways": lambda record: both(record) / 1e3,
    "simulated seconds": lambda record: record.get("simulated_seconds", float("nan")),
}
"""The costs of a run up to a record, by name and unit."""


def cost_to(name: str, cost: str, find: Callable[[Curve], Record | None], significant: int = 0) -> Measure:
    """Return the measure of a cost up to the record that `find` returns."""
    spent = COSTS[cost]

    def value(curve: Curve) -> float | None:
        record = find(curve)
        return None if record is None else spent(record)

    return Measure(
        name,
        value,
        digits=0 if cost == "rounds" else 1,
        significant=significant,
        absent="not reached",
        at_least=lambda curve: spent(curve[-1]),
    )


def to_accuracy(accuracy: float, cost: str) -> Measure:
    """Return the measure of a cost to the first single evaluation with that accuracy, which is how the papers count."""

    def first(curve: Curve) -> Record | None:
        return next((record for record in curve if (record.get("accuracy") or 0.0) >= accuracy), None)

    return cost_to(f"{cost} to {100 * accuracy:g} %", cost, first)


def to_loss(loss: float, cost: str) -> Measure:
    """Return the measure of a cost to the first single evaluation with at most that test loss."""

    def first(curve: Curve) -> Record | None:
        return next((record for record in curve if record.get("loss", inf) <= loss), None)

    return cost_to(f"{cost} to a loss of {loss:g}", cost, first)
