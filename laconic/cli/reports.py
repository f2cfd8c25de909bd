"""The commands report, watch and plot."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from laconic.cli.console import say, stderr
from laconic.cli.output import check_file
from laconic.core.errors import ConfigError, unknown_name
from laconic.report.figure import STYLES, Scale
from laconic.report.gather import TASK, entitle, find_runs, gather
from laconic.report.live import serve
from laconic.report.page import report as write_report
from laconic.report.plot import CHARTS, COSTS, FORMATS, pareto, traffic
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
    target: Target | None = None,
    dataset: str | None = None,
    style: str = "screen",
) -> None:
    """Plot runs to an image file."""
    _check_axes(chart, metric, cost, linear or target is not None)
    if style not in STYLES:
        raise unknown_name("style", style, STYLES)
    out, metric, cost = out or Path(f"{chart}.svg"), metric or "accuracy", cost or "bytes"
    check_file(out)
    if out.suffix[1:] not in FORMATS:
        raise ConfigError(f"--out '{out}': a file that ends in {', '.join('.' + name for name in FORMATS)} is allowed")
    found = gather(find_runs(runs), course=RUN_COSTS)
    _say_skipped(found["unreadable"])
    gathered = _on_one_dataset(found["runs"], dataset)
    scale: Scale = "linear" if linear else "log"
    if chart == "bytes":
        traffic(gathered, out, style)
    elif chart == "pareto":
        pareto(_with_metric(metric, gathered), out, cost=cost, scale=scale, target=target, style=style)
    else:
        shown = _with_metric(metric, gathered)
        draw_curves(shown, out, metric=metric, cost=cost, scale=scale, target=target, style=style)
    say(f"The plot is {out}")


def _check_axes(chart: str, metric: str | None, cost: str | None, more: bool) -> None:
    if chart not in CHARTS:
        raise unknown_name("chart", chart, CHARTS)
    if chart != "curves" and metric is not None:
        raise ConfigError(f"--show {metric}: only with --chart curves, not with --chart {chart}")
    if chart == "bytes" and (cost is not None or more):
        raise ConfigError(
            "--against, --linear and --target: only with --chart curves or pareto, not with --chart bytes"
        )
    if cost is not None and cost not in COSTS:
        raise unknown_name("cost", cost, COSTS)


def _on_one_dataset(runs: list[Table], dataset: str | None) -> list[Table]:
    """The runs on a data set, named in full or by its file. Unlike data never share a chart."""
    names = dict.fromkeys(str(run["settings"]["dataset"]) for run in runs)
    chosen = [name for name in names if dataset in (None, name, Path(name).name)]
    if not chosen and dataset is not None:
        raise unknown_name("data set", dataset, names)
    if len(chosen) > 1:
        raise ConfigError(f"the runs are on several data sets; choose one with --dataset: {', '.join(names)}")
    kept = [run for run in runs if run["settings"]["dataset"] in chosen]
    differing = [key for key in TASK if len({str(run["settings"].get(key)) for run in kept}) > 1]
    if differing:
        say(f"warning: the runs differ in {' and '.join(differing)}: their costs are not comparable", stderr)
        # Labels that tell apart what shares the chart.
        return entitle(kept, task=("dataset",))
    return kept


def _with_metric(metric: str, runs: list[Table]) -> list[Table]:
    """The runs that have the metric."""
    metrics = {id(run): {*run["metrics"], *run["course"]} - {"round", "participants", *RUN_COSTS} for run in runs}
    known = set().union(*metrics.values())
    if not known:
        raise ConfigError(f"'{runs[0]['path']}': diverged in its first round; there is nothing to plot")
    if metric not in known:
        raise unknown_name("metric", metric, known)
    return [run for run in runs if metric in metrics[id(run)]]
