"""Checks that a run is resumed with the settings, model and data that it was started with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from laconic.compression import parse_compressor
from laconic.core.counts import counted
from laconic.core.errors import ConfigError
from laconic.run.config import RunConfig
from laconic.run.settings import flattened

FREE_TO_CHANGE = frozenset(
    {"rounds", "eval_every", "threads", "chunk", "store_cache", "data_dir", "ray.address", "ray.repeat"}
)
"""Settings that may differ when a run is resumed: they do not change the rounds that were already run."""


def check_same(
    what: str, wanted: Mapping[str, Any], stored: Mapping[str, Any], free: Collection[str] = FREE_TO_CHANGE
) -> None:
    """Refuse to resume with other settings than those of the start. The error names every difference.

    Args:
        what: What is resumed, such as "the run in 'runs/first'".
        wanted: The new settings, as nested tables. Missing keys are not compared.
        stored: The settings of the start.
        free: Keys that may differ.
    """
    new, old = (_comparable(table) for table in (wanted, stored))
    differing = [key for key in sorted(new) if key not in free and new[key] != old.get(key)]
    if "algorithm" in differing:
        differing = ["algorithm"]  # its parts differ as a consequence
    if differing:
        given, started = (", ".join(f"{key} = {table.get(key)!r}" for key in differing) for table in (new, old))
        raise ConfigError(
            f"resume: {given}, but {what} was started with {started}; "
            "resume it with the same settings, or give another out"
        )


def with_changes(wanted: RunConfig, stored: RunConfig, directory: Path) -> RunConfig:
    """The stored config, updated with the settings of `wanted` that may change.

    Any other setting of `wanted` must equal the stored one. Settings that `wanted` does not set are not compared.
    """
    new = _without_auto(wanted.model_dump(exclude_unset=True))
    check_same(f"the run in '{directory}'", new, stored.model_dump())
    changes = {name: getattr(wanted, name) for name in wanted.model_fields_set & FREE_TO_CHANGE}
    if "engine" in wanted.model_fields_set:
        changes["engine"] = wanted.engine
    cluster = {key: value for key, value in wanted.ray if f"ray.{key}" in FREE_TO_CHANGE}
    return stored.model_copy(update=changes | {"ray": stored.ray.model_copy(update=cluster)})


NAMES = {"task": "model (its layers, frozen parameters or loss)", "numerics": "way to compute gradients (numerics)"}
"""How messages call a fingerprint, if not by its key."""


def check_fingerprints(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume from a checkpoint with another model or other data."""
    for what, value in now.items():
        if stored.get(what) != value:
            raise ConfigError(f"resume: the {NAMES.get(what, what)} differs from the one that the run was started with")


def check_rounds(wanted: int, done: int, directory: Path) -> None:
    """Refuse to resume a run with fewer rounds than it already has."""
    if done > wanted:
        raise ConfigError(f"resume: rounds = {wanted}, but '{directory}' already has {counted(done, 'round')}")


def _without_auto(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings whose value is not "auto": the stored config has the resolved value."""
    pruned = {key: _without_auto(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in pruned.items() if value != "auto"}


def _comparable(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as one flat table, with compressors in their canonical spelling. "none" counts as not set."""
    flat = {key: None if value == "none" else value for key, value in flattened(dict(table)).items()}
    if flat.get("engine") == "processes":
        flat["engine"] = "inline"  # both keep all states in the one store, so a run may change between them
    for key, value in flat.items():
        if key.rpartition(".")[2] == "compressor" and isinstance(value, str):
            flat[key] = _canonical(value)
    return flat


def _canonical(compressor: str) -> str:
    try:
        return str(parse_compressor(compressor))
    except ConfigError:  # a user's compressor whose file is not loaded yet
        return compressor
