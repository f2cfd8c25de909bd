"""The commands sweep and advise."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from laconic.cli.app import CHOSEN_BY_ADVISE
from laconic.cli.console import note, say, stderr, stdout
from laconic.cli.output import new_directory, only_given, print_json, resume_command, stored
from laconic.cli.view import LiveView, SearchView
from laconic.core.counts import counted
from laconic.core.errors import ConfigError, Interrupted
from laconic.core.user_code import check_trusted
from laconic.engine.settings import Network, Spread
from laconic.report.page import report as write_report
from laconic.report.tables import new_table
from laconic.report.units import duration, size, with_deviation
from laconic.run.config import RunConfig, code_in, load_config
from laconic.run.directory import RunDirectory
from laconic.run.files import write_atomically
from laconic.run.labels import split_label
from laconic.run.resume import check_same
from laconic.run.target import COSTS, WINDOW, Target
from laconic.search.advise import ARMS, Advice, candidates
from laconic.search.advise import advise as find_advice
from laconic.search.score import Score, mean_of, spread
from laconic.search.space import Range, grid, space_of
from laconic.search.sweep import Sweep, Tried

REQUEST = "search.json"
"""The arguments of a sweep or of advise, stored in the folder of its runs."""


def sweep(
    config: Path | None,
    algorithm: str | None,
    tries: list[str] | None,
    preset: str | None,
    optuna: int | None,
    seeds: int | None,
    target: float | None,
    rank_by: str,
    out: Path | None,
    resume: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    """Search the settings of one algorithm, and write the best config."""
    if config is not None and config.is_dir():
        config = RunDirectory(config).config
    label = split_label(algorithm) if algorithm else {}
    base = load_config(config, options, label)  # first, since it says what is wrong with a file
    request: dict[str, Any] = {
        "config": config.read_text() if config is not None and config.exists() else None,
        **{"options": only_given(options | label), "try": tries or [], "preset": preset, "optuna": optuna},
        **{"target": target, "rank_by": rank_by, "seeds": seeds},
    }
    directory = out or new_directory("sweep", base.dataset)
    request = _resumed(directory, request, resume)
    # A resumed sweep uses its own copy of the config.
    search = _sweep_of(request, directory, directory / "base.toml" if resume and request["config"] else config)
    _start(directory, request)
    try:
        ranked = search.run_optuna(request["optuna"], base.seed) if request["optuna"] else search.run_grid()
    except Interrupted as stop:
        stop.again = resume_command(out, directory)
        raise
    _show_sweep(search.write_best(), ranked, directory, request["target"], request["rank_by"], as_json)


def _show_sweep(
    best: Path, ranked: list[Tried], directory: Path, target: float | None, rank_by: str, as_json: bool
) -> None:
    """Write the report, and print the table or the JSON."""
    runs = [path for tried in ranked for path in tried.directories if RunDirectory(path).has_results()]
    page = directory / "report.html"
    write_report(runs, page, None if target is None else Target(target), rank_by)
    if as_json:
        print_json({"best": str(best), "runs": [_summary(tried) for tried in ranked]})
        return
    stdout.print(_sweep_table(ranked, target, rank_by))
    say(f"The best config is {best}; run it with: laconic run {best}")
    say(f"Runs are in {directory}, the report is {page}")


def _sweep_of(request: dict[str, Any], directory: Path, config: Path | None) -> Sweep:
    """The sweep. Its first setting is checked before anything is written."""
    space = space_of(request["try"], request["preset"])
    repeats = request.get("seeds") or 1
    if "seed" in space and repeats > 1:
        raise ConfigError("--seeds and --try seed=…: only one of the two is allowed")

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(config, request["options"], settings)

    search = Sweep(make, space, directory, [LiveView(stderr)], request["target"], COSTS[request["rank_by"]], repeats)
    lowest = {key: choices.low if isinstance(choices, Range) else choices[0] for key, choices in space.items()}
    make(lowest if request["optuna"] else next(grid(space))).build_algorithm()
    return search


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
    request: dict[str, Any] = {
        **{"options": {"rounds": 90} | only_given(options), "target": target},
        "arms": [split_label(label) for label in algorithms or []],
    }
    first = _check_request(request)
    directory = out or new_directory("advise", first.dataset)
    request = _resumed(directory, request, resume)

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(None, request["options"], settings)

    tried = candidates(request["arms"] or ARMS)
    for settings in tried:
        make(settings).build_algorithm()
    make(tried[0]).build().close()
    for assumption in _assumptions(make(tried[0]).network):
        note(f"note: {assumption}")
    _start(directory, request)
    view = SearchView(stderr)
    try:
        advice = find_advice(make, tried, directory, view, target=request["target"])
    except Interrupted as stop:
        stop.again = resume_command(out, directory)
        raise
    finally:
        view.end()
    _show_advice(advice, directory, request["options"], as_json)


def _check_request(request: dict[str, Any]) -> RunConfig:
    config = load_config(None, request["options"])
    if not config.network.any():
        raise ConfigError("describe the network, as in --bandwidth-up 1Mbit --bandwidth-down 10Mbit")
    if config.rounds < WINDOW:
        allowed = f"{WINDOW} or more is allowed, because accuracy is the mean of {WINDOW} evaluations"
        raise ConfigError(f"--rounds {config.rounds}: {allowed}")
    return config


def _show_advice(advice: Advice, directory: Path, options: dict[str, Any], as_json: bool) -> None:
    """Write the report and the best config, and print the result."""
    page = directory / "report.html"
    trials = [trial for trial in (*advice.ranked, *advice.left) if RunDirectory(trial.directory).has_results()]
    write_report([trial.directory for trial in trials], page, Target(advice.target), "time")
    best = advice.ranked[0]
    config = directory / "advice.toml"
    write_atomically(config, RunDirectory(best.directory).config.read_bytes())
    if as_json:
        runs = [
            {"label": trial.label, "run_dir": str(trial.directory), **_numbers(score)}
            for trial, score in zip(advice.ranked, advice.scores, strict=True)
        ]
        print_json({"advice": best.settings, "config": str(config), "target": advice.target, "runs": runs})
        return
    stdout.print(_advice_table(advice))
    say(_explanation(advice))
    say(f"Run it with: laconic run {config}")
    say(f"or: {command(best.settings, options)}")
    say(f"The report is {page}")


def command(settings: dict[str, Any], options: dict[str, Any]) -> str:
    """The `laconic run` command for a setting."""
    words = ["laconic", "run"]
    for key, value in {**settings, **options}.items():
        if "." in key:
            words += ["--set", f"{key}={value}"]
        elif isinstance(value, bool):
            words.append(f"--{'' if value else 'no-'}{key.replace('_', '-')}")
        else:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return shlex.join(words)


def _assumptions(network: Network) -> Iterator[str]:
    """Notes on missing network settings that may change the advice."""
    if network.trace is not None:
        return
    for direction in ("up", "down"):
        if getattr(network, f"bandwidth_{direction}") is None:
            yield f"--bandwidth-{direction} is not given: {direction}loads take no time"
    if Spread.parse(network.latency, "latency").median == 0:
        yield "--latency is 0: many small rounds cost no more than a few large ones; set it, as in --latency 50ms"


def _without_options(request: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in request.items() if key != "options"}


def _resumed(directory: Path, request: dict[str, Any], resume: bool) -> dict[str, Any]:
    """The arguments of the search. A resumed search takes them from its directory."""
    path = directory / REQUEST
    if not resume:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"--out '{directory}': exists already; continue with --resume, or choose another --out")
        return request
    if not path.exists():
        raise ConfigError("--resume: give the --out of the search to continue")
    old = stored(path)
    if request.keys() != old.keys():
        raise ConfigError(f"'{path}' is not of this command: it has {', '.join(old)}, expected {', '.join(request)}")
    tried = space_of(old["try"], None) if old.get("try") else {}
    check_trusted(path, (name for table in (old["options"], tried, *old.get("arms", [])) for name in code_in(table)))
    search = f"the search in '{directory}'"
    check_same(search, only_given(request["options"]), old["options"], {"rounds"})
    check_same(search, only_given(_without_options(request)), _without_options(old), {"rank_by", "optuna", "seeds"})
    return _extended(old, request)


def _extended(old: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """The stored arguments with new ones: a resumed search may have more trials or seeds, and another ranking."""
    old |= {key: request[key] for key in ("optuna", "seeds") if request.get(key)}
    if "try" in request and "rounds" in request["options"]:
        old["options"]["rounds"] = request["options"]["rounds"]
    if request.get("rank_by", "bytes") != "bytes":  # bytes is the default
        old["rank_by"] = request["rank_by"]
    return old


def _start(directory: Path, request: dict[str, Any]) -> None:
    """Store the arguments, and print where the runs are."""
    directory.mkdir(parents=True, exist_ok=True)
    if request.get("config"):
        write_atomically(directory / "base.toml", request["config"].encode())
    write_atomically(directory / REQUEST, json.dumps(request).encode())
    note(f"runs are written to {directory}; `laconic watch {directory}` shows them")


def _numbers(score: Score) -> dict[str, Any]:
    at = score.at
    return {
        **{"accuracy": score.accuracy, "loss": score.loss, "diverged": score.diverged},
        **{"rounds_to_target": at and at.rounds, "bytes_to_target": at and at.bytes},
        "simulated_seconds_to_target": at and at.simulated_seconds,
    }


def _summary(tried: Tried) -> dict[str, Any]:
    runs = zip(tried.directories, tried.scores, strict=True)
    return {
        **{"settings": tried.settings, "run_dir": str(tried.directories[0]), **_numbers(tried.score)},
        "accuracy_spread": spread([score.accuracy for score in tried.scores]),
        "seeds": [{"run_dir": str(path), **_numbers(score)} for path, score in runs],
    }


def _sweep_table(ranked: list[Tried], target: float | None, rank_by: str) -> object:
    keys = [*ranked[0].settings]
    cost_column = [f"{rank_by} to {100 * target:g} %"] if target is not None else []
    table = new_table("", *keys, "accuracy", "loss", *cost_column)
    table.caption = "accuracy and loss: means of the last five evaluations"
    if len(ranked[0].scores) > 1:
        table.caption += f" and of {len(ranked[0].scores)} seeds; ±: standard deviation over seeds"
    for rank, tried in enumerate(ranked, 1):
        values = [f"{value:g}" if isinstance(value, float) else str(value) for value in tried.settings.values()]
        cost = [_cost(tried.scores, rank_by)] if cost_column else []
        table.add_row(str(rank), *map(escape, values), *_cells(tried.scores), *cost)
    return table


def _cells(scores: Sequence[Score]) -> list[str]:
    mean = mean_of(scores)
    if mean.diverged:
        return ["diverged", ""]
    accuracy, loss = spread([score.accuracy for score in scores]), spread([score.loss for score in scores])
    return [
        "" if mean.accuracy is None else f"{100 * mean.accuracy:.2f}{_plus_minus(accuracy, '.2f', 100)} %",
        "" if mean.loss is None else f"{mean.loss:.4f}{_plus_minus(loss, '.4f')}",
    ]


def _plus_minus(deviation: float | None, digits: str, factor: float = 1.0) -> str:
    return "" if deviation is None else f" ± {factor * deviation:{digits}}"


def _cost(scores: Sequence[Score], rank_by: str) -> str:
    mean, deviation = mean_of(scores), spread([score.cost for score in scores])
    if mean.cost is None:
        return "not reached"
    formatted = {"rounds": "{:.0f}".format, "bytes": size}.get(rank_by, duration)
    return formatted(mean.cost) if deviation is None else with_deviation(mean.cost, deviation, formatted)


def _advice_table(advice: Advice) -> object:
    target = f"{100 * advice.target:.1f} %"
    table = new_table("", "algorithm and settings", "accuracy", f"time to {target}", f"bytes to {target}", "rounds")
    for rank, (trial, score) in enumerate(zip(advice.ranked, advice.scores, strict=True), 1):
        at = score.at
        costs = [duration(at.simulated_seconds), size(at.bytes), str(at.rounds)] if at else ["not reached", "", ""]
        table.add_row(str(rank), escape(trial.label), _cells([score])[0], *costs)
    table.caption = "time: simulated; accuracy: mean of the last five evaluations"
    return table


def _explanation(advice: Advice) -> str:
    best, first = advice.ranked[0], advice.scores[0]
    rungs = ", ".join(f"{count} for {counted(rounds, 'round')}" for count, rounds in advice.rungs)
    recommended = f"Recommended: {best.label}. Of {counted(advice.rungs[0][0], 'setting')} ({rungs}) "
    target = f"{100 * advice.target:.1f} %"
    if first.at is None:
        return f"{recommended}none reached {target}; this one came closest. Try more --rounds."
    edges = "".join(
        f" Its {key} is the {'largest' if best.settings[key] == max(rates) else 'smallest'} that was tried."
        for key, rates in advice.rates.items()
        if len(rates) > 1 and best.settings.get(key) in (min(rates), max(rates))
    )
    return f"{recommended}it reached {target} first, after {duration(first.at.simulated_seconds)}.{edges}"
