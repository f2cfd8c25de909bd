"""What an algorithm sets itself takes precedence over the parameters of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.recipes import RECIPES
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS, Part, parameter_names


def without_own(algorithm: Algorithm, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The changes without those parameters and parts that the algorithm sets to other values than its recipe's.

    >>> from laconic.algorithms.recipes import fed_avg
    >>> without_own(fed_avg(local_lr=0.5), {"local_lr": 0.1, "local_steps": 2})
    {'local_steps': 2}
    """
    kept: dict[str, Any] = {}
    for key, value in changes.items():
        if key in SLOTS and isinstance(value, Mapping):
            table = {name: entry for name, entry in value.items() if not _is_own(algorithm, key, name)}
            kept |= {key: table} if table else {}
        elif key in SLOTS:
            kept |= {} if _is_own(algorithm, key, "name") else {key: value}
        elif not any(_is_own(algorithm, slot, key) for slot in algorithm.owners(key)):
            kept[key] = value
    return kept


def _is_own(algorithm: Algorithm, slot: str, key: str) -> bool:
    """Whether the part in a slot, or one of its parameters, is not that of the recipe.

    An algorithm without a recipe is compared with its method and the default parts of the other slots.
    """
    part: Part = getattr(algorithm, slot)
    recipe: Part | None = None
    if algorithm.name in RECIPES:
        recipe = getattr(RECIPES[algorithm.name](), slot)
    elif slot != "method":
        recipe = getattr(Algorithm(algorithm.method), slot)
    if key == "name":
        return type(part) is not type(recipe)
    if key not in part.parameters():
        return False
    if type(part) is not type(recipe):
        given = {name: part.parameters()[name] for name in parameter_names(type(part), required=True)}
        if key in given:
            return True
        recipe = type(part)(**given) if recipe is None else _replacing(algorithm, slot, recipe, given)
    return bool(part.parameters()[key] != recipe.parameters()[key])


def _replacing(algorithm: Algorithm, slot: str, recipe: Part, given: Mapping[str, Any]) -> Part:
    """The algorithm's part as it replaces the recipe's, if only its name and these parameters are given."""
    part: Part = getattr(algorithm, slot)
    before = replace(algorithm, **{slot: recipe})  # type: ignore[arg-type]
    # Parameters alone may make this part: a compressor makes a dense uplink a compressed one with memory, while the name
    # "compressed" means one without.
    with suppress(ConfigError):
        alone: Any = {slot: given}
        made: Part = getattr(before.replace(**alone), slot)
        if type(made) is type(part):
            return made
    named: Any = {slot: {"name": part.name, **given}}
    found: Part = getattr(before.replace(**named), slot)
    return found
