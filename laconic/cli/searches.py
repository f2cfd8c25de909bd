"""The commands that try settings: sweep and advise."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from laconic.cli.app import CHOSEN_BY_ADVISE
from laconic.cli.console import note, say, stderr, stdout
from laconic.cli.options import RANK_BY, RankBy
from laconic.cli.output import new_directory, print_json
from laconic.cli.tables import new_table
from laconic.cli.view import LiveView, SearchView, duration, size
from laconic.core.errors import ConfigError, Interrupted
from laconic.engine.settings import Network, Spread
from laconic.report.page import report as write_report
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, write_atomically
from laconic.run.labels import split_label
from laconic.run.target import WINDOW
from laconic.search.advise import ARMS, Advice, candidates
from laconic.search.advise import advise as find_advice
from laconic.search.score import Score, mean_of, spread
from laconic.search.space import Range, space_of
from laconic.search.sweep import Sweep, Tried

ORDER = "search.json"
"""What a sweep or an advice was asked for, in the folder of its runs."""
MakeConfig = Callable[[dict[str, Any]], RunConfig]


def sweep(
    config: Path | None,
    algorithm: str | None,
    tries: list[str] | None,
    preset: str | None,
    optuna: int | None,
    seeds: int | None,
    target: float | None,
    rank_by: RankBy,
    out: Path | None,
    resume: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Try settings of one algorithm, and write the best as a config."""
    if config is not None and config.is_dir():
        config = RunDirectory(config).config
    label = split_label(algorithm) if algorithm else {}
    asked: dict[str, Any] = {
        "config": config.read_text() if config is not None and config.exists() else None,
        **{"options": _given(options | label), "try": tries or [], "preset": preset, "optuna": optuna},
        **{"target": target, "rank_by": rank_by, "seeds": seeds},
    }
    base = load_config(config, options, label)
    directory = out or new_directory("sweep", base.dataset)
    asked = _begun(directory, asked, resume)
    found = _sweep_of(asked, directory)
    _start(directory, asked)
    try:
        ranked = found.run_optuna(asked["optuna"], base.seed) if asked["optuna"] else found.run_grid()
    except Interrupted as stop:
        stop.again = _again(out, directory)
        raise
    best = found.write_best()
    runs = [path for tried in ranked for path in tried.directories if RunDirectory(path).has_results()]
    page = directory / "report.html"
    write_report(runs, page, asked["target"], asked["rank_by"])
    if as_json:
        print_json({"best": str(best), "runs": [_summary(tried) for tried in ranked]})
        return
    stdout.print(_swept(ranked, asked["target"], asked["rank_by"]))
    say(f"The best one is {best}; run it with: laconic run {best}")
    say(f"Runs are in {directory}, the report is {page}")


def _sweep_of(asked: dict[str, Any], directory: Path) -> Sweep:
    """The sweep, with its first setting built before anything is written."""
    space = space_of(asked["try"], asked["preset"])
    path = directory / "base.toml" if asked["config"] else None
    repeats = asked.get("seeds") or 1
    if "seed" in space and repeats > 1:
        raise ConfigError("--seeds: the seed is tried already, by --try; only one of the two is allowed")

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(path, asked["options"], settings)

    found = Sweep(make, space, directory, [LiveView(stderr)], asked["target"], RANK_BY[asked["rank_by"]], repeats)
    _check(make, space, asked["optuna"])
    return found


def advise(
    algorithms: list[str] | None,
    target: float | None,
    out: Path | None,
    resume: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Find the algorithm, compressor and learning rates that train fastest on a network."""
    for key in CHOSEN_BY_ADVISE:
        if options.get(key) is not None:
            raise ConfigError(f"--{key.replace('_', '-')}: advise chooses it itself")
    asked: dict[str, Any] = {
        **{"options": {"rounds": 90} | _given(options), "target": target},
        "arms": [split_label(label) for label in algorithms or []],
    }
    first = _check_advised(asked)
    directory = out or new_directory("advise", first.dataset)
    asked = _begun(directory, asked, resume)

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(None, asked["options"], settings)

    tried = candidates(asked["arms"] or ARMS)
    for each in tried:
        make(each).build_algorithm()
    make(tried[0]).build().close()
    for assumption in _assumed(make(tried[0]).network):
        note(f"note: {assumption}")
    _start(directory, asked)
    view = SearchView(stderr)
    try:
        advice = find_advice(make, tried, directory, view, target=asked["target"])
    except Interrupted as stop:
        stop.again = _again(out, directory)
        raise
    finally:
        view.end()
    _show_advice(advice, directory, asked["options"], as_json)


def _check_advised(asked: dict[str, Any]) -> RunConfig:
    config = load_config(None, asked["options"])
    if not config.network.any():
        raise ConfigError("say what the network is like, as in --bandwidth-up 1Mbit --bandwidth-down 10Mbit")
    if config.rounds < WINDOW:
        enough = f"{WINDOW} or more, since accuracy is a mean of {WINDOW} evaluations"
        raise ConfigError(f"--rounds {config.rounds}: {enough}")
    return config


def _show_advice(advice: Advice, directory: Path, options: dict[str, Any], as_json: bool) -> None:
    """Write the report and the best config, and print the result."""
    page = directory / "report.html"
    shown = [each for each in (*advice.ranked, *advice.left) if RunDirectory(each.directory).has_results()]
    write_report([each.directory for each in shown], page, advice.target, "time")
    best = advice.ranked[0]
    config = directory / "advice.toml"
    write_atomically(config, RunDirectory(best.directory).config.read_bytes())
    if as_json:
        runs = [
            {"label": each.label, "run_dir": str(each.directory), **_numbers(scored)}
            for each, scored in zip(advice.ranked, advice.scores, strict=True)
        ]
        print_json({"advice": best.settings, "config": str(config), "target": advice.target, "runs": runs})
        return
    stdout.print(_advised(advice))
    say(_because(advice))
    say(f"Run it with: laconic run {config}")
    say(f"or: {command(best.settings, options)}")
    say(f"The evidence is {page}")


def command(settings: dict[str, Any], options: dict[str, Any]) -> str:
    """A setting as a command that a person can run and change."""
    words = ["laconic", "run"]
    for key, value in {**settings, **options}.items():
        if "." in key:
            words += ["--set", f"{key}={value}"]
        elif isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{key.replace('_', '-')}")
        else:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _assumed(network: Network) -> Iterator[str]:
    """What the simulated network leaves out, where that may change the advice."""
    if network.trace is not None:
        return
    for way in ("up", "down"):
        if getattr(network, f"bandwidth_{way}") is None:
            yield f"--bandwidth-{way} is not given: what goes {way} takes no time"
    if Spread.parse(network.latency, "latency").median == 0:
        yield "--latency is 0: many small rounds cost no more than few large ones; give it, as in --latency 50ms"


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _begun(directory: Path, asked: dict[str, Any], resume: bool) -> dict[str, Any]:
    """What is asked for; of a search that is resumed, what was asked for when it began."""
    path = directory / ORDER
    if not resume:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"--out '{directory}': exists already; go on with --resume, or choose another")
        return asked
    if not path.exists():
        raise ConfigError("--resume: give the --out of what was begun")
    begun: dict[str, Any] = json.loads(path.read_text())
    _check_same(begun, asked)
    # A resumed search may have more trials, more seeds, longer trials and another ranking.
    begun |= {key: asked[key] for key in ("optuna", "seeds") if asked.get(key)}
    if "try" in asked and "rounds" in asked["options"]:
        begun["options"]["rounds"] = asked["options"]["rounds"]
    if asked.get("rank_by", "bytes") != "bytes":  # bytes is the default
        begun["rank_by"] = asked["rank_by"]
    return begun


def _check_same(begun: dict[str, Any], asked: dict[str, Any]) -> None:
    """Refuse to resume a search with settings that it was not begun with."""
    tables = [key for key, value in asked.items() if isinstance(value, dict)]
    pairs = [
        (name, value, begun[key].get(name)) for key in tables for name, value in asked[key].items() if name != "rounds"
    ]
    pairs += [
        (key, value, begun[key])
        for key, value in asked.items()
        if key not in ("rank_by", "optuna", "seeds", *tables) and value not in (None, [])
    ]
    for name, value, before in pairs:
        if value != before:
            raise ConfigError(f"resume: {name} = {value!r}, but it was begun with {before!r}")


def _start(directory: Path, asked: dict[str, Any]) -> None:
    """Write down what was asked for, and say where the runs are."""
    directory.mkdir(parents=True, exist_ok=True)
    if asked.get("config"):
        write_atomically(directory / "base.toml", asked["config"].encode())
    write_atomically(directory / ORDER, json.dumps(asked).encode())
    note(f"runs go to {directory}; `laconic watch {directory}` shows them")


def _again(out: Path | None, directory: Path) -> str:
    said = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["laconic", *said, *([] if out else ["--out", str(directory)]), "--resume"])


def _check(make: MakeConfig, space: dict[str, Any], optuna: int | None) -> None:
    """Build the first setting; a range is for optuna only."""
    if optuna is None:
        for key, choices in space.items():
            if isinstance(choices, Range):
                raise ConfigError(f"--try {key}={choices.spelling()}: a range needs --optuna; write a list for a grid")
    make({key: c.low if isinstance(c, Range) else c[0] for key, c in space.items()}).build_algorithm()


def _numbers(scored: Score) -> dict[str, Any]:
    at = scored.at
    return {
        **{"accuracy": scored.accuracy, "loss": scored.loss, "diverged": scored.diverged},
        **{"rounds_to_target": at and at.rounds, "bytes_to_target": at and at.bytes},
        "simulated_seconds_to_target": at and at.simulated_seconds,
    }


def _summary(tried: Tried) -> dict[str, Any]:
    runs = zip(tried.directories, tried.scores, strict=True)
    return {
        **{"settings": tried.settings, "run_dir": str(tried.directories[0]), **_numbers(tried.score)},
        "accuracy_spread": spread([each.accuracy for each in tried.scores]),
        "seeds": [{"run_dir": str(path), **_numbers(scored)} for path, scored in runs],
    }


def _swept(ranked: list[Tried], target: float | None, rank_by: str) -> object:
    keys = [*ranked[0].settings]
    to = [f"{rank_by} to {100 * target:g} %"] if target is not None else []
    shown = new_table("", *keys, "accuracy", "loss", *to)
    shown.caption = "accuracy and loss: means of the last five evaluations"
    if len(ranked[0].scores) > 1:
        shown.caption += f" and of {len(ranked[0].scores)} seeds; ±: standard deviation over seeds"
    for place, tried in enumerate(ranked, 1):
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in tried.settings.values()]
        shown.add_row(
            str(place), *map(escape, values), *_cells(tried.scores), *([_cost(tried.scores, rank_by)] if to else [])
        )
    return shown


def _cells(scores: Sequence[Score]) -> list[str]:
    mean = mean_of(scores)
    if mean.diverged:
        return ["diverged", ""]
    accuracy, loss = spread([each.accuracy for each in scores]), spread([each.loss for each in scores])
    return [
        "" if mean.accuracy is None else f"{100 * mean.accuracy:.2f}{_plus_minus(accuracy, '.2f', 100)} %",
        "" if mean.loss is None else f"{mean.loss:.4f}{_plus_minus(loss, '.4f')}",
    ]


def _plus_minus(deviation: float | None, digits: str, factor: float = 1.0) -> str:
    return "" if deviation is None else f" ± {factor * deviation:{digits}}"


def _cost(scores: Sequence[Score], rank_by: str) -> str:
    mean, deviation = mean_of(scores), spread([each.cost for each in scores])
    if mean.cost is None:
        return "not reached"
    shown = {"rounds": "{:.0f}".format, "bytes": size}.get(rank_by, duration)
    return shown(mean.cost) + ("" if deviation is None else f" ± {shown(deviation)}")


def _advised(advice: Advice) -> object:
    goal = f"{100 * advice.target:.1f} %"
    shown = new_table("", "algorithm and settings", "accuracy", f"time to {goal}", f"bytes to {goal}", "rounds")
    for place, (each, scored) in enumerate(zip(advice.ranked, advice.scores, strict=True), 1):
        at = scored.at
        costs = [duration(at.simulated_seconds), size(at.bytes), str(at.rounds)] if at else ["not reached", "", ""]
        shown.add_row(str(place), escape(each.label), _cells([scored])[0], *costs)
    shown.caption = "time: simulated; accuracy: mean of the last five evaluations"
    return shown


def _because(advice: Advice) -> str:
    best, first = advice.ranked[0], advice.scores[0]
    tried = ", ".join(f"{count} for {rounds} rounds" for count, rounds in advice.rungs)
    said = f"Recommended: {best.label}. Of {advice.rungs[0][0]} settings ({tried}) "
    if first.at is None:
        return f"{said}none reached {100 * advice.target:.1f} %; this one came nearest. More --rounds would tell more."
    edges = "".join(
        f" Its {key} is the {'largest' if best.settings[key] == max(rates) else 'smallest'} that was tried."
        for key, rates in advice.rates.items()
        if len(rates) > 1 and best.settings.get(key) in (min(rates), max(rates))
    )
    return f"{said}it is the first at {100 * advice.target:.1f} %, after {duration(first.at.simulated_seconds)}.{edges}"
