"""Claims of papers as comparisons of measured numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from laconic.reproduce.measures import Measure

Rows = Mapping[str, Mapping[str, float | None]]
"""Numbers by the run's label and the measure's name."""

Relation = Literal["more", "less", "near"]
MANY = 8
"""With more numbers than this, evidence gives their range."""
WORST = {"more": float("-inf"), "less": float("inf")}


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds (None if a run is missing), and the numbers."""

    holds: bool | None
    evidence: str

    @property
    def word(self) -> str:
        """`holds` in words."""
        return {True: "holds", False: "does not hold", None: "not judged"}[self.holds]


@dataclass(frozen=True)
class Claim:
    """The measure of each run in `ones` is more (or less, or near) than that of each run in `others`.

    A run that did not reach a target has the worst value. Numbers that are equal as printed are neither more nor less.
    """

    measure: Measure
    relation: Relation
    ones: str | tuple[str, ...]
    """The label of a run, or several."""
    others: str | tuple[str, ...] | float
    """The same, or a constant."""
    margin: float = 0.0
    """The minimum difference; for "near", the maximum."""
    factor: float = 1.0
    """Multiplies the values of `others` before the comparison."""

    def judge(self, rows: Rows) -> Verdict:
        """Compare the numbers.

        >>> from laconic.reproduce.measures import FINAL
        >>> claim = Claim(FINAL, "more", "a", "b")
        >>> claim.judge({"a": {FINAL.name: 80.0}, "b": {FINAL.name: 78.5}})
        Verdict(holds=True, evidence='a 80.0; b 78.5')
        >>> claim.judge({"a": {FINAL.name: 80.01}, "b": {FINAL.name: 80.0}}).word
        'does not hold'
        >>> claim.judge({"a": {FINAL.name: 80.0}}).word
        'not judged'
        >>> claim.judge({"a": {FINAL.name: None}, "b": {FINAL.name: None}}).word
        'not judged'
        """
        ones, others = labels_of(self.ones), labels_of(self.others)
        missing = [label for label in (*ones, *others) if label not in rows]
        if missing:
            return Verdict(None, f"{', '.join(missing)}: not run")
        numbers = {label: rows[label].get(self.measure.name) for label in (*ones, *others)}
        one = [numbers[label] for label in ones]
        other = [self.others] if isinstance(self.others, float) else [numbers[label] for label in others]
        evidence = self._evidence(numbers)
        if all(value is None for value in (*one, *other)):
            return Verdict(None, f"{evidence}: nothing to compare")
        holds = all(self._compare(a, None if b is None else self.factor * b) for a in one for b in other)
        return Verdict(holds, evidence)

    def _evidence(self, numbers: Mapping[str, float | None]) -> str:
        """Format the numbers, or the range of many numbers that are compared with a constant."""
        known = [value for value in numbers.values() if value is not None]
        if len(numbers) > MANY and len(known) == len(numbers) and isinstance(self.others, float):
            return f"from {self.measure.text(min(known))} to {self.measure.text(max(known))}"
        return "; ".join(f"{label} {self.measure.text(value)}" for label, value in numbers.items())

    def _compare(self, a: float | None, b: float | None) -> bool:
        if self.relation == "near":
            return a is not None and b is not None and abs(a - b) <= self.margin
        first, second = (WORST[self.relation] if value is None else value for value in (a, b))
        if first == second or self.measure.text(first) == self.measure.text(second):
            return False
        difference = first - second if self.relation == "more" else second - first
        return difference > 0 and difference >= self.margin


def labels_of(runs: str | tuple[str, ...] | float) -> tuple[str, ...]:
    """Return the labels of runs that a claim compares; a constant has none."""
    return (runs,) if isinstance(runs, str) else () if isinstance(runs, float) else runs


def in_order(text: str, measure: Measure, relation: Relation, label: str, values: Sequence[object]) -> dict[str, Claim]:
    """Return a claim for each pair of neighboring values: the later has more (or less) of the measure.

    Args:
        text: The statement, with `{later}` and `{earlier}` for the two values.
        label: The label of a run, with `{}` for the value.

    >>> from laconic.reproduce.measures import LOSS
    >>> [*in_order("{later} beats {earlier}", LOSS, "less", "tau = {}", (5, 10, 20))]
    ['10 beats 5', '20 beats 10']
    """
    return {
        text.format(later=later, earlier=earlier): Claim(measure, relation, label.format(later), label.format(earlier))
        for earlier, later in pairwise(values)
    }
