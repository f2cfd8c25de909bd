"""A theorem about a recipe: the rates that it allows, its bound, and the rounds until the bound is small."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import exp, inf, log
from typing import Literal

from laconic.theory.formula import evaluate, symbols

Values = dict[str, float]
Participation = Literal["full", "partial", "any"]
Objective = Literal["non-convex", "PL", "convex"]
GRADIENT, OBJECTIVE = "E|grad f(w)|^2, the mean or the minimum over the rounds", "E f(w) - f*, after the last round"

MANY = 10**12
"""The largest number of rounds that is tried. Powers such as (1 - a mu)^T are exact enough up to it."""


@dataclass(frozen=True)
class Theorem:
    """One theorem. Formulas are text with the symbols of `quantities`; a is the local rate, b the server's, T the rounds.

    >>> theorem = Theorem("", "1", (), limits=("1 / L",), terms={"gap": "D / (a * T)", "noise": "a * sigma"})
    >>> known = theorem.complete({"L": 2.0, "D": 1.0, "sigma": 1.0})
    >>> theorem.limit(known)
    0.5
    >>> round(theorem.best_rate(known, rounds=100), 3)
    0.1
    >>> theorem.rounds_to(0.3, known)
    45
    """

    paper: str
    number: str
    recipes: tuple[str, ...]
    limits: tuple[str, ...] = ()
    """Upper limits of a. All hold."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """The bound is their sum."""
    factor: str = "1"
    """A factor of all terms."""
    conditions: tuple[str, ...] = ()
    """Conditions on a without a closed form: each is at least 0, and falls as a grows."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """The theorem's own constants. Each may use those before it."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Quantities that the user may leave out, in order."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Other settings that the theorem prescribes, such as batch sizes."""
    corollary: str = ""
    """The number of the corollary that chooses the rates."""
    corollary_rate: str = ""
    """The corollary's a, as an order."""
    order: str = ""
    """The order of the bound with the corollary's rates."""
    participation: Participation = "any"
    objective: Objective = "non-convex"
    sequential: bool | None = None
    """FedAMD: whether anchors come in turn or at random."""
    up_to_constant: bool = False
    """Whether the paper states the bound only up to a constant factor."""
    reading: str = ""
    """Where the paper's statement and proof differ, how the entry reads them."""

    @property
    def measure(self) -> str:
        """What is bounded."""
        return GRADIENT if self.objective == "non-convex" else OBJECTIVE

    @property
    def what(self) -> str:
        """The case that the theorem is about."""
        words = [self.objective, "" if self.participation == "any" else f"{self.participation} participation"]
        if self.sequential is not None:
            words.append("sequential" if self.sequential else "constant probability")
        return ", ".join(filter(None, words))

    def covers(self, objective: Objective, participation: Participation, sequential: bool) -> bool:
        """Whether the theorem is about this case."""
        same = self.objective == objective and self.participation in ("any", participation)
        return same and self.sequential in (None, sequential)

    def needs(self) -> list[str]:
        """The symbols without a default, except the rates and the rounds."""
        formulas = [*self.limits, *self.conditions, *self.terms.values(), self.factor]
        formulas += [*self.constants.values(), *self.defaults.values()]
        found = {symbol for formula in formulas for symbol in symbols(formula)}
        return sorted(found - self.constants.keys() - self.defaults.keys() - {"a", "T"})

    def complete(self, given: Mapping[str, float]) -> Values:
        """The given values, the defaults of others, and the constants."""
        values = dict(given)
        for symbol, formula in self.defaults.items():
            values.setdefault(symbol, evaluate(formula, values))
        for symbol, formula in self.constants.items():
            values[symbol] = evaluate(formula, values)
        return values

    def limit(self, values: Values) -> float:
        """The largest local rate that the theorem allows."""
        explicit = min((evaluate(formula, values) for formula in self.limits), default=inf)
        return min([explicit, *(_root(condition, values, explicit) for condition in self.conditions)])

    def bound(self, values: Values, rate: float, rounds: int) -> float:
        """The bound after that many rounds."""
        return sum(self.parts(values, rate, rounds).values())

    def parts(self, values: Values, rate: float, rounds: int) -> Values:
        """The terms of the bound."""
        values = values | {"a": rate, "T": rounds}
        factor = evaluate(self.factor, values)
        return {name: factor * evaluate(formula, values) for name, formula in self.terms.items()}

    def best_rate(self, values: Values, rounds: int) -> float:
        """The given local rate, or the allowed one with the smallest bound."""
        if "a" in values:
            return values["a"]
        limit = self.limit(values)
        return _minimum(lambda rate: self.bound(values, rate, rounds), limit)

    def rounds_to(self, error: float, values: Values) -> int | None:
        """The number of rounds until the bound, with the best rate for it, is at most `error`; None: not within `MANY`."""

        def reached(rounds: int) -> bool:
            return self.bound(values, self.best_rate(values, rounds), rounds) <= error

        if not reached(MANY):
            return None
        low, high = 0, 1
        while not reached(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(middle) else (middle, high)
        return high


def _root(condition: str, values: Values, limit: float) -> float:
    """The largest rate up to `limit` at which a condition that falls with the rate is at least 0."""

    def holds(rate: float) -> bool:
        return evaluate(condition, values | {"a": rate}) >= 0

    low, high = 0.0, limit
    if holds(high):
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _minimum(function: Callable[[float], float], limit: float) -> float:
    """The argument up to `limit` with the smallest value: on a grid, then by golden section around its best point."""
    grid = [log(limit) - step / 2 for step in range(120)]
    best = min(grid, key=lambda point: function(exp(point)))
    low, high = best - 0.5, min(best + 0.5, log(limit))
    golden = (5**0.5 - 1) / 2
    while high - low > 1e-9:
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if function(exp(left)) < function(exp(right)) else (left, high)
    # At the limit the rate is exact.
    return limit if function(limit) <= function(exp(low)) else exp(low)
