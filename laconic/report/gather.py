"""Runs on disk as plain data: what the report and the live page draw."""

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
"""Points of a curve that are kept; a picture does not show more."""
ALL_POINTS = 6_000
"""Of all curves together: a page of many runs stays small enough to be sent."""
LEAST_POINTS = 40
UNREADABLE = (OSError, ValueError, KeyError, TypeError)
"""What a damaged file of a run may lead to: bad TOML or JSON, or something else in its place."""
CLIENTS = 100
"""Clients that a heat map shows."""
COSTS = ("bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down", "gradients", "simulated_seconds", "seconds")
FREE = ("seed", "rounds", "eval_every", "diagnostics", "full_gradient", "threads", "chunk", "data_dir")
"""Settings in which runs of one setting may differ: their curves become a mean with a band."""


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run directories that are named, or lie below a folder that is named, in order and once each."""
    found: dict[Path, None] = {}
    paths = [*paths]
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"'{path}': no such directory")
        below = [path] if RunDirectory(path).exists() else sorted(file.parent for file in path.rglob("config.toml"))
        found |= dict.fromkeys(run for run in below if RunDirectory(run).tells())
    if not found:
        raise ConfigError(f"'{paths[0]}': there is no run in it")
    return list(found)


def gather(
    paths: Sequence[Path], target: float | None = None, rank_by: str = "bytes", course: Sequence[str] = ()
) -> Table:
    """Everything that the page shows of these runs; `course` names what else is wanted of every round.

    A run whose files cannot be read is left out, and named under `unreadable`.
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
    """How many points each of so many runs gets."""
    return max(LEAST_POINTS, min(POINTS, ALL_POINTS // max(1, runs)))


def entitle(runs: list[Table]) -> list[Table]:
    """The same runs, each with a label that tells it from the others, and the setting that it is a seed of."""
    for run, label in zip(runs, labels([run["settings"] for run in runs]), strict=True):
        run |= {"label": label, "group": group_key(run["settings"])}
    return runs


def read_run(path: Path, course: Sequence[str] = (), points: int = POINTS) -> Table:
    """One run, finished or not."""
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
    """Every new best of the mean of five evaluations, and what it had cost: [mean, round, bytes, simulated seconds].

    Where a target is reached follows from these exactly, however few points of the curve are kept.
    """
    found: list[list[float | None]] = []
    best = -1.0
    for mean, last in means(evaluated):
        if mean > best:
            best = mean
            spent = last["bytes_up"] + last["bytes_down"]
            found.append([mean, last["round"], spent, _short(last.get("simulated_seconds"))])
    return found


def labels(settings: Sequence[Table]) -> list[str]:
    """The algorithm of each run, and beside it what tells it from the others."""
    names = _told(settings, [set() for _ in settings])
    # A part that is another one hides its parameters; where that leaves two settings with one name, they are said.
    more: list[set[str]] = []
    for name, own in zip(names, settings, strict=True):
        alike = [other for other_name, other in zip(names, settings, strict=True) if other_name == name]
        more.append({key for other in alike for key in own.keys() | other.keys() if _differs(key, own, other)})
    return _told(settings, more) if any(more) else names


def _differs(key: str, own: Table, other: Table) -> bool:
    return key not in FREE and own.get(key) != other.get(key)


def _told(settings: Sequence[Table], more: Sequence[set[str]]) -> list[str]:
    names = []
    for own, needed in zip(settings, more, strict=True):
        words = {key: key.removesuffix(".name").rpartition(".")[2] for key in _telling(own, settings, needed)}
        shared = Counter(words.values())
        # "uplink compressor" where the downlink has one, too.
        spelled = [
            f"{key.replace('.', ' ') if shared[word] > 1 else word} {_spelled(key, own, settings)}"
            for key, word in words.items()
        ]
        names.append(own["algorithm"] + (f" ({', '.join(spelled)})" if spelled else ""))
    return names


def _telling(own: Table, settings: Sequence[Table], needed: set[str]) -> list[str]:
    """The keys that tell a run from the others, and in any case those of `needed` that do."""
    others = [other for other in settings if other["algorithm"] == own["algorithm"]]
    differing = {key for other in others for key in own.keys() | other.keys() if _differs(key, own, other)}
    differing |= _links_of_its_own(own)
    if len({other.get("dataset") for other in settings}) > 1:
        differing.add("dataset")
    # A part that is another one says enough; its parameters, and the file that it is from, follow from that.
    parts = {key.removesuffix(".name") for key in differing if key.endswith(".name")}

    def tells(key: str) -> bool:
        if key in needed or key.endswith((".name", ".compressor")):
            return True
        return key != "imports" and key.partition(".")[0] not in parts

    return [key for key in sorted(differing) if key in own and tells(key)]


def _spelled(key: str, own: Table, settings: Sequence[Table]) -> str:
    """A setting for people: files of their own without folders, unless another run has one of the same name."""
    namesakes = {
        _files(other[key], whole=True) for other in settings if key in other and _files(other[key]) == _files(own[key])
    }
    return _files(own[key], whole=len(namesakes) > 1)


def _files(value: Any, whole: bool = False) -> str:
    if isinstance(value, list):
        return " and ".join(_files(each, whole) for each in value)
    path, colon, function = str(value).partition(".py:")
    own = bool(colon) or path.endswith(".py")
    return f"{Path(path).name.removesuffix('.py')}{colon[3:]}{function}" if own and not whole else str(value)


def _links_of_its_own(settings: Table) -> set[str]:
    """Where a run's links are not those of its recipe, so that its name alone would mislead."""
    if settings["algorithm"] not in RECIPES:
        return set()
    parts = make(settings["algorithm"]).parts()
    changed = set()
    for slot in LINKS:
        usual = parts[slot].table()
        if settings.get(f"{slot}.name", usual["name"]) != usual["name"]:
            changed.add(f"{slot}.name")
        compressor = settings.get(f"{slot}.compressor")
        if compressor is not None and not _same(compressor, usual.get("compressor")):
            changed.add(f"{slot}.compressor")
    return changed


def _same(one: str, other: str | None) -> bool:
    """Whether two spellings mean one compressor."""
    try:
        return other is not None and parse_compressor(one) == parse_compressor(other)
    except ConfigError:
        return one == other  # a person's own, whose file a report has no business to run


def group_key(settings: Table) -> str:
    """The same for runs that differ in nothing but the seed and the like."""
    return json.dumps({key: value for key, value in settings.items() if key not in FREE}, sort_keys=True)


def _thinned(records: list[Record], points: int = POINTS) -> list[Record]:
    """At most so many of them, evenly, the last always among them."""
    step = -(-len(records) // points) or 1
    return records[::-1][::step][::-1]


def _columns(records: list[Record], names: Iterable[str]) -> Table:
    """Columns that have any value; numbers with as many digits as a picture needs."""
    columns = {name: [_short(record.get(name)) for record in records] for name in names}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _streams(history: list[Record]) -> Table:
    """Bytes over the whole run by direction and stream; headers apart."""
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
