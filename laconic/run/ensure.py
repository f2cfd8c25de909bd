"""A run that has to be there: one that is finished is only read, one that was stopped goes on, else it is started."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from laconic.data.federated import ClientData
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory, read_metrics
from laconic.run.driver import Watcher, drive
from laconic.run.training import Diverged, Record


class Trial(NamedTuple):
    """What a run has come to."""

    records: list[Record]
    """Of every round up to the one that was asked for."""
    diverged: bool


def ensure(
    config: RunConfig, directory: Path, watcher: Watcher, label: str | None = None, data: ClientData | None = None
) -> Trial:
    """The rounds of a run, up to those that the config asks for; a shorter run is made longer, a diverged one is left."""
    folder = RunDirectory(directory)
    records = read_metrics(folder.metrics)
    diverged = folder.diverged.exists()
    if not diverged and not (folder.model.exists() and len(records) >= config.rounds):
        wanted = load_config(None, {"rounds": max(config.rounds, len(records))}) if folder.exists() else config
        try:
            drive(wanted, directory, watcher, resume=folder.exists(), label=label, data=data, more=True)
        except Diverged:
            diverged = True
        records = read_metrics(folder.metrics)
    return Trial([record for record in records if record["round"] <= config.rounds], diverged)
