"""The commands that look at runs: report, watch, plot."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from laconic.cli.console import say
from laconic.cli.options import RankBy
from laconic.core.errors import ConfigError, unknown_name
from laconic.report.gather import COSTS as RUN_COSTS
from laconic.report.gather import Table, find_runs, gather
from laconic.report.live import serve
from laconic.report.page import report as write_report
from laconic.report.plot import CHARTS, COSTS, FORMATS, Scale, pareto, traffic
from laconic.report.plot import plot as draw_curves


def report(runs: list[Path], out: Path, target: float | None, rank_by: RankBy, show: bool) -> None:
    """Write one page about runs."""
    _check_out(out)
    for path, reason in write_report(runs, out, target, rank_by).items():
        say(f"left out '{path}', which cannot be read: {reason}")
    say(f"The report is {out}")
    if show:
        webbrowser.open(out.resolve().as_uri())


def watch(folder: Path, port: int, host: str, show: bool) -> None:
    """Serve a page that shows runs while they go on, until Ctrl-C."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"'{folder}': is a file; a directory is needed")
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: a number from 0 to 65535 is allowed")
    server = serve(folder, host, port)
    address = f"http://{host}:{server.server_address[1]}/"
    yet = "" if folder.is_dir() else ", which is not there yet,"
    say(f"Watching {folder}{yet} at {address} (Ctrl-C ends it)")
    if show:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def plot(
    runs: list[Path],
    out: Path | None,
    chart: str = "curves",
    metric: str | None = None,
    cost: str | None = None,
    linear: bool = False,
) -> None:
    """Draw runs as a picture."""
    _check_axes(chart, metric, cost, linear)
    out, metric, cost = out or Path(f"{chart}.svg"), metric or "accuracy", cost or "bytes"
    _check_out(out)
    if out.suffix[1:] not in FORMATS:
        raise ConfigError(f"--out '{out}': a file that ends in {', '.join('.' + name for name in FORMATS)} is allowed")
    found = gather(find_runs(runs), course=RUN_COSTS)["runs"]
    scale: Scale = "linear" if linear else "log"
    if chart == "bytes":
        traffic(found, out)
    elif chart == "pareto":
        pareto(_having(metric, found), out, cost=cost, scale=scale)
    else:
        draw_curves(_having(metric, found), out, metric=metric, cost=cost, scale=scale)
    say(f"The picture is {out}")


def _check_axes(chart: str, metric: str | None, cost: str | None, linear: bool) -> None:
    if chart not in CHARTS:
        raise unknown_name("chart", chart, CHARTS)
    if chart != "curves" and metric is not None:
        raise ConfigError(f"--show {metric}: curves can show it; --chart {chart} has no choice")
    if chart == "bytes" and (cost is not None or linear):
        raise ConfigError("--against and --linear: curves and pareto have such an axis; --chart bytes has none")
    if cost is not None and cost not in COSTS:
        raise unknown_name("cost", cost, COSTS)


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
