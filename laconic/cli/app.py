"""The commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from laconic.cli import reports, reproductions, searches, tables
from laconic.cli.deploy_demo import demonstrate, ended_by_signals
from laconic.cli.flower_app import write_app
from laconic.cli.options import check_options, fraction, read_config, with_config
from laconic.cli.places import new_directory, print_json
from laconic.cli.view import LiveView, size
from laconic.core.errors import ConfigError, LaconicError, suggestion, unknown_name
from laconic.core.user_code import blamed, said
from laconic.report.page import report as write_report
from laconic.report.trackers import trackers
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, write_atomically
from laconic.run.driver import Finished, run_config
from laconic.run.labels import split_label
from laconic.run.loop import Interrupted
from laconic.run.resume import FREE_TO_CHANGE
from laconic.run.target import WINDOW
from laconic.run.training import Diverged
from laconic.run.tune import tune as measure_strategies
from laconic.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that says little: communication-efficient algorithms with every byte measured.",
)
# Progress and complaints go to stderr, so that stdout holds results only.
stderr = Console(stderr=True)
# Where nobody looks (a pipe, a file), a table is as wide as it needs to be.
stdout = Console() if Console().is_terminal or "COLUMNS" in os.environ else Console(width=200)

Out = Annotated[Path | None, typer.Option("--out", help="The run's directory; a new one below runs/ when not given.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue where the run in --out was stopped.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of stdout.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Write a page about it beside it at the end.")]
Board = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard's event files into the run's directory, too.")
]
Flow = Annotated[
    bool,
    typer.Option("--mlflow", help="Enter it in an MLflow store, too: MLFLOW_TRACKING_URI, or mlflow.db beside it."),
]
Target = Annotated[
    float | None,
    typer.Option("--target", help="Also report what it cost until the mean of 5 evaluations had this accuracy, in %."),
]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
@with_config
def run(
    config: Annotated[Path | None, typer.Argument(help="A TOML file, or the directory of an earlier run.")] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", help="See `laconic algorithms`. Default: fed_avg.")
    ] = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    report: Report = True,
    tensorboard: Board = False,
    mlflow: Flow = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train with one algorithm."""
    if config is not None and config.is_dir():
        out = out or (config if resume else None)
        config = RunDirectory(config).config
    if resume and config is not None and not config.exists():
        raise ConfigError(f"--resume: there is no run '{config}'")
    if resume and out is None:
        raise ConfigError("--resume: name the run, as in `laconic run runs/NAME --resume`, or give its --out")
    if resume and config is None and out is not None and RunDirectory(out).exists():
        config = RunDirectory(out).config
    wanted = read_config(config, options, split_label(algorithm) if algorithm else {})
    directory = out or new_directory(wanted.algorithm, wanted.dataset)
    goal = _goal(target, wanted)
    callbacks = [LiveView(stderr), *trackers(tensorboard=tensorboard, mlflow=mlflow)]
    try:
        finished = run_config(wanted, directory, callbacks, resume=resume, target=goal)
    except Diverged:
        # How it came to that is in the page, too.
        if report:
            stderr.print(f"The report is {_report([directory], directory, goal)}", highlight=False, soft_wrap=True)
        raise
    page = _report([directory], directory, goal) if report else None
    if as_json:
        print_json(finished.summary())
        return
    stdout.print(tables.outcome([finished], stdout.width))
    stdout.print(f"The run is in {directory}{_and(page)}", highlight=False, soft_wrap=True)


@app.command()
@with_config
def compare(
    algorithms: Annotated[
        list[str],
        typer.Argument(metavar="ALGORITHM…", help="Names; settings of one of them as NAME:key=value,key=value."),
    ],
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with what they have in common.")] = None,
    target: Target = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="A directory for the runs; below runs/ if not given.")
    ] = None,
    resume: Resume = False,
    rank_by: Annotated[
        str, typer.Option("--rank-by", help="What to the --target decides: bytes, rounds, or simulated time.")
    ] = "bytes",
    report: Report = True,
    tensorboard: Board = False,
    mlflow: Flow = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train with several algorithms on the same data, seed and initial model, and rank them."""
    if resume and out is None:
        raise ConfigError("--resume: give the --out of the comparison")
    check_options(options)
    by = _rank_by(rank_by, target)
    for label in algorithms:
        if algorithms.count(label) > 1:
            raise ConfigError(f"'{label}' is named twice; give one of them another setting, as in {label}:seed=1")
    options = _stored_options(out, options) if resume and out else options
    configs = {label: load_config(config, options, split_label(label)) for label in algorithms}
    if by == "time" and not all(each.network.any() for each in configs.values()):
        raise ConfigError(
            "--rank-by time: say what the network is like, as in --bandwidth-up 1Mbit --bandwidth-down 10Mbit"
        )
    first = next(iter(configs.values()))
    directory = out or new_directory("compare", first.dataset)
    goal = _goal(target, first)
    folders = {label: directory / re.sub(r"[^\w.+-]+", "_", label) for label in configs}
    # A run that is resumed takes its data from its own config, not from what was said now.
    data = None if resume else first.load_data()
    if not resume:
        # All of them are checked before the first one runs.
        for label, wanted in configs.items():
            RunDirectory(folders[label]).check_new()
            wanted.build(data if _same_data(wanted, first) else None).close()
        directory.mkdir(parents=True, exist_ok=True)
        write_atomically(directory / COMPARISON, json.dumps(options).encode())
    finished: list[Finished] = []
    failed: dict[str, str] = {}
    callbacks = [LiveView(stderr), *trackers(tensorboard=tensorboard, mlflow=mlflow)]
    for label, wanted in configs.items():
        try:
            own = data if _same_data(wanted, first) else None
            finished.append(
                run_config(
                    wanted,
                    folders[label],
                    callbacks,
                    resume=resume,
                    label=label,
                    target=goal,
                    data=own,
                    more=label != algorithms[-1],
                )
            )
        except Diverged as error:
            failed[label] = str(error)
            stderr.print(f"[red]{escape(label)}: {escape(str(error))}[/red]", highlight=False, soft_wrap=True)
        except Interrupted as stop:
            said = [word for word in sys.argv[1:] if word != "--resume"]
            stop.again = shlex.join(["laconic", *said, *([] if out else ["--out", str(directory)]), "--resume"])
            raise
    page = _report([*folders.values()], directory, goal, by) if report else None
    if as_json:
        runs = [run.summary() for run in tables.ranked(finished, by)]
        runs += [_failure(label, text, goal) for label, text in failed.items()]
        print_json({"runs": runs})
        return
    if finished:
        stdout.print(tables.outcome(finished, stdout.width, by))
    for label in failed:
        stdout.print(f"{label}: diverged", highlight=False, markup=False)
    stdout.print(f"Runs are in {directory}{_and(page)}", highlight=False, soft_wrap=True)


@app.command()
@with_config
def tune(
    config: Annotated[Path | None, typer.Argument(help="A TOML file.")] = None,
    algorithm: Annotated[str | None, typer.Option("--algorithm", help="See `laconic algorithms`.")] = None,
    out: Annotated[Path, typer.Option("--out", help="The config to write, with the fastest numerics.")] = Path(
        "tuned.toml"
    ),
    *,
    options: dict[str, Any],
) -> None:
    """Measure how gradients are computed fastest here, and write that choice into a config."""
    wanted = read_config(config, options, split_label(algorithm) if algorithm else {})
    if not out.parent.is_dir():
        raise ConfigError(f"--out '{out}': there is no folder '{out.parent}'")
    stderr.print("measuring rounds with each way of computing gradients", highlight=False)
    timings = measure_strategies(wanted, lambda timing: stderr.print(f"  {timing}", highlight=False))
    stdout.print(tables.timings(timings))
    best = timings[0]
    chosen = wanted.model_copy(update={"numerics": best.numerics, "threads": best.threads})
    write_atomically(out, chosen.to_toml().encode())
    stdout.print(f"Fastest: {best}. Written to {out}; use it with: laconic run {out}", highlight=False, soft_wrap=True)


@app.command("algorithms")
def list_algorithms(
    name: Annotated[str | None, typer.Argument(help="One of them in detail; as for compare: NAME:key=value.")] = None,
) -> None:
    """What algorithms there are, where they come from, their parts and defaults."""
    if name is None:
        stdout.print(tables.algorithms())
        return
    for table in tables.algorithm(load_config(None, split_label(name)).build_algorithm()):
        stdout.print(table)


@app.command("datasets")
def list_datasets() -> None:
    """What data sets there are."""
    stdout.print(tables.datasets(stdout.width))


@app.command("models")
def list_models() -> None:
    """What models there are."""
    stdout.print(tables.known_models())


@app.command("new-app")
def new_app(
    name: Annotated[Path, typer.Argument(help="The app's folder, which is made.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many clients the federation has.")] = 3,
) -> None:
    """Write a small Flower app to start from: the same algorithms, on machines of your own."""
    for path in write_app(name, nodes):
        stdout.print(str(path), highlight=False, soft_wrap=True)
    stdout.print(f"Run it with: flwr run {name} SUPERLINK --stream (see docs/deploy.md)", highlight=False)


@app.command("deploy-demo")
def deploy_demo(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many SuperNodes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1)] = 10,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="As for compare: NAME:key=value.")
    ] = "fed_laconic:local_lr=0.3",
    dataset: Annotated[str, typer.Option("--dataset", help="See `laconic datasets`.")] = "digits",
    partition: Annotated[str | None, typer.Option("--partition", help="The data set's usual one if not given.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The data set's usual one if not given.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A new directory; below runs/ if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Train on a real federation on this machine: SuperLink, SuperNodes, TLS, authentication; it cleans up after itself."""
    settings = {"algorithm": algorithm, "rounds": rounds, "dataset": dataset, "partition": partition, "model": model}
    directory = out or new_directory("deploy-demo", dataset)
    with ended_by_signals():
        summary = demonstrate(directory, nodes, settings, LiveView(stderr))
    if as_json:
        print_json(summary)
        return
    accuracy = "" if summary["accuracy"] is None else f"accuracy {100 * summary['accuracy']:.2f} %, "
    traffic = f"{size(summary['bytes_up'])} up and {size(summary['bytes_down'])} down"
    stdout.print(f"{algorithm} on {nodes} nodes: {accuracy}{traffic} in {summary['rounds']} rounds", highlight=False)
    where = f"The run is in {summary['run_dir']}{_and(summary['report'])}"
    stdout.print(where, highlight=False, soft_wrap=True)


for command in (reports.report, reports.watch, reports.plot, reproductions.reproduce, searches.sweep):
    app.command()(command)
app.command("advise")(searches.advise_command)


def _stored_options(out: Path, said: dict[str, Any]) -> dict[str, Any]:
    """A comparison goes on as it was begun, also with the algorithms whose turn had not come."""
    path = out / COMPARISON
    if not path.exists():
        raise ConfigError(f"--resume: there is no comparison in '{out}'")
    stored: dict[str, Any] = json.loads(path.read_text())
    for key, value in said.items():
        if value is not None and key not in FREE_TO_CHANGE and str(stored.get(key)) != str(value):
            raise ConfigError(f"resume: {key} = {value!r}, but the comparison was started with {stored.get(key)!r}")
    return stored | {key: value for key, value in said.items() if value is not None}


def _goal(target: float | None, config: RunConfig) -> float | None:
    """The target as a fraction; a person who cannot reach it is told so at once."""
    goal = fraction(target)
    evaluations = -(-config.rounds // config.eval_every)
    if goal is not None and evaluations < WINDOW:
        few = f"the mean of {WINDOW} evaluations has to reach it, and this makes {evaluations}"
        stderr.print(f"note: --target cannot be reported: {few}; lower --eval-every", highlight=False, soft_wrap=True)
    return goal


def _report(runs: list[Path], directory: Path, target: float | None, by: tables.RankBy = "bytes") -> Path:
    """The page about runs that are over, beside them."""
    page = directory / "report.html"
    write_report(runs, page, target, by)
    return page


def _and(page: Path | str | None) -> str:
    return "" if page is None else f", its report is {page}"


def _rank_by(word: str, target: float | None) -> tables.RankBy:
    for known in tables.RANK_BY:
        if word == known:
            if target is None and known != "bytes":
                raise ConfigError(f"--rank-by {word}: what it takes to reach a --target is ranked; give one")
            return known
    raise unknown_name("ranking", word, tables.RANK_BY)


def _same_data(one: RunConfig, other: RunConfig) -> bool:
    keys = ("dataset", "partition", "clients", "seed", "data_dir")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


COMPARISON = "comparison.json"
"""The options of a comparison, beside its runs."""


def _failure(label: str, error: str, target: float | None) -> dict[str, Any]:
    """A run that did not come to its end, beside the summaries of those that did: it has not reached the target."""
    nothing = dict.fromkeys(f"{cost}_to_target" for cost in ("rounds", "bytes", "seconds", "simulated_seconds"))
    return {"algorithm": label.partition(":")[0], "label": label, "error": error, "target": target, **nothing}


def main() -> None:
    """Run the command line; every error that has a message is told without our traceback."""
    try:
        sys.exit(app(standalone_mode=False))
    except Interrupted as stop:
        stderr.print(f"Stopped after round {stop.done}; saved. Continue with:", highlight=False)
        stderr.print(f"  {stop.again}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(130)
    except Exception as error:
        message, code = _complaint(error)
        if message is None:
            raise
        if os.environ.get("LACONIC_TRACEBACK", "0") not in ("", "0"):
            traceback.print_exception(error)
        if message:
            stderr.print(f"[red]error:[/red] {escape(message)}", highlight=False, soft_wrap=True)
        sys.exit(code)


def _complaint(error: Exception) -> tuple[str | None, int]:
    """What a person is told of an error, and the exit code; None where it is a fault of ours."""
    if isinstance(error, LaconicError):
        # Diverged is not a mistake of the person's: the run was in order, and did not work out.
        return str(error), 1 if isinstance(error, Diverged) else 2
    own = blamed(error)
    if own is not None:
        place, code = own
        return f"{place}: {said(error)}\n    {code}\n(LACONIC_TRACEBACK=1 shows the whole way to it)", 1
    if isinstance(error, OSError):
        return f"'{error.filename}': {error.strerror}" if error.filename else str(error), 2
    option, context = getattr(error, "option_name", None), getattr(error, "ctx", None)
    if option is not None and context is not None:
        known = [name for parameter in context.command.params for name in parameter.opts]
        near = suggestion(option, known) or f"see laconic {context.info_name} --help"
        return f"there is no option '{option}': {near}", 2
    # Typer's complaints about the command line itself have no public base class, but all of them have this.
    return (error.format_message() if hasattr(error, "format_message") else None), 2
