"""The short way in Python: one call from an algorithm, a model and data to a result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.progress import Progress
from torch import nn

from laconic import data as data_sets
from laconic import models
from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, Interrupted, unknown_name
from laconic.core.task import Task
from laconic.core.validation import explain
from laconic.data.federated import ClientData
from laconic.data.supplied import Pair
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.driver import Outcome, carry_out
from laconic.run.labels import split_label
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task
from laconic.run.training import Record, Result


def simulate(
    algorithm: Algorithm | str,
    model: Task | nn.Module | Callable[[], nn.Module] | str,
    data: ClientData | Sequence[Pair] | str,
    *,
    on_round: Callable[[Record], None] | None = None,
    progress: bool = False,
    out: str | PathLike[str] | None = None,
    **settings: Any,
) -> Result:
    """Train one model over many clients in this process.

    `algorithm` is an `Algorithm`, or a recipe as `laconic compare` writes it ("fed_cams:compressor=sign"); `model` a `Task`,
    a module, a function that builds one (its weights then follow from the seed) or a model's name; `data` a data set, one
    pair of arrays (inputs, targets) for each client, or a name. Settings are those of `Settings`: rounds, participants,
    seed, eval_every, and so on. `progress=True` shows the rounds as they go by, in a notebook too; `on_round` is called with
    the record of each. `out="runs/mine"` writes the directory that `laconic run` writes, for `laconic report`, `plot` and
    `watch`; its config.toml can be run again where algorithm, model and data have names of ours. Ctrl-C then waits for the
    end of the round.

    >>> import laconic
    >>> result = laconic.simulate("fed_avg", "logistic", "digits", rounds=3, participants=5)
    >>> len(result.history), result.ledger.bytes("up")
    (3, 39450)
    """
    for key in settings:
        if key not in Settings.model_fields:
            raise unknown_name("setting", key, Settings.model_fields)
    recipe, checked = _labeled(algorithm, settings) if isinstance(algorithm, str) else (algorithm, _checked(settings))
    if isinstance(data, str):
        clients: ClientData = data_sets.load(data, seed=checked.seed)
    else:
        clients = data if isinstance(data, ClientData) else data_sets.from_arrays(data)
    simulation = Simulation(recipe, _task(model, clients, checked.seed), clients, checked)
    names: dict[str, Any] = {
        "algorithm": recipe.name,
        "dataset": data if isinstance(data, str) else getattr(clients, "name", "own"),
        # How data that is given whole was divided is not known; a name that no config takes says so.
        "partition": None if isinstance(data, str) else "own",
        "model": _name(model),
    }
    config = RunConfig(**names)
    watcher = _Shown(on_round, progress)
    if out is not None:
        try:
            return carry_out(simulation, config, RunDirectory(Path(out)), watcher, recipe.name, more=True)[1]
        except Interrupted as stop:
            # As without `out`: a script that catches exceptions to go on is stopped all the same.
            raise KeyboardInterrupt(f"stopped after round {stop.done}; saved in '{out}'") from None
    history = []
    outcome: Outcome = "failed"
    try:
        watcher.start(recipe.name, config, simulation, 0)
        for record in simulation.rounds():
            history.append(record)
            watcher.update(record)
        outcome = "finished"
        return simulation.result(history)
    finally:
        watcher.finish(outcome)
        simulation.close()


class _Shown:
    """A bar, if one is wanted, and the person's own function."""

    def __init__(self, on_round: Callable[[Record], None] | None, progress: bool) -> None:
        self.on_round = on_round
        self.bar = Progress(disable=not progress)

    def start(self, label: str, config: RunConfig, simulation: Simulation, done: int) -> None:
        """See `Watcher`."""
        self.bar.start()
        self.task = self.bar.add_task(label, total=simulation.settings.rounds, completed=done)

    def update(self, record: Record) -> None:
        """See `Watcher`."""
        self.bar.update(self.task, completed=record["round"])
        if self.on_round:
            self.on_round(record)

    def stopping(self) -> None:
        """See `Watcher`."""
        print("finishing this round, then saving", file=sys.stderr)

    def finish(self, outcome: Outcome) -> None:
        """See `Watcher`."""
        self.bar.stop()


def _name(model: Task | nn.Module | Callable[[], nn.Module] | str) -> str:
    """What a model is called in a config; only a name can be run again."""
    if isinstance(model, str):
        return model
    model = model.module if isinstance(model, Task) else model
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def _checked(settings: dict[str, Any]) -> Settings:
    try:
        return Settings(**settings)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _labeled(label: str, settings: dict[str, Any]) -> tuple[Algorithm, Settings]:
    """The algorithm of a label, and the settings, where the label's own win, as in `laconic compare`."""
    config = load_config(None, settings, split_label(label))
    for key in ("dataset", "partition", "clients", "model", "data_dir"):
        if key in config.model_fields_set:
            raise ConfigError(f"'{label}': {key} is not the algorithm's; give data and model to simulate itself")
    return config.build_algorithm(), config.settings()


def _task(model: Task | nn.Module | Callable[[], nn.Module] | str, clients: ClientData, seed: int) -> Task:
    if isinstance(model, Task):
        return model
    if callable(model) and not isinstance(model, nn.Module):
        model = initial_module(model, seed)
    if isinstance(model, str):
        name, outputs = model, clients.classes or 1
        model = initial_module(lambda: models.build(name, clients.input_shape, outputs), seed)
    return make_task(model, clients)
