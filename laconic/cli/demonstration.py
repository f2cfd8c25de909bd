"""Runs a real federation on one machine: a SuperLink and SuperNodes with TLS and keys. Needs the extra `flower`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laconic.cli.console import say
from laconic.cli.new_app import write_app
from laconic.cli.view import LiveView
from laconic.core.errors import ConfigError, LaconicError
from laconic.flower.local_federation import LocalFederation
from laconic.report.page import report as write_report
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.files import load_tensors
from laconic.run.labels import split_label
from laconic.run.records import TROUBLES, metrics_of, troubles

POLL_SECONDS = 0.5
STATUS_SECONDS = 10.0
"""Seconds between two checks of Flower's status of the run."""


def demonstrate(folder: Path, nodes: int, settings: Mapping[str, Any], view: LiveView) -> dict[str, Any]:
    """Train on nodes on this machine, and write the report; returns the object that `--json` prints."""
    if folder.exists():
        raise ConfigError(f"out = '{folder}': exists already; choose another --out")
    config = _checked(nodes, settings)
    folder = folder.resolve()  # Flower's processes have other working directories
    folder.mkdir(parents=True)
    write_app(folder / "app", nodes)
    run = RunDirectory(folder / "run")
    say(f"starting a SuperLink and {nodes} SuperNodes in {folder}", view.console)
    with LocalFederation(folder, nodes) as federation:
        say(f"all are running; the run is in {run.path}", view.console)
        # Rounds are few and slow, so every one is evaluated.
        names = {"dataset": config.dataset, "partition": config.partition or "natural", "model": config.model}
        number = federation.run(folder / "app", {**settings, **names, "eval-every": 1, "out": str(run.path)})
        view.begin(int(settings["rounds"]))
        try:
            _follow(federation, run, number, view)
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
    """The resolved config. Building a simulation reports wrong settings before any process is started."""
    others = {key: value for key, value in settings.items() if key != "algorithm"}
    config = load_config(None, split_label(str(settings["algorithm"])), {"clients": nodes}, others)
    simulation = config.build()
    try:
        return config.resolved(simulation)
    finally:
        simulation.close()


def _follow(federation: LocalFederation, run: RunDirectory, number: int, view: LiveView) -> None:
    """Show rounds as the server writes them, until the model is written."""
    shown = 0
    checked = time.monotonic()
    reported: set[str] = set()
    while True:
        finished = run.model.exists()
        records = read_metrics(run.metrics)
        for record in records[shown:]:
            view.show(record)
        shown = len(records)
        if finished:
            return
        dead = federation.dead()
        _check_alive(federation, dead, begun=bool(records))
        for name in sorted(dead.keys() - reported):
            say(f"{name} has ended ({dead[name]}); the others continue", view.console)
        reported |= dead.keys()
        if time.monotonic() - checked > STATUS_SECONDS:
            checked = time.monotonic()
            status = federation.status(number)
            if status.startswith("finished") and not run.model.exists():
                raise LaconicError(
                    f"the run is {status}; see `superlink.log` and `prefork.log` in '{federation.folder}'"
                )
        time.sleep(POLL_SECONDS)


def _check_alive(federation: LocalFederation, dead: Mapping[str, int], *, begun: bool) -> None:
    """Raise if a required process has ended: the SuperLink, the last node, or any node before the first round."""
    nodes = {name for name in dead if name.startswith("node-")}
    fatal = dead.keys() - nodes
    if nodes and (not begun or len(nodes) == federation.nodes):
        fatal = {*dead}
    if fatal:
        name = min(fatal)
        ended = ", ".join(f"{process} has ended ({dead[process]})" for process in sorted(fatal))
        raise LaconicError(f"{ended}; see `{name}.log` in '{federation.folder}'")
