"""The commands: names, arguments, options and help. `implemented_in` names the module that implements a command."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from laconic.cli.completion import DATASETS, MODELS, PARTITIONS, algorithms, completing
from laconic.cli.options import (
    ALGORITHM_HELP,
    AccuracyTarget,
    Algorithm,
    AnyTarget,
    CostRanking,
    FromRound,
    Json,
    Out,
    Ranking,
    Report,
    Resume,
    as_target,
    help_of,
    implemented_in,
    with_callbacks,
    with_config,
    with_quantities,
    with_trust,
)
from laconic.run.target import Target
from laconic.search.space import PRESETS
from laconic.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Communication-efficient federated learning, with every byte measured.",
)
TRAIN, LOOK, LIST, DEPLOY = "Train", "Look at runs", "Look up", "Deploy with Flower"

_labels = partial(typer.Argument, autocompletion=completing(algorithms))
Config = Annotated[Path | None, typer.Argument(help="A TOML file, or the directory of an earlier run.")]
Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run directories, or folders that contain some.")]
Show = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(rich_help_panel=TRAIN)
@with_config
@with_callbacks
@implemented_in("training")
def run(
    config: Config = None,
    algorithm: Algorithm = None,
    target: AnyTarget = None,
    out: Out = None,
    resume: Resume = False,
    from_round: FromRound = None,
    report: Report = True,
    as_json: Json = False,
    *,
    callbacks: dict[str, Any],
    options: dict[str, Any],
) -> None:
    """Train with one algorithm."""


@app.command(rich_help_panel=TRAIN)
@with_config
@with_callbacks
@implemented_in("training")
def compare(
    algorithms: Annotated[
        list[str], _labels(metavar="ALGORITHM…", help="Algorithms, each as NAME or NAME:key=value,key=value.")
    ],
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with settings for all runs.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", min=1, help="Number of seeds per algorithm; the table has means and spreads."),
    ] = None,
    target: AnyTarget = None,
    out: Out = None,
    resume: Resume = False,
    rank_by: Ranking = "bytes",
    report: Report = True,
    as_json: Json = False,
    *,
    callbacks: dict[str, Any],
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
        typer.Option(
            "--try",
            metavar="KEY=VALUE,VALUE…",
            help="Values of a key to try; repeatable. With --optuna also a range, KEY=LOW..HIGH.",
        ),
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", help=f"Learning-rate grid of a paper: {', '.join(PRESETS)}.")
    ] = None,
    optuna: Annotated[
        int | None,
        typer.Option(
            "--optuna", min=1, metavar="NUMBER", help="Number of trials that Optuna chooses, instead of a grid."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds per setting; settings are ranked by the mean.")
    ] = None,
    target: AccuracyTarget = None,
    rank_by: CostRanking = "bytes",
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Search the settings of one algorithm, by grid or with Optuna, and write the best config."""


CHOSEN_BY_ADVISE = ("compressor", "uplink", "downlink", "local_lr", "server_lr")
_ADVISE_DEFAULTS = {
    **{"rounds": "Default: 90.", "eval_every": "Always 1 in this command."},
    **dict.fromkeys(CHOSEN_BY_ADVISE, "Not allowed: this command chooses it."),
}


@app.command(rich_help_panel=TRAIN)
@partial(with_config, defaults=_ADVISE_DEFAULTS)
@implemented_in("searches")
def advise(
    algorithms: Annotated[
        list[str] | None,
        _labels(
            metavar="[ALGORITHM…]",
            help="Algorithms to try, each as NAME or NAME:key=value,key=value. Default: a selection of good ones.",
        ),
    ] = None,
    target: AccuracyTarget = None,
    out: Out = None,
    resume: Resume = False,
    as_json: Json = False,
    *,
    options: dict[str, Any],
) -> None:
    """Find the algorithm, compressor and learning rates that train fastest on your network, by successive halving."""


@app.command(rich_help_panel=TRAIN)
@with_config
@implemented_in("training")
def tune(
    config: Config = None,
    algorithm: Algorithm = None,
    out: Annotated[Path, typer.Option("--out", help="Config file to write.")] = Path("tuned.toml"),
    *,
    options: dict[str, Any],
) -> None:
    """Measure the fastest gradient strategy on this machine, and write it to a config."""


@app.command(rich_help_panel=TRAIN)
@with_trust
@implemented_in("reproductions")
def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME…", help="Names from --list, names of single studies, or all.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the tables and figures.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test: a few rounds on digits.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Run all settings of the paper; takes many hours.")] = False,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, help="Number of seeds. Default: 1; with --full the study's own.")
    ] = None,
    runs: Annotated[Path, typer.Option("--runs", help="Directory of the runs; finished runs are reused.")] = Path(
        "runs/reproduce"
    ),
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs", help="Output directory of data, figures and page. Default: docs/ in a checkout, otherwise --runs."
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--render", help="Run nothing; only write pages and figures from stored data.")
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            min=0,
            help="Run what has no data yet, for this many hours, at low priority, beginning with the studies that decide "
            "the most claims per hour. Some studies run only with --full.",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Processes of --hours. Default: one per core; with a GPU, 1.")
    ] = None,
) -> None:
    """Reproduce tables and figures of papers: compare the paper's numbers with ours, and check its claims."""


@app.command(rich_help_panel=LIST)
@with_quantities
@implemented_in("theory")
def theory(
    recipe: Annotated[str, _labels(metavar="ALGORITHM", help="An algorithm of one of the five papers.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    quantities: dict[str, Any],
) -> None:
    """Print what the theorems about an algorithm say: allowed learning rates, the bound, and rounds to an error."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file to write.")] = Path("report.html"),
    target: AnyTarget = None,
    rank_by: Ranking = "bytes",
    show: Show = False,
) -> None:
    """Write an HTML report about runs that works offline: curves, bytes, diagnostics, and how to repeat them."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def watch(
    folder: Annotated[Path, typer.Argument(metavar="[RUNS]", help="Folder of the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", help="Port to listen on; 0: any free port.")] = 8642,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    show: Show = False,
) -> None:
    """Show running and finished runs in the browser, updated live."""


@app.command(rich_help_panel=LOOK)
@implemented_in("reports")
def plot(
    runs: Runs,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Image file: .png, .svg or .pdf. Default: CHART.svg.")
    ] = None,
    chart: Annotated[
        str,
        typer.Option(
            "--chart",
            metavar="curves|pareto|bytes",
            help="curves; pareto: accuracy against cost with the Pareto front; bytes: traffic by stream.",
        ),
    ] = "curves",
    metric: Annotated[
        str | None,
        typer.Option("--show", help="Metric of the curves: accuracy (default), loss, training_loss, skip_rate, q_a, …"),
    ] = None,
    cost: Annotated[
        str | None,
        typer.Option(
            "--against", help="Horizontal axis of curves and pareto: bytes (default), bytes_up, round, seconds, …"
        ),
    ] = None,
    linear: Annotated[bool, typer.Option("--linear", help="Linear instead of logarithmic horizontal axis.")] = False,
    target: Annotated[
        Target | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            parser=as_target,
            help="Draw a line at this accuracy in %, or at METRIC=VALUE.",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Only runs on this data set. Needed if they are on several.")
    ] = None,
    style: Annotated[
        str,
        typer.Option(
            "--style", metavar="screen|paper", help="screen, or paper: one column wide, small fonts and no title."
        ),
    ] = "screen",
) -> None:
    """Plot runs: curves, the Pareto front, or bytes by stream."""


@app.command("algorithms", rich_help_panel=LIST)
@implemented_in("listings")
def list_algorithms(
    name: Annotated[str | None, _labels(help="Show one algorithm in detail: NAME or NAME:key=value,key=value.")] = None,
) -> None:
    """List the algorithms with their papers; with a name: its parts, formulas and parameters."""


@app.command("datasets", rich_help_panel=LIST)
@implemented_in("listings")
def list_datasets() -> None:
    """List the data sets."""


@app.command("models", rich_help_panel=LIST)
@implemented_in("listings")
def list_models() -> None:
    """List the models."""


@app.command(rich_help_panel=DEPLOY)
@implemented_in("new_app")
def new_app(
    name: Annotated[Path, typer.Argument(help="Folder to create.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of nodes in the federation.")] = 3,
) -> None:
    """Create a Flower app from a template."""


@app.command(rich_help_panel=DEPLOY)
@implemented_in("deploy_demo")
def deploy_demo(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of SuperNodes.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Number of rounds.")] = 10,
    algorithm: Annotated[
        str, typer.Option("--algorithm", help=ALGORITHM_HELP, autocompletion=completing(algorithms))
    ] = "fed_laconic:local_lr=0.3",
    dataset: Annotated[
        str, typer.Option("--dataset", help=help_of("dataset", ""), autocompletion=completing(DATASETS))
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
    """Train on a real federation on this machine: a SuperLink and SuperNodes, with TLS and authentication."""
