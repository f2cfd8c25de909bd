"""Read runs from disk into plain data for the report, the live page and plots."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from laconic.algorithms.algorithm import LINKS
from laconic.algorithms.recipes import RECIPES, make
from laconic.compression import parse_compressor
from laconic.core.errors import ConfigError, unknown_name
from laconic.report.reading import POINTS, UNREADABLE, Table, read_run
from laconic.run.directory import RunDirectory
from laconic.run.target import COSTS, Target

ALL_POINTS = 6_000
"""Target number of points of all curves together, which limits the size of a page with many runs."""
LEAST_POINTS = 40
"""Minimum number of points per curve."""
LONGEST_REASON = 200
"""Maximum number of characters of the reason why a run cannot be read."""
FREE = ("seed", "rounds", "eval_every", "personalize", "diagnostics", "full_gradient", "threads", "chunk", "data_dir")
"""Settings that do not separate runs: runs that differ only in these are one group, drawn as a mean with a band."""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """Return the run directories among `paths` and below them, in order and without duplicates."""
    runs: dict[Path, None] = {}
    paths = [*paths]
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"'{path}': no such directory")
        below = [path] if RunDirectory(path).exists() else sorted(file.parent for file in path.rglob("config.toml"))
        runs |= dict.fromkeys(run for run in below if RunDirectory(run).has_results())
    if not runs:
        raise ConfigError(f"'{paths[0]}': there is no run in it")
    return list(runs)


def gather(
    paths: Sequence[Path], target: Target | None = None, rank_by: str = "bytes", course: Sequence[str] = ()
) -> Table:
    """Read everything that the report shows of these runs.

    A run with unreadable files is skipped and listed under `unreadable`.

    Args:
        course: Additional columns to read for every round.
    """
    runs, unreadable = read_runs(paths, lambda path, points: read_run(path, course, points, target))
    if paths and not runs:
        first, reason = next(iter(unreadable.items()))
        raise ConfigError(f"'{first}': the run cannot be read: {reason}")
    metrics = {name for run in runs for name in run["metrics"]}
    if metrics:
        _check_shown(metrics, target, rank_by)
    goal = None if target is None else asdict(target)
    return {"runs": runs, "unreadable": unreadable, "target": goal, "rank_by": rank_by}


def _check_shown(metrics: Set[str], target: Target | None, rank_by: str) -> None:
    """Refuse a target or a ranking of which the runs have no metric."""
    if target is not None:
        target.checked(metrics, {})
    if rank_by not in {*COSTS, *metrics}:
        raise unknown_name("ranking", rank_by, {*COSTS, *metrics})


def read_runs(paths: Sequence[Path], read: Callable[[Path, int], Table]) -> tuple[list[Table], dict[str, str]]:
    """Read runs and label them. Also return the runs that cannot be read: path to reason."""
    points = max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, len(paths))))
    runs: list[Table] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            run = dict(read(path, points))
            labels([run["settings"]])
            runs.append(run)
        except UNREADABLE as error:
            unreadable[str(path)] = " ".join(str(error).split())[:LONGEST_REASON] or type(error).__name__
    return entitle(runs), unreadable


def entitle(runs: list[Table]) -> list[Table]:
    """Add to each run a label that distinguishes it from the others, and the key of its group."""
    for run, label in zip(runs, labels([run["settings"] for run in runs]), strict=True):
        run |= {"label": label, "group": group_key(run["settings"])}
    return runs


def labels(settings: Sequence[Table]) -> list[str]:
    """Return the algorithm of each run and the settings that distinguish it from the others."""
    names = _labels(settings, [set() for _ in settings])
    # A label names a different part without its parameters. If two settings then have one label, add the parameters.
    required: list[set[str]] = []
    for name, own in zip(names, settings, strict=True):
        namesakes = [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        required.append({key for other in namesakes for key in own.keys() | other.keys() if _differs(key, own, other)})
    return _labels(settings, required) if any(required) else names


def _differs(key: str, own: Table, other: Table) -> bool:
    return key not in FREE and own.get(key) != other.get(key)


def _labels(settings: Sequence[Table], required: Sequence[set[str]]) -> list[str]:
    names = []
    for own, required_keys in zip(settings, required, strict=True):
        keys = _distinguishing_keys(own, settings, required_keys)
        words = {key: key.removesuffix(".name").rpartition(".")[2] for key in keys}
        counts = Counter(words.values())
        # The full "uplink compressor" if the downlink's compressor is in the label, too.
        details = [
            f"{key.replace('.', ' ') if counts[word] > 1 else word} {_spelled(key, own, settings)}"
            for key, word in words.items()
        ]
        names.append(own["algorithm"] + (f" ({', '.join(details)})" if details else ""))
    return names


def _distinguishing_keys(own: Table, settings: Sequence[Table], required: set[str]) -> list[str]:
    """Return the keys that distinguish a run from the others. Differing keys in `required` are always included."""
    others = [other for other in settings if other["algorithm"] == own["algorithm"]]
    differing = {key for other in others for key in own.keys() | other.keys() if _differs(key, own, other)}
    differing |= _changed_links(own)
    if len({other.get("dataset") for other in settings}) > 1:
        differing.add("dataset")
    # The name of a different part suffices: omit its parameters and the file that defines it.
    parts = {key.removesuffix(".name") for key in differing if key.endswith(".name")}

    def is_included(key: str) -> bool:
        if key in required or key.endswith((".name", ".compressor")):
            return True
        return key != "imports" and key.partition(".")[0] not in parts

    return [key for key in sorted(differing) if key in own and is_included(key)]


def _spelled(key: str, own: Table, settings: Sequence[Table]) -> str:
    """Format a setting. Users' files are shown without folders, unless another run's file has the same name."""
    namesakes = {
        _files(other[key], full=True) for other in settings if key in other and _files(other[key]) == _files(own[key])
    }
    return _files(own[key], full=len(namesakes) > 1)


def _files(value: Any, full: bool = False) -> str:
    if isinstance(value, list):
        return " and ".join(_files(item, full) for item in value)
    path, colon, function = str(value).partition(".py:")
    is_file = bool(colon) or path.endswith(".py")
    return f"{Path(path).name.removesuffix('.py')}{colon[3:]}{function}" if is_file and not full else str(value)


def _changed_links(settings: Table) -> set[str]:
    """Return the keys of links that differ from the recipe's, since the recipe's name alone would mislead."""
    if settings["algorithm"] not in RECIPES:
        return set()
    parts = make(settings["algorithm"]).parts()
    changed = set()
    for slot in LINKS:
        default = parts[slot].table()
        for key in default.keys() & {"name", "granularity", "memory"}:
            if settings.get(f"{slot}.{key}", default[key]) != default[key]:
                changed.add(f"{slot}.{key}")
        compressor = settings.get(f"{slot}.compressor")
        if compressor is not None and not _same_compressor(compressor, default.get("compressor")):
            changed.add(f"{slot}.compressor")
    return changed


def _same_compressor(spelling: str, default: str | None) -> bool:
    try:
        return default is not None and parse_compressor(spelling) == parse_compressor(default)
    except ConfigError:
        return spelling == default  # a user's own compressor: a report does not run users' files


def group_key(settings: Table) -> str:
    """Return a key that is equal for runs that differ only in settings of `FREE`, such as the seed."""
    return json.dumps({key: value for key, value in settings.items() if key not in FREE}, sort_keys=True)
