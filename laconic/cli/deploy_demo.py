"""The command deploy-demo."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from laconic.cli.console import say, stderr
from laconic.cli.output import new_directory, print_json
from laconic.cli.training import and_report
from laconic.cli.view import LiveView
from laconic.core.counts import counted
from laconic.core.errors import missing_extra
from laconic.report.units import size


def deploy_demo(
    nodes: int,
    rounds: int,
    algorithm: str,
    dataset: str,
    partition: str | None,
    model: str | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Train on a real federation on this machine, and print the result."""
    try:
        from laconic.cli.demonstration import demonstrate  # late: needs the extra flower
    except ImportError as error:
        raise missing_extra(f"deploy-demo needs the extra flower ({error})", "flower") from None
    settings = {"algorithm": algorithm, "rounds": rounds, "dataset": dataset, "partition": partition, "model": model}
    directory = out or new_directory("deploy-demo", dataset)
    with ended_by_signals():
        summary = demonstrate(directory, nodes, settings, LiveView(stderr))
    if as_json:
        print_json(summary)
        return
    accuracy = "" if summary["accuracy"] is None else f"accuracy {100 * summary['accuracy']:.2f} %, "
    traffic = f"{size(summary['bytes_up'])} up and {size(summary['bytes_down'])} down"
    say(f"{algorithm} on {counted(nodes, 'node')}: {accuracy}{traffic} in {counted(summary['rounds'], 'round')}")
    say(f"The run is in {summary['run_dir']}{and_report(summary['report'])}")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into `SystemExit`, so that `with` blocks end and stop the processes that they started."""

    def leave(number: int, frame: object) -> None:
        for caught in previous:
            signal.signal(caught, signal.SIG_IGN)
        sys.exit(128 + number)

    signals = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, leave) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
