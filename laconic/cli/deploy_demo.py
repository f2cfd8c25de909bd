"""A deployment on one machine, from nothing: a SuperLink, SuperNodes, TLS, keys, a run, and a clean end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laconic.cli.flower_app import write_app
from laconic.cli.view import LiveView
from laconic.core.errors import ConfigError, LaconicError
from laconic.report.page import report as write_report
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, load_tensors, read_metrics
from laconic.run.labels import split_label
from laconic.run.training import TROUBLES, metrics_of, troubles

if TYPE_CHECKING:
    from laconic.flower.trial import Trial

LOOK_EVERY = 0.5
ASK_EVERY = 10.0
"""Seconds between two questions to Flower whether the run has failed."""


def demonstrate(folder: Path, nodes: int, settings: Mapping[str, Any], view: LiveView) -> dict[str, Any]:
    """Train on real nodes of this machine, and write the report; returns the numbers that `--json` promises."""
    try:
        from laconic.flower.trial import Trial
    except ImportError as error:
        how = "in the folder of the clone, pip install -e '.[flower]'"
        raise ConfigError(f"deploy-demo needs the extra flower: {how} ({error})") from None
    if folder.exists():
        raise ConfigError(f"out = '{folder}': exists already; choose another --out")
    config = _checked(nodes, settings)
    folder = folder.resolve()  # its processes run in other folders
    folder.mkdir(parents=True)
    write_app(folder / "app", nodes)
    run = RunDirectory(folder / "run")
    view.console.print(f"starting a SuperLink and {nodes} SuperNodes in {folder}", highlight=False, soft_wrap=True)
    with Trial(folder, nodes) as trial:
        view.console.print(f"they are up; the run is in {run.path}", highlight=False, soft_wrap=True)
        # Evaluated in every round: a person who watches a few slow rounds sees what they do.
        names = {"dataset": config.dataset, "partition": config.partition or "natural", "model": config.model}
        number = trial.run(folder / "app", {**settings, **names, "eval-every": 1, "out": str(run.path)})
        view.begin(int(settings["rounds"]))
        try:
            _follow(trial, run, number, view)
        finally:
            view.end()
    page = run.path / "report.html"
    write_report([run.path], page)
    history = read_metrics(run.metrics)
    _, numbers = load_tensors(run.model)
    found = next((metrics_of(record) for record in reversed(history) if metrics_of(record)), {})
    totals = ("bytes_up", "bytes_down", "paper_bits_up", "paper_bits_down", "gradients", "samples", "seconds")
    return {
        "algorithm": str(settings["algorithm"]).partition(":")[0],
        "label": settings["algorithm"],
        "dataset": config.dataset,
        "model": config.model,
        "nodes": nodes,
        "rounds": len(history),
        "accuracy": found.get("accuracy"),
        "loss": found.get("loss"),
        **{name: history[-1][name] for name in totals},
        **dict.fromkeys(TROUBLES, 0),
        **troubles(history),
        "epsilon": history[-1].get("epsilon"),
        "model_sha256": numbers["sha256"],
        "run_dir": str(run.path),
        "report": str(page),
    }


def _checked(nodes: int, settings: Mapping[str, Any]) -> RunConfig:
    """The config in full. What a simulation refuses, the federation would, too, but only after everything has started."""
    said = {key: value for key, value in settings.items() if key != "algorithm"}
    config = load_config(None, split_label(str(settings["algorithm"])), {"clients": nodes}, said)
    simulation = config.build()
    try:
        return config.resolved(simulation)
    finally:
        simulation.close()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Whoever ends this process ends what it has started: `with` blocks are left on the way, and nothing cuts that short."""

    def leave(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    caught = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN]
    before = {each: signal.signal(each, leave) for each in caught}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _follow(trial: Trial, run: RunDirectory, number: int, view: LiveView) -> None:
    """Show rounds as the server writes them down, until the model is there."""
    shown = 0
    asked = time.monotonic()
    missed: set[str] = set()
    while True:
        finished = run.model.exists()
        records = read_metrics(run.metrics)
        for record in records[shown:]:
            view.show(record)
        shown = len(records)
        if finished:
            return
        dead = trial.dead()
        _complain(trial, dead, begun=bool(records))
        for name in sorted(dead.keys() - missed):
            said = f"{name} has ended ({dead[name]}); the others go on"
            view.console.print(said, highlight=False, soft_wrap=True)
        missed |= dead.keys()
        if time.monotonic() - asked > ASK_EVERY:
            asked = time.monotonic()
            status = trial.status(number)
            if status.startswith("finished") and not run.model.exists():
                raise LaconicError(f"the run is {status}; `superlink.log` and `warm.log` in '{trial.folder}' say why")
        time.sleep(LOOK_EVERY)


def _complain(trial: Trial, dead: Mapping[str, int], *, begun: bool) -> None:
    """A federation lives without some of its nodes, once it has begun, but not without all, nor without its SuperLink."""
    nodes = {name for name in dead if name.startswith("node-")}
    fatal = dead.keys() - nodes
    if nodes and (not begun or len(nodes) == trial.nodes):
        fatal = {*dead}
    if fatal:
        name = min(fatal)
        what = ", ".join(f"{each} has ended ({dead[each]})" for each in sorted(fatal))
        raise LaconicError(f"{what}; `{name}.log` in '{trial.folder}' says why")
