"""Claims of papers as comparisons of measured numbers, seed by seed.

Every claim comes down to differences, one for each seed, and to a range that it allows for their mean. The mean has a
Student-t interval of 95 %. If it lies in the range the claim holds, if it lies outside the claim fails, and otherwise the
claim is undecided. See `judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite, log10
from statistics import fmean
from sys import float_info
from typing import Literal, Protocol

from laconic.core import counted
from laconic.reproduce.intervals import LEVEL, half_width
from laconic.reproduce.measures import Curve, Measure
from laconic.run import over_seeds

Relation = Literal["more", "less", "near"]
Kind = Literal["holds", "fails", "undecided", "one seed", "not judged"]
WORDS = ("holds", "fails", "undecided", "one seed, agrees", "one seed, disagrees", "not judged")
"""All values of `Verdict.word`."""
MANY = 8
"""With more numbers than this, evidence gives their range."""
ENOUGH = 3
"""The number of seeds from which on a claim can hold or fail."""


@dataclass(frozen=True)
class Result:
    """A run with one seed: its numbers by measure, and its curve."""

    numbers: Mapping[str, float | None]
    curve: Curve = field(default_factory=list)


Results = Mapping[str, Mapping[int, Result]]
"""Results by label and seed."""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds, and the numbers."""

    kind: Kind
    evidence: str
    agrees: bool | None = None
    """With one seed: whether its numbers agree with the claim."""

    @property
    def word(self) -> str:
        """The kind in words."""
        return self.kind if self.agrees is None else f"one seed, {'agrees' if self.agrees else 'disagrees'}"


@dataclass(frozen=True)
class Comparison:
    """The differences of two runs by seed, and the range that a claim allows.

    A difference is a pair of bounds, which are equal unless a run did not reach its target.
    """

    name: str
    differences: Mapping[int, tuple[float, float]]
    low: float
    high: float
    what: str = "difference"
    """What the differences are, in words."""

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Return the interval of the mean difference. A single difference is its own interval."""
        lows, highs = zip(*self.differences.values(), strict=True)
        if len(lows) == 1:
            return lows[0], highs[0]
        return fmean(lows) - half_width(lows, level), fmean(highs) + half_width(highs, level)

    @property
    def slack(self) -> float:
        """How far the interval is inside the range; negative outside."""
        low, high = self.interval()
        ends = [low - self.low] if isfinite(self.low) else []
        return min([*ends, *([self.high - high] if isfinite(self.high) else [])])


class Comparable(Protocol):
    """What a claim provides to `judge`."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all compared runs."""
        ...

    def comparisons(self, results: Results, seeds: Sequence[int]) -> list[Comparison]:
        """Return the comparisons, all of which the claim makes."""
        ...

    def evidence(self, results: Results, seeds: Sequence[int]) -> str:
        """Format the compared numbers."""
        ...

    def difference(self, value: float) -> str:
        """Format a difference."""
        ...


def judge(claim: Comparable, results: Results, *, exact: bool = False) -> Verdict:
    """Judge a claim by the seeds that all of its runs have.

    A claim of several comparisons holds if the interval of every one lies in its range. It fails if one lies outside; there
    the intervals are wider by Bonferroni's correction, since any of them may be the one.

    Args:
        exact: Whether numbers are computed without a random draw, so that one of each is enough.

    >>> from laconic.reproduce.measures import FINAL
    >>> def runs(*values): return {seed: Result({FINAL.name: value}) for seed, value in enumerate(values)}
    >>> claim = Claim(FINAL, "more", "a", "b")
    >>> judge(claim, {"a": runs(80.0, 81.0, 82.0), "b": runs(78.0, 79.2, 79.9)})
    Verdict(kind='holds', evidence='a 81.0; b 79.0; difference +2.0, 95 % interval [+1.6, +2.3], 3 seeds', agrees=None)
    >>> judge(claim, {"a": runs(80.0, 81.0, 82.0), "b": runs(78.0, 79.2, 81.9)}).kind
    'undecided'
    >>> judge(claim, {"a": runs(80.0), "b": runs(78.0)})
    Verdict(kind='one seed', evidence='a 80.0; b 78.0', agrees=True)
    >>> judge(claim, {"a": runs(80.0)}).word
    'not judged'
    """
    missing = [label for label in claim.labels if label not in results]
    if missing:
        return Verdict("not judged", f"not run: {'; '.join(f'`{label}`' for label in missing)}")
    seeds = sorted(set.intersection(*(set(results[label]) for label in claim.labels)))
    if not seeds:
        return Verdict("not judged", "no seed that all of its runs have")
    comparisons, evidence = claim.comparisons(results, seeds), claim.evidence(results, seeds)
    if all(pair == (-inf, inf) for each in comparisons for pair in each.differences.values()):
        return Verdict("not judged", f"{evidence}: nothing to compare")
    worst = min(comparisons, key=lambda each: each.slack)
    if exact:
        return Verdict("holds" if worst.slack >= 0 else "fails", evidence)
    if len(seeds) == 1:
        return Verdict("one seed", evidence, worst.slack >= 0)
    evidence += f"; {_described(claim, worst, len(comparisons) > 1)}, {counted(len(seeds), 'seed')}"
    return Verdict(_decide(comparisons, worst, len(seeds)), evidence)


def _decide(comparisons: Sequence[Comparison], worst: Comparison, seeds: int) -> Kind:
    if seeds < ENOUGH:
        return "undecided"
    if worst.slack >= 0:
        return "holds"
    level = 1 - (1 - LEVEL) / len(comparisons)
    return "fails" if any(_outside(each, level) for each in comparisons) else "undecided"


def _outside(comparison: Comparison, level: float) -> bool:
    low, high = comparison.interval(level)
    return high < comparison.low or low > comparison.high


def _described(claim: Comparable, comparison: Comparison, named: bool) -> str:
    low, high = comparison.interval()
    lows, highs = zip(*comparison.differences.values(), strict=True)
    mean = claim.difference(fmean(lows)) if lows == highs else "unknown"
    name = f"{comparison.name}: " if named else ""
    start = f"[{claim.difference(low)}" if isfinite(low) else "(-∞"
    end = f"{claim.difference(high)}]" if isfinite(high) else "∞)"
    return f"{name}{comparison.what} {mean}, 95 % interval {start}, {end}"


@dataclass(frozen=True)
class Claim:
    """The measure of each run in `ones` is more (or less, or near) than that of each run in `others`.

    Numbers that are equal as printed are neither more nor less.
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

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all compared runs."""
        return (*labels_of(self.ones), *labels_of(self.others))

    def comparisons(self, results: Results, seeds: Sequence[int]) -> list[Comparison]:
        """Compare each run in `ones` with each in `others`."""
        least = self.margin or float_info.min
        low, high = {"more": (least, inf), "less": (-inf, -least), "near": (-self.margin, self.margin)}[self.relation]
        return [
            Comparison(
                f"{one} and {other}" if other else one,
                self._differences(results, seeds, one, other),
                low,
                high,
                self._what(other),
            )
            for one in labels_of(self.ones)
            for other in labels_of(self.others) or ("",)
        ]

    def _what(self, other: str) -> str:
        if isinstance(self.others, float):
            return f"difference from {self.factor * self.others:g}:"
        return "difference" if self.factor == 1 else f"difference from {self.factor:g} times {other}:"

    def _differences(
        self, results: Results, seeds: Sequence[int], one: str, other: str
    ) -> dict[int, tuple[float, float]]:
        differences = {}
        for seed in seeds:
            first = self.measure.bounds(results[one][seed].numbers, results[one][seed].curve)
            if isinstance(self.others, float):
                second = (self.others, self.others)
            else:
                second = self.measure.bounds(results[other][seed].numbers, results[other][seed].curve)
            low, high = (self.factor * bound for bound in second)
            equal = first[0] == first[1] and low == high and self.measure.text(first[0]) == self.measure.text(low)
            same = equal and self.relation != "near"
            differences[seed] = (0.0, 0.0) if same else (first[0] - high, first[1] - low)
        return differences

    def evidence(self, results: Results, seeds: Sequence[int]) -> str:
        """Format the mean of each run, or the range of many that are compared with a constant, and the margin."""
        means = {
            label: over_seeds([results[label][seed].numbers.get(self.measure.name) for seed in seeds])
            for label in self.labels
        }
        known = [value for value in means.values() if value is not None]
        if len(means) > MANY and len(known) == len(means) and isinstance(self.others, float):
            least, most = (self.measure.text(value) for value in (min(known), max(known)))
            return f"{self.measure.name} is between {least} and {most}"
        texts = [f"{label} {self.measure.text(value)}" for label, value in means.items()]
        margin = [f"margin {self.margin:g}"] if self.margin and labels_of(self.others) else []
        return "; ".join([*texts, *margin])

    def difference(self, value: float) -> str:
        """Format a difference."""
        return self.measure.difference(value)


@dataclass(frozen=True)
class MoreOften:
    """One run's metric is below the other's at more than half of the evaluations after a round."""

    metric: str
    one: str
    other: str
    after: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of both runs."""
        return self.one, self.other

    def comparisons(self, results: Results, seeds: Sequence[int]) -> list[Comparison]:
        """Compare the share of evaluations, in %, with half of them."""
        shares = {seed: self._share(results[self.one][seed], results[self.other][seed]) for seed in seeds}
        differences = {seed: (share - 50, share - 50) for seed, share in shares.items()}
        return [Comparison(self.one, differences, float_info.min, inf, "difference from 50 %:")]

    def _share(self, one: Result, other: Result) -> float:
        theirs = {record["round"]: record[self.metric] for record in other.curve if self.metric in record}
        pairs = [
            (record[self.metric], theirs[record["round"]])
            for record in one.curve
            if self.metric in record and record["round"] > self.after and record["round"] in theirs
        ]
        return 100 * fmean([a < b for a, b in pairs] or [0.5])

    def evidence(self, results: Results, seeds: Sequence[int]) -> str:
        """Format the share."""
        share = fmean(self._share(results[self.one][seed], results[self.other][seed]) for seed in seeds)
        return f"{self.one} below {self.other} at {share:.0f} % of the evaluations after round {self.after}"

    def difference(self, value: float) -> str:
        """Format a difference of shares."""
        return f"{value:+.0f}"


@dataclass(frozen=True)
class LargerGap:
    """The ratio of the measure of the first run to the second is larger for `ones` than for `others`."""

    measure: Measure
    ones: tuple[str, str]
    others: tuple[str, str]

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of all four runs."""
        return self.ones + self.others

    def comparisons(self, results: Results, seeds: Sequence[int]) -> list[Comparison]:
        """Compare the logarithms of the ratios."""
        differences = {}
        for seed in seeds:
            gap = self._gap(results, self.ones, seed) - self._gap(results, self.others, seed)
            differences[seed] = (gap, gap) if isfinite(gap) else (-inf, inf)
        what = "difference of the decimal logarithms:"
        return [Comparison(" to ".join(self.ones), differences, float_info.min, inf, what)]

    def _gap(self, results: Results, labels: tuple[str, str], seed: int) -> float:
        first, second = (results[label][seed].numbers.get(self.measure.name) for label in labels)
        return log10(first / second) if first and second else inf

    def evidence(self, results: Results, seeds: Sequence[int]) -> str:
        """Format both ratios, averaged as logarithms."""
        texts = []
        for labels in (self.ones, self.others):
            gaps = [self._gap(results, labels, seed) for seed in seeds]
            ratio = f"{10 ** fmean(gaps):.2f}" if all(map(isfinite, gaps)) else "none"
            texts.append(f"{labels[0]} over {labels[1]} {ratio}")
        return "; ".join(texts)

    def difference(self, value: float) -> str:
        """Format a difference of decimal logarithms."""
        return f"{value:+.2f}"


def labels_of(runs: str | tuple[str, ...] | float) -> tuple[str, ...]:
    """Return the labels of runs that a claim compares; a constant has none."""
    return (runs,) if isinstance(runs, str) else () if isinstance(runs, float) else runs


def in_order(
    text: str, measure: Measure, relation: Relation, label: str, values: Sequence[object]
) -> dict[str, Comparable]:
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
