"""Formulas as text: what is printed is what is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from math import exp, inf, log, sqrt
from types import CodeType


def ratio(numerator: float, denominator: float) -> float:
    """A quotient with 0 / 0 = 0, for terms whose factor vanishes."""
    if denominator:
        return numerator / denominator
    return inf if numerator else 0.0


_FUNCTIONS = {"sqrt": sqrt, "exp": exp, "log": log, "min": min, "max": max, "ratio": ratio, "inf": inf}


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, "<formula>", "eval")


def symbols(formula: str) -> set[str]:
    """The symbols of a formula."""
    return set(_compiled(formula).co_names) - _FUNCTIONS.keys()


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """The value of a formula; infinite if it divides by 0.

    >>> evaluate("a * K ** 2 / sqrt(T)", {"a": 2, "K": 3, "T": 4})
    9.0
    """
    try:
        # Formulas are constants of this package, so eval runs no code of others.
        return float(eval(_compiled(formula), {"__builtins__": {}} | _FUNCTIONS, dict(values)))
    except (ZeroDivisionError, OverflowError):
        return inf


def shown(formula: str) -> str:
    """A formula for people.

    >>> shown("a * K ** 2 / (2 * L)"), shown("K * ratio(h, q) ** 2")
    ('a K^2 / (2 L)', 'K (h / q)^2')
    """
    quotients = re.sub(r"ratio\((\w+), (\w+)\)", r"(\1 / \2)", formula)
    return quotients.replace(" ** ", "^").replace(" * ", " ")
