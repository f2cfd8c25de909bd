"""The commands that look at runs: report, watch, plot."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from laconic.cli.options import fraction
from laconic.cli.tables import RANK_BY
from laconic.core.errors import ConfigError, unknown_name
from laconic.report.gather import COSTS as RUN_COSTS
from laconic.report.gather import Table, find_runs, gather
from laconic.report.page import report as write_report
from laconic.report.plot import CHARTS, COSTS, FORMATS, Scale, pareto, traffic
from laconic.report.plot import plot as draw_curves

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
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The picture: .png, .svg or .pdf; CHART.svg if not given.")
    ] = None,
    chart: Annotated[
        str, typer.Option("--chart", help="curves, pareto (accuracy against cost, and the front), or bytes by stream.")
    ] = "curves",
    metric: Annotated[
        str | None, typer.Option("--show", help="Of curves: accuracy (usual), loss, training_loss, skip_rate, q_a, …")
    ] = None,
    cost: Annotated[str | None, typer.Option("--against", help=f"{', '.join(COSTS)}; bytes if not given.")] = None,
    linear: Annotated[bool, typer.Option("--linear", help="No logarithmic axis.")] = False,
) -> None:
    """Draw runs as a picture: curves, the Pareto front, or where the bytes went."""
    if chart not in CHARTS:
        raise unknown_name("chart", chart, CHARTS)
    if chart != "curves" and metric is not None:
        raise ConfigError(f"--show {metric}: curves can show it; --chart {chart} has no choice")
    if chart == "bytes" and (cost is not None or linear):
        raise ConfigError("--against and --linear: curves and pareto have such an axis; --chart bytes has none")
    out, metric, cost = out or Path(f"{chart}.svg"), metric or "accuracy", cost or "bytes"
    _check_out(out)
    if out.suffix[1:] not in FORMATS:
        raise ConfigError(f"--out '{out}': a file that ends in {', '.join('.' + name for name in FORMATS)} is allowed")
    if cost not in COSTS:
        raise unknown_name("cost", cost, COSTS)
    found = gather(find_runs(runs), course=RUN_COSTS)["runs"]
    if chart == "bytes":
        traffic(found, out)
    else:
        having = _having(metric, found)
        scale: Scale = "linear" if linear else "log"
        if chart == "pareto":
            pareto(having, out, cost=cost, scale=scale)
        else:
            draw_curves(having, out, metric=metric, cost=cost, scale=scale)
    stdout.print(f"The picture is {out}", highlight=False, soft_wrap=True)


def _having(metric: str, found: list[Table]) -> list[Table]:
    """The runs that have it."""
    shown = {id(run): {*run["metrics"], *run["course"]} - {"round", "participants", *RUN_COSTS} for run in found}
    if not any(shown.values()):
        raise ConfigError(f"'{found[0]['path']}': diverged in its first round; there is nothing to draw")
    if metric not in set().union(*shown.values()):
        raise unknown_name("metric", metric, set().union(*shown.values()))
    return [run for run in found if metric in shown[id(run)]]


def _check_out(out: Path) -> None:
    if not out.parent.is_dir():
        raise ConfigError(f"--out '{out}': there is no folder '{out.parent}'")
    if out.is_dir():
        raise ConfigError(f"--out '{out}': is a directory; a file is needed")
