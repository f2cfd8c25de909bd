"""All theorems, and those that cover a recipe with the given quantities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laconic.core.errors import ConfigError, unknown_name
from laconic.theory import fed_ef, fedamd, fedbnlaca, fedcams, fedcomgate
from laconic.theory.quantities import BY_SYMBOL
from laconic.theory.theorem import Objective, Participation, Theorem

THEOREMS: tuple[Theorem, ...] = (
    *fed_ef.THEOREMS,
    *fedamd.THEOREMS,
    *fedcams.THEOREMS,
    *fedcomgate.THEOREMS,
    *fedbnlaca.THEOREMS,
)
RECIPES = sorted({recipe for theorem in THEOREMS for recipe in theorem.recipes})
"""The recipes with a theorem."""


def covering(recipe: str, given: Mapping[str, float]) -> list[Theorem]:
    """The theorems about a recipe for the given objective and participation.

    Raises:
        ConfigError: If there is none, or if a quantity is missing.
    """
    about = [theorem for theorem in THEOREMS if recipe in theorem.recipes]
    if not about:
        raise unknown_name("algorithm with a theorem", recipe, RECIPES)
    participation: Participation = "full" if given.get("n", given.get("N")) == given.get("N") else "partial"
    objective: Objective = "convex" if "W" in given else "PL" if "mu" in given else "non-convex"
    found = [theorem for theorem in about if theorem.covers(objective, participation, "tau" in given)]
    if not found:
        there_are = "; ".join(f"{theorem.number}: {theorem.what}" for theorem in about)
        case = f"a {objective} objective and {participation} participation"
        raise ConfigError(f"theory {recipe}: no theorem for {case}. There are {there_are}")
    if missing := _missing(found, given):
        numbers = " and ".join(theorem.number for theorem in found)
        raise ConfigError(f"theory {recipe}: also give {', '.join(missing)}, for {numbers}")
    return found


def _missing(theorems: Sequence[Theorem], given: Mapping[str, float]) -> list[str]:
    """The options of quantities that the theorems need and nobody gave."""
    needed = {symbol for theorem in theorems for symbol in theorem.needs()} - given.keys()
    return [quantity.option for symbol, quantity in BY_SYMBOL.items() if symbol in needed]
