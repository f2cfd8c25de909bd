"""Reads one run from disk as plain data. Anybody may have written its files: every size is bounded, every value checked."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import tomllib
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from laconic.compression.packet import HEADER_BYTES
from laconic.run.collapse import at_chance
from laconic.run.directory import RunDirectory
from laconic.run.records import DIAGNOSTICS, TROUBLES, Record, metrics_of
from laconic.run.settings import flat
from laconic.run.target import Target, lower_is_better, means

Table = dict[str, Any]

POINTS = 400
"""Maximum number of points per curve. A chart does not resolve more."""
CLIENTS = 100
"""Maximum number of clients in a heat map."""
LONGEST_LABEL = 100
"""Maximum number of characters of the name of a client or a class. The rest is left out."""
LONGEST_TEXT = 1 << 22
"""Maximum number of bytes of a file that is read as a whole."""
LONGEST_LINE = 1 << 16
"""Maximum number of bytes of a line."""
MOST_NAMES = 100
"""Maximum number of metrics, and of streams, of a run, and of characters of a name."""
MOST_RECORDS = 10**7
MOST_VALUES = 10**6
"""Maximum number of values in the table of clients."""
LONGEST_REASON = 200
"""Maximum number of characters of the reason of a failure."""
LARGEST = 2.0**63
COSTS = ("bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down", "gradients", "simulated_seconds", "seconds")
MEASURED = ("participants", "training_loss", *DIAGNOSTICS)
UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, csv.Error)
"""Exceptions that the files of a run may cause."""


class Summary:
    """Sums over the records of a run, computed while they are read, and the numbers of the evaluated ones."""

    def __init__(self) -> None:
        self.rounds = self.count = 0
        self.evaluated = array("Q")
        self.metrics: set[str] = set()
        self.packets: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.collapsed: Table | None = None
        self.accuracies: list[float] = []
        """The highest accuracy so far."""

    def follow(self, records: Iterable[Record]) -> Iterator[Record]:
        """Pass records on, and add them to the summary."""
        for record in records:
            self.rounds = record["round"]
            for name, traffic in record["streams"].items():
                self.packets[name] += traffic["packets"]
                self.bytes[name] += traffic["bytes"]
            self.troubles.update(record["troubles"])
            if record["collapsed"] is not None and self.collapsed is None:
                self.collapsed = {"round": record["round"], "reason": record["collapsed"]}
            if record["metrics"]:
                self.metrics.update(record["metrics"])
                if (accuracy := record["metrics"].get("accuracy")) is not None:
                    self.accuracies = [max(accuracy, *self.accuracies)] if self.accuracies else [accuracy]
                self.evaluated.append(self.count)
            self.count += 1
            if max(len(self.metrics), len(self.bytes)) > MOST_NAMES or self.count > MOST_RECORDS:
                raise ValueError(f"more than {MOST_NAMES} metrics or streams, or {MOST_RECORDS} rounds")
            yield record

    def streams(self) -> Table:
        """Packets, header bytes and bytes of the run by direction and stream."""
        return {
            name: {"packets": self.packets[name], "headers": self.packets[name] * HEADER_BYTES, "bytes": size}
            for name, size in sorted(self.bytes.items())
        }


def read_run(path: Path, course: Sequence[str] = (), points: int = POINTS, target: Target | None = None) -> Table:
    """Read one run, finished or not. Raises one of `UNREADABLE` for files that are not those of a run.

    Args:
        path: The run directory.
        course: Additional columns to read for every round.
        points: Maximum number of points per curve.
        target: The target whose metric has milestones. Default: an accuracy.
    """
    folder = RunDirectory(path)
    text = _text(folder.config)
    config = tomllib.loads(text)
    settings = _settings(flat(config))
    summary = Summary()
    milestones = _milestones(summary.follow(_records(folder.metrics)), target or Target(1.0))
    # Read the file twice, instead of keeping all records in memory.
    every, evaluated = _thinned(range(summary.count), points), _thinned(summary.evaluated, points)
    numbers = sorted({*every, *evaluated})
    kept = dict(zip(numbers, _records(folder.metrics, {*numbers}), strict=True))
    metrics = sorted(summary.metrics)
    counts = _label_counts(folder.label_counts)
    return {
        "path": str(path),
        "started": folder.config.stat().st_mtime,
        "settings": settings,
        "config": text,
        "seed": settings.get("seed", 0),
        "metrics": metrics,
        "lower_is_better": [*filter(lower_is_better, metrics)],
        "rounds": summary.rounds,
        "rounds_wanted": settings.get("rounds", 0),
        "finished": folder.model.exists(),
        "diverged": folder.diverged.exists(),
        "collapsed": summary.collapsed,
        "at_chance": folder.model.exists() and at_chance(summary.accuracies, counts or []),
        "milestones": milestones,
        "evaluations": _columns([kept[number] for number in evaluated], ("round", *COSTS, *metrics)),
        "course": _columns([kept[number] for number in every], ("round", *MEASURED, *course)),
        "streams": summary.streams(),
        "troubles": {name: summary.troubles[name] for name in TROUBLES if summary.troubles[name]},
        "similarity": _similarity(path / "gradient_similarity.csv"),
        "client_metrics": _client_metrics(folder.client_values),
        "label_counts": counts,
        "names": _names(folder.names),
    }


def _opened(path: Path) -> BinaryIO:
    """Open a regular file. Reading a pipe could block, and reading a device could never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ValueError(f"{path.name} is not a regular file")
    return os.fdopen(descriptor, "rb")


def _text(path: Path) -> str:
    with _opened(path) as file:
        content = file.read(LONGEST_TEXT + 1)
    if len(content) > LONGEST_TEXT:
        raise ValueError(f"{path.name} has more than {LONGEST_TEXT} bytes")
    return content.decode()


def _lines(path: Path) -> Iterator[str]:
    """The lines of a file, with their ends. An incomplete last line may end within a character."""
    with _opened(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(f"{path.name} has a line of more than {LONGEST_LINE} bytes")
            yield line.decode(errors="strict" if line.endswith(b"\n") else "replace")


def _records(path: Path, only: Container[int] | None = None) -> Iterator[Record]:
    """The records of a metrics file, or those with the given numbers. An incomplete last line is left out."""
    for number, line in enumerate(_lines(path) if path.exists() else ()):
        try:
            if only is None or number in only:
                yield _record(json.loads(line))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
            if not line.endswith("\n"):
                return
            raise ValueError(f"{path.name}, line {number + 1}: {error}") from None


def _record(record: Any) -> Record:
    """The checked values of a record that the report shows."""
    if not isinstance(record, dict):
        raise ValueError("not an object")
    _check_costs(record)
    streams = {
        _name(name): {key: _count(key, traffic[key]) for key in ("packets", "bytes")}
        for name, traffic in record.get("streams", {}).items()
    }
    # The text of a collapse counts as one.
    failures = {name: record.get(name, 0) for name in TROUBLES} | {"collapsed": int("collapsed" in record)}
    troubles = {name: _count(name, value) for name, value in failures.items()}
    metrics = {_name(key): _number(key, value) for key, value in metrics_of(record).items()}
    numbers = {key: _number(key, record[key]) for key in ("round", *COSTS, *MEASURED) if key in record}
    # The advice after the semicolon is for the terminal.
    reason = printable(str(record["collapsed"]).partition(";")[0]) if "collapsed" in record else None
    return metrics | numbers | {"streams": streams, "troubles": troubles, "metrics": metrics, "collapsed": reason}


def _check_costs(record: Record) -> None:
    for name in ("round", "bytes_up", "bytes_down", *(name for name in COSTS if name in record)):
        if _number(name, record[name]) is None or record[name] < 0:
            raise ValueError(f"{name} is not a cost")


def _count(name: str, value: Any) -> int:
    """A count, or the sum of counts by reason."""
    if isinstance(value, dict):
        return sum(_count(name, part) for part in value.values())
    return int(_number(name, value) or 0)


def _number(name: str, value: Any) -> float | None:
    """A number; None for what a chart cannot show, such as NaN."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name[:MOST_NAMES]} is not a number")
    if isinstance(value, int) and abs(value) >= LARGEST:
        raise ValueError(f"{name[:MOST_NAMES]} is too large")
    return value if value is not None and math.isfinite(value) and abs(value) < 1e100 else None


def _name(name: str) -> str:
    if len(name) > MOST_NAMES:
        raise ValueError(f"a name has more than {MOST_NAMES} characters")
    if not name.isprintable():
        raise ValueError(f"{name!r}: a name has only printable characters")
    return name


def printable(text: str) -> str:
    """The start of a text from a run's files, without line breaks and without characters that control a terminal."""
    line = " ".join(text.split())[:LONGEST_REASON]
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _settings(settings: Table) -> Table:
    """Check the types of settings: strings, numbers and lists of them. Pages and labels rely on some."""
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        numbers = (item for item in values if isinstance(item, int))
        if not all(isinstance(item, str | int | float) for item in values) or any(abs(n) >= LARGEST for n in numbers):
            raise ValueError(f"config.toml: {key[:MOST_NAMES]} is not a setting")
    for key, kind in {"algorithm": str, "dataset": str, "seed": int, "rounds": int, "clients": int}.items():
        if not isinstance(settings.get(key, kind()), kind):
            raise ValueError(f"config.toml: {key} is not valid")
    return {"algorithm": "", "dataset": ""} | settings


def _milestones(records: Iterable[Record], target: Target) -> list[list[float | None]]:
    """Return each new best mean of five evaluations and its cost: [mean, round, bytes, simulated seconds].

    They determine exactly where any target is reached, however few points of the curve are kept.
    """
    milestones: list[list[float | None]] = []
    best: float | None = None
    for mean, last in means(records, target.metric):
        if best is None or (mean < best if target.lower else mean > best):
            best = mean
            total_bytes = last["bytes_up"] + last["bytes_down"]
            milestones.append([mean, last["round"], total_bytes, _short(last.get("simulated_seconds"))])
            if len(milestones) > LONGEST_LINE:
                milestones = milestones[::2]
    return milestones


def _thinned(values: Sequence[int], points: int = POINTS) -> Sequence[int]:
    """Select at most `points` evenly spaced values, including the last."""
    step = -(-len(values) // points) or 1
    return values[::-1][::step][::-1]


def _columns(records: list[Record], names: Iterable[str]) -> Table:
    """Convert records to columns without empty ones. Numbers are rounded to the precision of a chart."""
    columns = {name: [_short(record.get(name)) for record in records] for name in names}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def _short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _similarity(path: Path) -> list[list[float]] | None:
    if not path.exists():
        return None
    rows = (line for _, line in zip(range(CLIENTS), _lines(path), strict=False))
    return _matrix([[round(float(value), 3) for value in line.split(",")[:CLIENTS]] for line in rows])


def _client_metrics(path: Path) -> Table | None:
    """The clients' names, or else their numbers, and the values of each metric."""
    if not path.exists():
        return None
    reader = csv.reader(_lines(path))
    header = next(reader, [])
    if not header:
        raise ValueError(f"{path.name} has no header")
    rows = []
    for row in reader:
        if len(row) != len(header):
            raise ValueError(f"{path.name} has lines of different lengths")
        rows.append(row)
        if len(rows) * len(header) > MOST_VALUES:
            raise ValueError(f"{path.name} has more than {MOST_VALUES} values")
    columns = dict(zip(map(_name, header), map(list, zip(*rows, strict=True)), strict=True))
    numbers = columns.pop("client", [])
    named = columns.pop("name", None)
    clients = [*map(_name, numbers)] if named is None else [printable(name[:LONGEST_LABEL]) for name in named]
    values = {name: [_short(_number(name, float(value))) for value in texts] for name, texts in columns.items()}
    return {"clients": clients, "values": values} if values else None


def _label_counts(path: Path) -> list[list[float]] | None:
    if not path.exists():
        return None
    try:
        return _matrix(json.loads(_text(path))[:CLIENTS])
    except UNREADABLE as error:
        raise ValueError(f"{path.name}: {error}") from None


def _names(path: Path) -> dict[str, list[str]]:
    """The names of clients and classes; empty where they have none."""
    try:
        found = json.loads(_text(path)) if path.exists() else {}
        kinds = {kind: found.get(kind, [])[:CLIENTS] for kind in ("clients", "classes")}
        return {kind: [printable(name[:LONGEST_LABEL]) for name in names] for kind, names in kinds.items()}
    except UNREADABLE as error:
        raise ValueError(f"{path.name}: {error}") from None


def _matrix(rows: list[list[float]]) -> list[list[float]]:
    if not rows or not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise ValueError("a matrix has rows of different lengths")
    return [[_number("an entry of a matrix", value) or 0 for value in row] for row in rows]
