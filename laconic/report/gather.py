"""Read runs from disk into plain data for the report, the live page and plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict
from pathlib import Path

from laconic.core.errors import ConfigError, unknown_name
from laconic.report.labels import group_key, labels
from laconic.report.reading import POINTS, UNREADABLE, Table, printable, read_run
from laconic.run.directory import RunDirectory
from laconic.run.target import COSTS, Target

ALL_POINTS = 6_000
"""Target number of points of all curves together, which limits the size of a page with many runs."""
LEAST_POINTS = 40
"""Minimum number of points per curve."""
TASK = ("dataset", "partition", "model", "clients")
"""Settings that runs must share to be compared."""


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
    """Read runs, order them by their start and label them. Also return the runs that cannot be read: path to reason."""
    points = max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, len(paths))))
    runs: list[Table] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        try:
            run = dict(read(path, points))
            labels([run["settings"]])
            runs.append(run)
        except UNREADABLE as error:
            unreadable[str(path)] = printable(str(error)) or type(error).__name__
    runs.sort(key=lambda run: (run.get("started", 0), run["path"]))
    for run in runs:  # The page shows the day. A resumed run writes its config again, and its page stays the same.
        run["started"] = run.get("started", 0) // 86400 * 86400
    return entitle(runs), unreadable


def task_key(settings: Table, keys: Sequence[str] = TASK) -> str:
    """Return a key that is equal for runs that may be compared."""
    return json.dumps([settings.get(key) for key in keys])


def entitle(runs: list[Table], given: Mapping[str, str] | None = None, task: Sequence[str] = TASK) -> list[Table]:
    """Add to each run the key of its task, a label, the key of its group, and the number that sets its color.

    Labels tell a run from others on the same task. A color belongs to a group, so the report, the live page and plots
    of the same runs agree. A later run changes no color.

    Args:
        given: Labels of runs by their path.
        task: The settings that runs on one task share.
    """
    for run in runs:
        run["task"] = task_key(run["settings"], task)
    for key in dict.fromkeys(run["task"] for run in runs):
        alike = [run for run in runs if run["task"] == key]
        groups: dict[str, int] = {}
        for run, label in zip(alike, labels([run["settings"] for run in alike]), strict=True):
            known = (given or {}).get(run["path"])
            run |= {"label": known or label, "group": known or group_key(run["settings"])}
            run["color"] = groups.setdefault(run["group"], len(groups))
    return runs
