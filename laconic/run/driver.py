"""A run from its config to its directory: started, watched, interrupted, resumed, finished."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel

from laconic.compression import parse_compressor
from laconic.core.errors import ConfigError, Interrupted
from laconic.data.federated import ClientData, FederatedData
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.simulation import Simulation
from laconic.run.target import Reached, reached
from laconic.run.training import TROUBLES, Diverged, Record, Result, troubles

FREE_TO_CHANGE = {"rounds", "eval_every", "threads", "chunk", "store_cache", "data_dir", "ray.address", "ray.repeat"}
"""What may differ when a run is resumed: none of it changes a round that was already run."""


SHOWN_CLIENTS = 100
"""How many clients' labels a report shows."""


Outcome = Literal["finished", "stopped", "diverged", "failed"]
"""How a run has ended: all its rounds are there, a person has stopped it, its numbers are not finite, or an error."""


class Watcher(Protocol):
    """Whoever shows a run while it goes on."""

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """A run is about to start, or to go on after `done` rounds."""

    def update(self, record: Record) -> None:
        """A round is over."""

    def stopping(self) -> None:
        """A person has asked to stop: the round at hand is still finished."""

    def finish(self, outcome: Outcome) -> None:
        """The run is over, or was broken off."""


@dataclass(frozen=True)
class Finished:
    """A run that has come to its end."""

    label: str
    config: RunConfig
    result: Result
    directory: Path
    target: float | None = None

    @property
    def reached(self) -> Reached | None:
        """When the target was reached, if there is one and it was."""
        return None if self.target is None else reached(self.result.history, self.target)

    @property
    def simulated_seconds(self) -> float | None:
        """What the messages took, where the network is simulated."""
        found: float | None = self.result.history[-1].get("simulated_seconds")
        return found

    def summary(self) -> dict[str, Any]:
        """The numbers of the run under the names that `--json` promises."""
        result, at = self.result, self.reached
        return {
            "algorithm": self.config.algorithm,
            "label": self.label,
            "dataset": self.config.dataset,
            "model": self.config.model,
            "rounds": len(result.history),
            "accuracy": result.accuracy,
            "loss": result.loss,
            **result.ledger.totals(),
            "seconds": round(result.seconds, 3),
            "simulated_seconds": self.simulated_seconds,
            **dict.fromkeys(TROUBLES, 0),
            **troubles(result.history),
            "epsilon": result.history[-1].get("epsilon"),
            "model_sha256": result.model_sha256,
            "run_dir": str(self.directory),
            "target": self.target,
            "rounds_to_target": at and at.rounds,
            "bytes_to_target": at and at.bytes,
            "seconds_to_target": at and at.seconds,
            "simulated_seconds_to_target": at and at.simulated_seconds,
        }


def drive(
    config: RunConfig,
    directory: Path,
    watcher: Watcher,
    *,
    resume: bool = False,
    label: str | None = None,
    target: float | None = None,
    data: ClientData | None = None,
    more: bool = False,
) -> Finished:
    """Run a config to its end in a directory of its own; nothing is written before everything is checked.

    `more`: others are to follow, so that a person who asks to stop in the last round means them.
    """
    folder = RunDirectory(directory)
    if resume and folder.exists():
        config = _continued(config, load_config(folder.config, {}), directory)
    label = label or config.algorithm
    resolved, result = carry_out(config.build(data), config, folder, watcher, label, resume=resume, more=more)
    return Finished(label, resolved, result, directory, target)


def carry_out(
    simulation: Simulation,
    config: RunConfig,
    folder: RunDirectory,
    watcher: Watcher,
    label: str,
    *,
    resume: bool = False,
    more: bool = False,
) -> tuple[RunConfig, Result]:
    """All rounds of a simulation, written down as they go by; returns the config with every choice, and the result."""
    outcome: Outcome = "failed"
    try:
        resolved = config.resolved(simulation)
        if resume and folder.exists():
            history = folder.resume(simulation, resolved.to_toml())
        else:
            folder.create(simulation, resolved.to_toml())
            history = []
        clients = simulation.data
        if isinstance(clients, FederatedData) and clients.kind == "classification" and not folder.label_counts.exists():
            folder.save_label_counts(clients.label_counts()[:SHOWN_CLIENTS])
        watcher.start(label, resolved, simulation, len(history))
        with _polite_stop(watcher) as stopping:
            for record in simulation.rounds():
                history.append(record)
                folder.append(record)
                watcher.update(record)
                if stopping() and record["round"] < simulation.settings.rounds:
                    folder.save_checkpoint(simulation)
                    raise KeyboardInterrupt
                if folder.checkpoint_due():
                    folder.save_checkpoint(simulation)
        folder.save_checkpoint(simulation)
        folder.save_model(simulation)
        folder.diverged.unlink(missing_ok=True)
        if simulation.full_gradient is not None and simulation.full_gradient.similarity is not None:
            title = f"{resolved.dataset}, {resolved.partition or 'natural'}, round {simulation.server.round}"
            folder.save_similarity(simulation.full_gradient.similarity, title)
        outcome = "finished"
        if more and stopping():
            raise Interrupted(folder.path, folder.saved)
        return resolved, simulation.result(history)
    except KeyboardInterrupt:
        outcome = "stopped"
        raise Interrupted(folder.path, folder.saved) from None
    except Diverged as error:
        outcome = "diverged"
        folder.diverged.touch()
        raise Diverged(f"{error} (the run is in '{folder.path}')") from error
    finally:
        watcher.finish(outcome)
        simulation.close()


def _continued(wanted: RunConfig, stored: RunConfig, directory: Path) -> RunConfig:
    """What was said again must be what the run was started with; what was not said is taken from it."""
    for name in sorted(wanted.model_fields_set - FREE_TO_CHANGE):
        then = _settings(name, getattr(stored, name))
        for key, now in _settings(name, getattr(wanted, name)).items():
            if now != then.get(key) and key not in FREE_TO_CHANGE:
                started = f"the run in '{directory}' was started with {then.get(key)!r}"
                raise ConfigError(f"resume: {key} = {now!r}, but {started}")
    changes = {name: getattr(wanted, name) for name in wanted.model_fields_set & FREE_TO_CHANGE}
    cluster = {key: value for key, value in wanted.ray if f"ray.{key}" in FREE_TO_CHANGE}
    return stored.model_copy(update=changes | {"ray": stored.ray.model_copy(update=cluster)})


def _settings(name: str, value: Any) -> dict[str, Any]:
    """A setting by its key, or those of a table by theirs; `auto` leaves the choice to the run."""
    if isinstance(value, BaseModel):
        value = {key: each for key, each in value.model_dump(exclude_unset=True).items() if each != "auto"}
    elif isinstance(value, dict) and isinstance(value.get("compressor"), str):
        value = value | {"compressor": str(parse_compressor(value["compressor"]))}
    return {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}


@contextmanager
def _polite_stop(watcher: Watcher) -> Iterator[Callable[[], bool]]:
    """Ctrl-C asks for a stop after the round at hand; a second one stops at once."""
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        watcher.stopping()

    try:
        before = signal.signal(signal.SIGINT, ask)
    except ValueError:
        # Not in the main thread: whoever runs us there handles signals.
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)
