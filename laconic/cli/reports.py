"""The commands report, watch and plot."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from laconic.cli.console import say
from laconic.cli.output import check_file
from laconic.core.errors import ConfigError, unknown_name
from laconic.report.gather import find_runs, gather
from laconic.report.live import serve
from laconic.report.page import report as write_report
from laconic.report.plot import CHARTS, COSTS, FORMATS, Scale, pareto, traffic
from laconic.report.plot import plot as draw_curves
from laconic.report.reading import COSTS as RUN_COSTS
from laconic.report.reading import Table
from laconic.run.target import Target


def report(runs: list[Path], out: Path, target: Target | None, rank_by: str, show: bool) -> None:
    """Write an HTML report about runs."""
    check_file(out)
    _say_skipped(write_report(runs, out, target, rank_by))
    say(f"The report is {out}")
    if show:
        webbrowser.open(out.resolve().as_uri())


def _say_skipped(unreadable: dict[str, str]) -> None:
    for path, reason in unreadable.items():
        say(f"skipped '{path}', which cannot be read: {reason}")


def watch(folder: Path, port: int, host: str, show: bool) -> None:
    """Serve a page that shows runs live, until Ctrl-C."""
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"'{folder}': is a file; a directory is needed")
    if not 0 <= port < 2**16:
        raise ConfigError(f"--port {port}: a number from 0 to 65535 is allowed")
    server = serve(folder, host, port)
    missing = "" if folder.is_dir() else ", which does not exist yet,"
    say(f"Watching {folder}{missing} at {server.address} (Ctrl-C ends it)")
    if show:
        webbrowser.open(server.address)
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
    """Plot runs to an image file."""
    _check_axes(chart, metric, cost, linear)
    out, metric, cost = out or Path(f"{chart}.svg"), metric or "accuracy", cost or "bytes"
    check_file(out)
    if out.suffix[1:] not in FORMATS:
        raise ConfigError(f"--out '{out}': a file that ends in {', '.join('.' + name for name in FORMATS)} is allowed")
    found = gather(find_runs(runs), course=RUN_COSTS)
    _say_skipped(found["unreadable"])
    gathered: list[Table] = found["runs"]
    scale: Scale = "linear" if linear else "log"
    if chart == "bytes":
        traffic(gathered, out)
    elif chart == "pareto":
        pareto(_with_metric(metric, gathered), out, cost=cost, scale=scale)
    else:
        draw_curves(_with_metric(metric, gathered), out, metric=metric, cost=cost, scale=scale)
    say(f"The plot is {out}")


def _check_axes(chart: str, metric: str | None, cost: str | None, linear: bool) -> None:
    if chart not in CHARTS:
        raise unknown_name("chart", chart, CHARTS)
    if chart != "curves" and metric is not None:
        raise ConfigError(f"--show {metric}: only with --chart curves, not with --chart {chart}")
    if chart == "bytes" and (cost is not None or linear):
        raise ConfigError("--against and --linear: only with --chart curves or pareto, not with --chart bytes")
    if cost is not None and cost not in COSTS:
        raise unknown_name("cost", cost, COSTS)


def _with_metric(metric: str, runs: list[Table]) -> list[Table]:
    """The runs that have the metric."""
    metrics = {id(run): {*run["metrics"], *run["course"]} - {"round", "participants", *RUN_COSTS} for run in runs}
    known = set().union(*metrics.values())
    if not known:
        raise ConfigError(f"'{runs[0]['path']}': diverged in its first round; there is nothing to plot")
    if metric not in known:
        raise unknown_name("metric", metric, known)
    return [run for run in runs if metric in metrics[id(run)]]
