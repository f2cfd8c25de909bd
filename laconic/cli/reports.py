"""The commands that look at runs: report, watch, plot."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from laconic.cli.options import fraction
from laconic.cli.tables import RANK_BY
from laconic.errors import ConfigError, unknown_name
from laconic.report.gather import COSTS as RUN_COSTS
from laconic.report.gather import find_runs, gather
from laconic.report.page import report as write_report
from laconic.report.plot import COSTS, FORMATS
from laconic.report.plot import plot as draw

stdout = Console()

Runs = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Directories of runs, or folders that hold some.")]


def report(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    target: Annotated[
        float | None, typer.Option("--target", help="The accuracy in % that costs are given for.")
    ] = None,
    rank_by: Annotated[str, typer.Option("--rank-by", help="What decides there: bytes, rounds, or time.")] = "bytes",
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one page about runs, which works offline: curves, bytes, diagnostics, and how to repeat them."""
    _check_out(out)
    if rank_by not in RANK_BY:
        raise unknown_name("ranking", rank_by, RANK_BY)
    for path, reason in write_report(runs, out, fraction(target), rank_by).items():
        stdout.print(f"left out '{path}', which cannot be read: {reason}", highlight=False, markup=False)
    stdout.print(f"The report is {out}", highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(out.resolve().as_uri())


def watch(
    folder: Annotated[Path, typer.Argument(metavar="[RUNS]", help="The folder of the runs.")] = Path("runs"),
    port: Annotated[int, typer.Option("--port", help="0 takes any that is free.")] = 8642,
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; only this machine when not given.")
    ] = "127.0.0.1",
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show runs while they go on, on a page of this machine."""
    from laconic.report.live import serve

    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"'{folder}': is a file; a directory is needed")
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: a number from 0 to 65535 is allowed")
    server = serve(folder, host, port)
    address = f"http://{host}:{server.server_address[1]}/"
    yet = "" if folder.is_dir() else ", which is not there yet,"
    stdout.print(f"Watching {folder}{yet} at {address} (Ctrl-C ends it)", highlight=False, soft_wrap=True)
    if show:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def plot(
    runs: Runs,
    out: Annotated[Path, typer.Option("--out", "-o", help="The picture: .png, .svg or .pdf.")] = Path("curves.svg"),
    metric: Annotated[
        str, typer.Option("--show", help="accuracy, loss, training_loss, skip_rate, q_a, …")
    ] = "accuracy",
    cost: Annotated[str, typer.Option("--against", help=", ".join(COSTS))] = "bytes",
    linear: Annotated[bool, typer.Option("--linear", help="No logarithmic axis.")] = False,
) -> None:
    """Draw curves of runs as a picture."""
    _check_out(out)
    if out.suffix[1:] not in FORMATS:
        raise ConfigError(f"--out '{out}': a file that ends in {', '.join('.' + name for name in FORMATS)} is allowed")
    if cost not in COSTS:
        raise unknown_name("cost", cost, COSTS)
    found = gather(find_runs(runs), course=RUN_COSTS)["runs"]
    shown = {id(run): {*run["metrics"], *run["course"]} - {"round", "participants", *RUN_COSTS} for run in found}
    if metric not in set().union(*shown.values()):
        raise unknown_name("metric", metric, set().union(*shown.values()))
    having = [run for run in found if metric in shown[id(run)]]
    draw(having, out, metric=metric, cost=cost, scale="linear" if linear else "log")
    stdout.print(f"The picture is {out}", highlight=False, soft_wrap=True)


def _check_out(out: Path) -> None:
    if not out.parent.is_dir():
        raise ConfigError(f"--out '{out}': there is no folder '{out.parent}'")
    if out.is_dir():
        raise ConfigError(f"--out '{out}': is a directory; a file is needed")
