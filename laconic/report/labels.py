"""Labels of runs: the algorithm, and the settings that tell a run from the others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from laconic.algorithms.algorithm import LINKS
from laconic.algorithms.recipes import RECIPES, make
from laconic.compression import parse_compressor
from laconic.core.errors import ConfigError
from laconic.core.part import SLOTS
from laconic.report.reading import Table

FREE = (
    *("seed", "rounds", "eval_every", "metrics", "personalize", "diagnostics", "full_gradient", "data_dir"),
    *("device", "engine", "workers", "ray_address", "threads", "chunk", "store", "store_cache", "ray.repeat"),
    *("numerics.strategy", "numerics.vmap_width", "defense.memory"),
)
"""Settings that do not separate runs: runs that differ only in these are one group, drawn as a mean with a band."""


def group_key(settings: Table) -> str:
    """Return a key that is equal for runs that differ only in settings of `FREE`, such as the seed."""
    return json.dumps({key: value for key, value in settings.items() if key not in FREE}, sort_keys=True)


def labels(settings: Sequence[Table]) -> list[str]:
    """Return the algorithm of each run, and the settings that tell it from the others or change its recipe."""
    changes = {id(own): _changes(own) for own in settings}

    def named(required: Sequence[set[str]]) -> list[str]:
        keys = (
            _distinguishing_keys(own, settings, changes[id(own)], needed)
            for own, needed in zip(settings, required, strict=True)
        )
        return [_label(own, chosen, settings) for own, chosen in zip(settings, keys, strict=True)]

    names = named([set() for _ in settings])
    # A label names a different part without the parameters at their defaults. If two runs then have one label, add them.
    required: list[set[str]] = []
    for name, own in zip(names, settings, strict=True):
        namesakes = [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        required.append({key for other in namesakes for key in _differing(own, other)})
    return named(required) if any(required) else names


def _differing(own: Table, other: Table) -> set[str]:
    return {key for key in own.keys() | other.keys() if key not in FREE and own.get(key) != other.get(key)}


def _label(own: Table, keys: Sequence[str], settings: Sequence[Table]) -> str:
    words = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
    counts = Counter(words.values())
    # The full "uplink.compressor" if the downlink's compressor is in the label, too.
    details = [f"{key if counts[word] > 1 else word}={_spelled(key, own, settings)}" for key, word in words.items()]
    return str(own["algorithm"]) + (f" ({', '.join(details)})" if details else "")


def _distinguishing_keys(own: Table, settings: Sequence[Table], changes: set[str], required: set[str]) -> list[str]:
    """Return the keys that distinguish a run from the others. Differing keys in `required` are always included."""
    differing = _candidates(own, settings, changes)
    # The name of a different part suffices: omit its parameters at their defaults, and the file that defines it.
    parts = {key.removesuffix(".name") for key in differing if key.endswith(".name")}
    implied = {key for key in differing if key == "imports" or key.partition(".")[0] in parts}
    named = required | changes | {key for key in differing if key.endswith((".name", ".compressor"))}
    return sorted((differing - (implied - named)) & own.keys())


def _candidates(own: Table, settings: Sequence[Table], changes: set[str]) -> set[str]:
    """Return the keys in which a run differs from others of its algorithm, and the changes of its recipe that matter."""
    namesakes = [other for other in settings if other["algorithm"] == own["algorithm"]]
    differing = {key for other in namesakes for key in _differing(own, other)}
    # A changed link or part is always named: the recipe's name alone would mislead. Other changes, if runs differ in them.
    named = {key for key in changes if key.partition(".")[0] in LINKS or key.endswith(".name")}
    differing |= named | {key for key in changes if any(key in run and run[key] != own[key] for run in settings)}
    return differing | ({"dataset"} if len({other.get("dataset") for other in settings}) > 1 else set())


def _changes(settings: Table) -> set[str]:
    """Return the keys of parts and their parameters that differ from the recipe's."""
    if settings["algorithm"] not in RECIPES:
        return set()
    recipe = {slot: part.name for slot, part in make(settings["algorithm"]).parts().items()}
    replaced = {slot for slot in SLOTS if settings.get(f"{slot}.name", recipe[slot]) != recipe[slot]}
    changed = {f"{slot}.name" for slot in replaced}
    try:
        parts = make(settings["algorithm"], **{slot: settings[f"{slot}.name"] for slot in replaced}).parts()
    except ConfigError:
        return changed  # a user's own part: a report does not run users' files
    for slot, part in parts.items():
        for key, default in part.table().items():
            value = settings.get(f"{slot}.{key}", default)
            same = _same_compressor(value, default) if key == "compressor" else value == default
            changed |= set() if same else {f"{slot}.{key}"}
    return changed


def _same_compressor(spelling: str, default: str) -> bool:
    try:
        return parse_compressor(spelling) == parse_compressor(default)
    except ConfigError:
        return spelling == default  # a user's own compressor: a report does not run users' files


def _spelled(key: str, own: Table, settings: Sequence[Table]) -> str:
    """Format a setting. Users' files are shown without folders, unless another run's file has the same name."""
    namesakes = {
        _files(other[key], full=True) for other in settings if key in other and _files(other[key]) == _files(own[key])
    }
    return _files(own[key], full=len(namesakes) > 1)


def _files(value: Any, full: bool = False) -> str:
    if isinstance(value, list):
        return " and ".join(_files(item, full) for item in value)
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    path, colon, function = str(value).partition(".py:")
    is_file = bool(colon) or path.endswith(".py")
    return f"{Path(path).name.removesuffix('.py')}{colon[3:]}{function}" if is_file and not full else str(value)
