"""What must be the same when a run is resumed: its settings, its model and its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laconic.compression import parse_compressor
from laconic.core.errors import ConfigError
from laconic.run.config import RunConfig
from laconic.run.settings import flattened

FREE_TO_CHANGE = frozenset(
    {"rounds", "eval_every", "threads", "chunk", "store_cache", "data_dir", "ray.address", "ray.repeat"}
)
"""Settings that may differ when a run is resumed: none of them changes a round that was already run."""


def check_same(
    wanted: Mapping[str, Any], stored: RunConfig, directory: Path, free: frozenset[str] = FREE_TO_CHANGE
) -> None:
    """Refuse to resume a run with other settings than it was started with, in one line that names them all.

    Args:
        wanted: The settings that are asked for, as tables within tables. Keys that are missing are not compared.
        stored: The config of the run that is resumed.
        directory: Where that run is.
        free: Keys that may differ.
    """
    now, then = (_comparable(table) for table in (wanted, stored.model_dump()))
    differing = [key for key in sorted(now) if key not in free and now[key] != then.get(key)]
    if "algorithm" in differing:
        differing = ["algorithm"]  # its parts follow from it
    if differing:
        asked, started = (", ".join(f"{key} = {table.get(key)!r}" for key in differing) for table in (now, then))
        raise ConfigError(
            f"resume: {asked}, but the run in '{directory}' was started with {started}; "
            "resume it with the same settings, or give another out"
        )


def with_changes(wanted: RunConfig, stored: RunConfig, directory: Path) -> RunConfig:
    """The config of a run to resume: as it was stored, with those settings of `wanted` that may change.

    What `wanted` does not set is taken from the run; what it sets must be what the run was started with.
    """
    check_same(_without_auto(wanted.model_dump(exclude_unset=True)), stored, directory)
    changes = {name: getattr(wanted, name) for name in wanted.model_fields_set & FREE_TO_CHANGE}
    cluster = {key: value for key, value in wanted.ray if f"ray.{key}" in FREE_TO_CHANGE}
    return stored.model_copy(update=changes | {"ray": stored.ray.model_copy(update=cluster)})


def check_fingerprints(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint with another model or other data."""
    for what, value in now.items():
        if stored.get(what) != value:
            raise ConfigError(f"resume: the {what} is not the one that the run was started with; give that one again")


def check_rounds(asked: int, done: int, directory: Path) -> None:
    """Refuse to give a run fewer rounds than it has."""
    if done > asked:
        raise ConfigError(f"resume: rounds = {asked}, but '{directory}' has done {done} already")


def _without_auto(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without those that leave the choice to the run."""
    found = {key: _without_auto(value) if isinstance(value, dict) else value for key, value in table.items()}
    return {key: value for key, value in found.items() if value != "auto"}


def _comparable(table: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by their whole keys, each compressor in one spelling."""
    found = flattened(dict(table))
    for key, value in found.items():
        if key.endswith(".compressor") and isinstance(value, str):
            found[key] = str(parse_compressor(value))
    return found
