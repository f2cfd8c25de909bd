"""Read runs from disk into plain data for the report, the live page and plots."""

from __future__ import annotations

import csv
import json
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from laconic.algorithms.algorithm import LINKS
from laconic.algorithms.recipes import RECIPES, make
from laconic.compression import parse_compressor
from laconic.compression.packet import HEADER_BYTES
from laconic.core.errors import ConfigError
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.settings import flat
from laconic.run.target import means
from laconic.run.training import DIAGNOSTICS, Record, metrics_of, troubles

Table = dict[str, Any]

POINTS = 400
"""Maximum number of points per curve. A chart does not resolve more."""
ALL_POINTS = 6_000
"""Target number of points of all curves together, which limits the size of a page with many runs."""
LEAST_POINTS = 40
"""Minimum number of points per curve."""
UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""Exceptions that a damaged file of a run may cause."""
CLIENTS = 100
"""Maximum number of clients in a heat map."""
COSTS = ("bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down", "gradients", "simulated_seconds", "seconds")
FREE = ("seed", "rounds", "eval_every", "diagnostics", "full_gradient", "threads", "chunk", "data_dir")
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
    paths: Sequence[Path], target: float | None = None, rank_by: str = "bytes", course: Sequence[str] = ()
) -> Table:
    """Read everything that the report shows of these runs.

    A run with unreadable files is skipped and listed under `unreadable`.

    Args:
        course: Additional columns to read for every round.
    """
    runs: list[Table] = []
    unreadable: Table = {}
    for path in paths:
        try:
            runs.append(read_run(path, course, points_of(len(paths))))
        except UNREADABLE as error:
            unreadable[str(path)] = " ".join(str(error).split()) or type(error).__name__
    if paths and not runs:
        first, reason = next(iter(unreadable.items()))
        raise ConfigError(f"'{first}': the run cannot be read: {reason}")
    return {"runs": entitle(runs), "unreadable": unreadable, "target": target, "rank_by": rank_by}


def points_of(runs: int) -> int:
    """Return the maximum number of points per curve for a page with this number of runs."""
    return max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, runs)))


def entitle(runs: list[Table]) -> list[Table]:
    """Add to each run a label that distinguishes it from the others, and the key of its group."""
    for run, label in zip(runs, labels([run["settings"] for run in runs]), strict=True):
        run |= {"label": label, "group": group_key(run["settings"])}
    return runs


def read_run(path: Path, course: Sequence[str] = (), points: int = POINTS) -> Table:
    """Read one run, finished or not."""
    folder = RunDirectory(path)
    text = folder.config.read_text()
    config = tomllib.loads(text)
    history = read_metrics(folder.metrics)
    whole = [record for record in history if metrics_of(record)]
    evaluated = _thinned(whole, points)
    metrics = sorted({name for record in evaluated for name in metrics_of(record)})
    every = _thinned(history, points)
    return {
        "path": str(path),
        "settings": flat(config),
        "config": text,
        "seed": config.get("seed", 0),
        "metrics": metrics,
        "rounds": history[-1]["round"] if history else 0,
        "rounds_wanted": config.get("rounds", 0),
        "finished": folder.model.exists(),
        "diverged": folder.diverged.exists(),
        "milestones": _milestones(whole),
        "evaluations": _columns(evaluated, ("round", *COSTS, *metrics)),
        "course": _columns(every, ("round", "participants", "training_loss", *DIAGNOSTICS, *course)),
        "streams": _streams(history),
        "troubles": troubles(history),
        "similarity": _similarity(path / "gradient_similarity.csv"),
        "label_counts": _label_counts(folder.label_counts),
    }


def _milestones(evaluated: list[Record]) -> list[list[float | None]]:
    """Return each new best mean of five evaluations and its cost: [mean, round, bytes, simulated seconds].

    They determine exactly where any target is reached, however few points of the curve are kept.
    """
    milestones: list[list[float | None]] = []
    best = -1.0
    for mean, last in means(evaluated):
        if mean > best:
            best = mean
            total_bytes = last["bytes_up"] + last["bytes_down"]
            milestones.append([mean, last["round"], total_bytes, _short(last.get("simulated_seconds"))])
    return milestones


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


def _thinned(records: list[Record], points: int = POINTS) -> list[Record]:
    """Select at most `points` evenly spaced records, including the last."""
    step = -(-len(records) // points) or 1
    return records[::-1][::step][::-1]


def _columns(records: list[Record], names: Iterable[str]) -> Table:
    """Convert records to columns without empty ones. Numbers are rounded to the precision of a chart."""
    columns = {name: [_short(record.get(name)) for record in records] for name in names}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _streams(history: list[Record]) -> Table:
    """Sum packets, header bytes and bytes of the run by direction and stream."""
    packets: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for record in history:
        for name, traffic in record.get("streams", {}).items():
            packets[name] += traffic["packets"]
            sizes[name] += traffic["bytes"]
    return {
        name: {"packets": packets[name], "headers": packets[name] * HEADER_BYTES, "bytes": sizes[name]}
        for name in sorted(sizes)
    }


def _similarity(path: Path) -> list[list[float]] | None:
    if not path.exists():
        return None
    with path.open(newline="") as file:
        rows = [[round(float(value), 3) for value in row[:CLIENTS]] for row in csv.reader(file)]
    return rows[:CLIENTS]


def _label_counts(path: Path) -> list[list[int]] | None:
    if not path.exists():
        return None
    counts: list[list[int]] = json.loads(path.read_text())
    return counts[:CLIENTS]
