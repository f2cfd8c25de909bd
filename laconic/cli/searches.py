"""The commands that try settings: sweep and advise."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from laconic.cli.options import check_options, fraction, with_config
from laconic.cli.places import new_directory, print_json
from laconic.cli.tables import RANK_BY, new_table
from laconic.cli.view import LiveView, SearchView, duration, size
from laconic.core.errors import ConfigError, unknown_name
from laconic.engine.settings import Network, Spread
from laconic.report.page import report as write_report
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, write_atomically
from laconic.run.driver import Interrupted
from laconic.run.labels import split_label
from laconic.run.target import WINDOW
from laconic.search.advise import ARMS, Advice, advise, candidates
from laconic.search.score import Score, mean_of, spread
from laconic.search.space import PRESETS, Range, space_of
from laconic.search.sweep import Sweep, Tried

stderr = Console(stderr=True)
stdout = Console() if Console().is_terminal else Console(width=160)

ORDER = "search.json"
"""What a sweep or an advice was asked for, beside its runs."""

Out = Annotated[Path | None, typer.Option("--out", help="A directory for the runs; below runs/ if not given.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on in --out, as it was begun.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Target = Annotated[float | None, typer.Option("--target", help="Rank by what it costs to this accuracy, in %.")]


@with_config
def sweep(
    config: Annotated[Path | None, typer.Argument(help="A TOML file, or the directory of an earlier run.")] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="See `laconic algorithms`.")] = None,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=VALUE,VALUE…", help="What to try; KEY=LOW..HIGH is a range, for --optuna."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help=f"A paper's grid of rates: {', '.join(PRESETS)}.")
    ] = None,
    optuna: Annotated[
        int | None, typer.Option("--optuna", min=1, metavar="NUMBER", help="So many settings, chosen by optuna.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Run each setting with so many seeds; their mean is judged.")
    ] = None,
    target: Target = None,
    rank_by: Annotated[
        str, typer.Option("--rank-by", help="What to the --target decides: bytes, rounds, or simulated time.")
    ] = "bytes",
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Try settings of one algorithm, a grid or by optuna, and write the best one as a config."""
    check_options(options)
    if config is not None and config.is_dir():
        config = RunDirectory(config).config
    goal = fraction(target)
    if rank_by not in RANK_BY:
        raise unknown_name("ranking", rank_by, RANK_BY)
    label = split_label(algorithm) if algorithm else {}
    asked: dict[str, Any] = {
        "config": config.read_text() if config is not None and config.exists() else None,
        **{"options": _said(options | label), "try": tries or [], "preset": preset, "optuna": optuna},
        **{"target": goal, "rank_by": rank_by, "seeds": seeds},
    }
    base = load_config(config, options, label)
    directory = out or new_directory("sweep", base.dataset)
    asked = _begun(directory, asked, resume)
    space = space_of(asked["try"], asked["preset"])
    path = directory / "base.toml" if asked["config"] else None

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(path, asked["options"], settings)

    by = RANK_BY[asked["rank_by"]]
    repeats = asked.get("seeds") or 1
    if "seed" in space and repeats > 1:
        raise ConfigError("--seeds: the seed is tried already, by --try; only one of the two is allowed")
    found = Sweep(make, space, directory, LiveView(stderr), asked["target"], by, repeats)
    _check(make, space, asked["optuna"])
    directory.mkdir(parents=True, exist_ok=True)
    _write_order(directory, asked)
    _say_where(directory)
    try:
        ranked = found.run_optuna(asked["optuna"], base.seed) if asked["optuna"] else found.run_grid()
    except Interrupted as stop:
        stop.again = _again(out, directory)
        raise
    best = found.write_best()
    runs = [path for tried in ranked for path in tried.directories if RunDirectory(path).tells()]
    write_report(runs, directory / "report.html", asked["target"], asked["rank_by"])
    if as_json:
        print_json({"best": str(best), "runs": [_summary(tried) for tried in ranked]})
        return
    stdout.print(_swept(ranked, asked["target"], asked["rank_by"]))
    stdout.print(f"The best one is {best}; run it with: laconic run {best}", highlight=False, soft_wrap=True)
    stdout.print(f"Runs are in {directory}, the report is {directory / 'report.html'}", highlight=False, soft_wrap=True)


_CHOSEN = ("compressor", "downlink", "local_lr", "server_lr")
"""What advise chooses itself."""
_OTHERWISE = {"rounds": " Default: 90.", "eval_every": " Always 1 here.", **dict.fromkeys(_CHOSEN, " Chosen here.")}


@partial(with_config, defaults=_OTHERWISE)
def advise_command(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGORITHM…]", help="Only these, written as for compare; else what is known to be good."
        ),
    ] = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Find the algorithm, compressor and rates that are fastest on your network: short trials of many, then fewer."""
    check_options(options)
    for key in _CHOSEN:
        if options.get(key) is not None:
            raise ConfigError(f"--{key.replace('_', '-')}: advise chooses it itself")
    asked: dict[str, Any] = {
        **{"options": {"rounds": 90} | _said(options), "target": fraction(target)},
        "arms": [split_label(label) for label in algorithms or []],
    }
    first = load_config(None, asked["options"])
    if not first.network.any():
        raise ConfigError("say what the network is like, as in --bandwidth-up 1Mbit --bandwidth-down 10Mbit")
    if first.rounds < WINDOW:
        raise ConfigError(
            f"--rounds {first.rounds}: {WINDOW} or more, since accuracy is a mean of {WINDOW} evaluations"
        )
    directory = out or new_directory("advise", first.dataset)
    asked = _begun(directory, asked, resume)

    def make(settings: dict[str, Any]) -> RunConfig:
        return load_config(None, asked["options"], settings)

    tried = candidates(asked["arms"] or ARMS)
    for each in tried:
        make(each).build_algorithm()
    make(tried[0]).build().close()
    directory.mkdir(parents=True, exist_ok=True)
    _write_order(directory, asked)
    for note in _assumed(make(tried[0]).network):
        stderr.print(f"note: {note}", highlight=False, soft_wrap=True)
    _say_where(directory)
    view = SearchView(stderr)
    try:
        advice = advise(make, tried, directory, view, target=asked["target"])
    except Interrupted as stop:
        stop.again = _again(out, directory)
        raise
    finally:
        view.close()
    page = directory / "report.html"
    shown = [each for each in (*advice.ranked, *advice.left) if RunDirectory(each.directory).tells()]
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
    stdout.print(_because(advice), highlight=False, soft_wrap=True)
    stdout.print(f"Run it with: laconic run {config}", highlight=False, soft_wrap=True)
    stdout.print(f"or: {command(best.settings, asked['options'])}", highlight=False, soft_wrap=True, markup=False)
    stdout.print(f"The evidence is {page}", highlight=False, soft_wrap=True)


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


def _say_where(directory: Path) -> None:
    stderr.print(f"runs go to {directory}; `laconic watch {directory}` shows them", highlight=False, soft_wrap=True)


def _assumed(network: Network) -> Iterator[str]:
    """What the simulated network leaves out, where that may change the advice."""
    if network.trace is not None:
        return
    for way in ("up", "down"):
        if getattr(network, f"bandwidth_{way}") is None:
            yield f"--bandwidth-{way} is not given: what goes {way} takes no time"
    if Spread.parse(network.latency, "latency").median == 0:
        yield "--latency is 0: many small rounds cost no more than few large ones; give it, as in --latency 50ms"


def _said(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _begun(directory: Path, asked: dict[str, Any], resume: bool) -> dict[str, Any]:
    """What was asked for; of one that goes on, what was asked for when it was begun."""
    path = directory / ORDER
    if not resume:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise ConfigError(f"--out '{directory}': exists already; go on with --resume, or choose another")
        return asked
    if not path.exists():
        raise ConfigError("--resume: give the --out of what was begun")
    begun: dict[str, Any] = json.loads(path.read_text())
    for key, value in asked.items():
        if isinstance(value, dict):
            for name, each in value.items():
                if begun[key].get(name) != each and name != "rounds":
                    raise ConfigError(f"resume: {name} = {each!r}, but it was begun with {begun[key].get(name)!r}")
        elif value not in (None, []) and key not in ("rank_by", "optuna", "seeds") and value != begun[key]:
            raise ConfigError(f"resume: {key} = {value!r}, but it was begun with {begun[key]!r}")
    # More trials or seeds than at first may be asked for, longer ones, and another ranking.
    begun |= {key: asked[key] for key in ("optuna", "seeds") if asked.get(key)}
    if "try" in asked and "rounds" in asked["options"]:
        begun["options"]["rounds"] = asked["options"]["rounds"]
    if asked.get("rank_by", "bytes") != "bytes":  # what it is when nobody says it
        begun["rank_by"] = asked["rank_by"]
    return begun


def _write_order(directory: Path, asked: dict[str, Any]) -> None:
    if asked.get("config"):
        write_atomically(directory / "base.toml", asked["config"].encode())
    write_atomically(directory / ORDER, json.dumps(asked).encode())


def _again(out: Path | None, directory: Path) -> str:
    said = [word for word in sys.argv[1:] if word != "--resume"]
    return shlex.join(["laconic", *said, *([] if out else ["--out", str(directory)]), "--resume"])


def _check(make: Any, space: dict[str, Any], optuna: int | None) -> None:
    """The first setting is built before anything is written; a range is for optuna alone."""
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
    said = f"Recommended: {escape(best.label)}. Of {advice.rungs[0][0]} settings ({tried}) "
    if first.at is None:
        return f"{said}none reached {100 * advice.target:.1f} %; this one came nearest. More --rounds would tell more."
    edges = "".join(
        f" Its {key} is the {'largest' if best.settings[key] == max(rates) else 'smallest'} that was tried."
        for key, rates in advice.rates.items()
        if len(rates) > 1 and best.settings.get(key) in (min(rates), max(rates))
    )
    return f"{said}it is the first at {100 * advice.target:.1f} %, after {duration(first.at.simulated_seconds)}.{edges}"
