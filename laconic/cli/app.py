"""The commands: names, arguments, options and help. What they do is in the modules that `implemented_in` names."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from laconic.cli.completion import DATASETS, MODELS, PARTITIONS, algorithms, completing
from laconic.cli.options import (
    Algorithm,
    Json,
    MLflow,
    Out,
    Ranking,
    Report,
    Resume,
    Target,
    TensorBoard,
    help_of,
    implemented_in,
    with_config,
)
from laconic.search.space import PRESETS
from laconic.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Federated learning that says little: communication-efficient algorithms with every byte measured.",
)
TRAIN, LOOK, CHOOSE, DEPLOY = "Train", "Look at runs", "What there is", "Deploy with Flower"

Config = Annotated[Path | None, typer.Argument(help="A TOML file, or the directory of an earlier run.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Directories of runs, or folders that hold some.")]
Show = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(rich_help_panel=TRAIN)
@with_config
@implemented_in("training")
def run(
    config: Config = None,
    algorithm: Algorithm = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    report: Report = True,
    tensorboard: TensorBoard = False,
    mlflow: MLflow = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train with one algorithm."""


@app.command(rich_help_panel=TRAIN)
@with_config
@implemented_in("training")
def compare(
    algorithms: Annotated[
        list[str],
        typer.Argument(
            metavar="ALGORITHM…",
            help="Names; with settings of its own as NAME:key=value,key=value.",
            autocompletion=completing(algorithms),
        ),
    ],
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with what they share.")] = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    rank_by: Ranking = "bytes",
    report: Report = True,
    tensorboard: TensorBoard = False,
    mlflow: MLflow = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Train with several algorithms on the same data, seed and initial model, and rank them."""


@app.command(rich_help_panel=TRAIN)
@with_config
@implemented_in("searches")
def sweep(
    config: Config = None,
    algorithm: Algorithm = None,
    tries: Annotated[
        list[str] | None,
        typer.Option("--try", metavar="KEY=VALUE,VALUE…", help="Values to try; with --optuna, also KEY=LOW..HIGH."),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help=f"A paper's grid of learning rates: {', '.join(PRESETS)}.")
    ] = None,
    optuna: Annotated[
        int | None, typer.Option("--optuna", min=1, metavar="NUMBER", help="Let optuna choose this many settings.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Run each setting with this many seeds, and rank the means.")
    ] = None,
    target: Target = None,
    rank_by: Ranking = "bytes",
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Try settings of one algorithm, as a grid or with optuna, and write the best as a config."""


CHOSEN_BY_ADVISE = ("compressor", "downlink", "local_lr", "server_lr")
_OTHERWISE = {
    **{"rounds": "Default: 90.", "eval_every": "Always 1 here."},
    **dict.fromkeys(CHOSEN_BY_ADVISE, "Chosen by this command."),
}


@app.command(rich_help_panel=TRAIN)
@partial(with_config, defaults=_OTHERWISE)
@implemented_in("searches")
def advise(
    algorithms: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGORITHM…]",
            help="Try only these, written as for compare; otherwise those that are known to be good.",
            autocompletion=completing(algorithms),
        ),
    ] = None,
    target: Target = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Find the algorithm, compressor and learning rates that train fastest on your network, by short trials."""


@app.command(rich_help_panel=TRAIN)
@with_config
@implemented_in("training")
def tune(
    config: Config = None,
    algorithm: Algorithm = None,
    out: Annotated[Path, typer.Option("--out", help="The config to write, with the fastest numerics.")] = Path(
        "tuned.toml"
    ),
    *,
    options: dict[str, Any],
) -> None:
    """Measure the fastest way to compute gradients on this machine, and write it into a config."""


@app.command(rich_help_panel=TRAIN)
@implemented_in("reproductions")
def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME…", help="Names from --list, or of a study on its page, or all."),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List what can be reproduced.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Only check that it works: digits, a few rounds.")] = False,
    full: Annotated[bool, typer.Option("--full", help="All settings of the paper; takes many hours.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Number of seeds.")] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Directory of the runs; finished ones are reused.")] = Path(
        "runs/reproduce"
    ),
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs", help="Directory of data, figures and the page; docs/ in a checkout, else that of the runs."
        ),
    ] = None,
    page: Annotated[bool, typer.Option("--render", help="Only write the page, from stored data.")] = False,
) -> None:
    """Run a table or figure of a paper: its numbers beside ours, and which of its claims hold."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    target: Target = None,
    rank_by: Ranking = "bytes",
    show: Show = False,
) -> None:
    """Write one page about runs that works offline: curves, bytes, diagnostics, and how to repeat them."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="[RUNS]", help="The folder of the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free port.")] = 8642,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    show: Show = False,
) -> None:
    """Show runs in the browser while they go on."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def plot(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture: .png, .svg or .pdf; CHART.svg when not given.")
    ] = None,
    chart: Annotated[
        str,
        typer.Option(
            "--chart",
            metavar="curves|pareto|bytes",
            help="Curves, accuracy against cost with the Pareto front, or bytes by stream.",
        ),
    ] = "curves",
    metric: Annotated[
        str | None,
        typer.Option("--show", help="For curves: accuracy (default), loss, training_loss, skip_rate, q_a, …"),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option("--against", help="For curves and pareto: bytes (default), bytes_up, round, seconds, …"),
    ] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Use a linear axis instead of a logarithmic one.")] = False,
) -> None:
    """Draw runs as a picture: curves, the Pareto front, or where the bytes went."""


@app.command("algorithms", rich_help_panel=CHOOSE)
@implemented_in("listings")
def list_algorithms(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Show one in detail: NAME or NAME:key=value,key=value.", autocompletion=completing(algorithms)
        ),
    ] = None,
) -> None:
    """List the algorithms with their papers, parts and defaults."""


@app.command("datasets", rich_help_panel=CHOOSE)
@implemented_in("listings")
def list_datasets() -> None:
    """List the data sets."""


@app.command("models", rich_help_panel=CHOOSE)
@implemented_in("listings")
def list_models() -> None:
    """List the models."""


@app.command(rich_help_panel=DEPLOY)
@implemented_in("new_app")
def new_app(
    name: Annotated[Path, typer.Argument(help="The folder to create.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of clients in the federation.")] = 3,
) -> None:
    """Write a small Flower app to start from."""


@app.command(rich_help_panel=DEPLOY)
@implemented_in("deploy_demo")
def deploy_demo(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of SuperNodes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds of training.")] = 10,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            help="NAME or NAME:key=value,key=value (see `laconic algorithms`).",
            autocompletion=completing(algorithms),
        ),
    ] = "fed_laconic:local_lr=0.3",
    dataset: Annotated[
        str, typer.Option("--dataset", help=help_of("dataset"), autocompletion=completing(DATASETS))
    ] = "digits",
    partition: Annotated[
        str | None, typer.Option("--partition", help=help_of("partition"), autocompletion=completing(PARTITIONS))
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help=help_of("model"), autocompletion=completing(MODELS))
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train on a real federation on this machine: SuperLink, SuperNodes, TLS, authentication. Leaves no process behind."""
