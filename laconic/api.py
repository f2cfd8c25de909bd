"""The short way in Python: one call from an algorithm, a model and data to a result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

from pydantic import ValidationError
from torch import nn

from laconic import data as data_sets
from laconic import models
from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, Interrupted, unknown_name
from laconic.core.task import Task
from laconic.core.validation import explain
from laconic.data.federated import ClientData
from laconic.data.supplied import Pair
from laconic.run.callbacks import Callback, EachRound, ProgressBar
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.keywords import SettingsKeywords
from laconic.run.labels import split_label
from laconic.run.loop import run
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task
from laconic.run.training import Record, Result


def simulate(
    algorithm: Algorithm | str,
    model: Task | nn.Module | Callable[[], nn.Module] | str,
    data: ClientData | Sequence[Pair] | str,
    *,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    on_round: Callable[[Record], None] | None = None,
    out: str | PathLike[str] | None = None,
    **settings: Unpack[SettingsKeywords],
) -> Result:
    """Train one model over many clients in this process.

    Args:
        algorithm: An `Algorithm`, or a recipe as `laconic compare` writes it: "fed_cams:compressor=sign".
        model: A `Task`, a module, a function that builds one (its weights then follow from the seed), or a model's name.
        data: A data set, one pair of arrays (inputs, targets) for each client, or a data set's name.
        callbacks: What is told about the run, and may end it: see `Callback`.
        progress: Whether to show a bar over the rounds, in a notebook too.
        on_round: A function that is called with the record of each round.
        out: The run's directory, such as "runs/mine", as `laconic run` writes it, for `laconic report`, `plot` and `watch`.
            Its config.toml can be run again if algorithm, model and data are given by name. Ctrl-C then waits for the end
            of the round.
        settings: Those of `Settings`: rounds, participants, seed, eval_every, and so on.

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
    directory = None if out is None else RunDirectory(Path(out))
    shown = [ProgressBar(shown=progress), *([EachRound(on_round)] if on_round else [])]
    try:
        return run(simulation, RunConfig(**names), directory, [*shown, *callbacks], label=recipe.name, more=True)
    except Interrupted as stop:
        # As without `out`: a script that catches exceptions to go on is stopped all the same.
        raise KeyboardInterrupt(f"stopped after round {stop.done}; saved in '{out}'") from None


def _name(model: Task | nn.Module | Callable[[], nn.Module] | str) -> str:
    """What a model is called in a config; only a name can be run again."""
    if isinstance(model, str):
        return model
    model = model.module if isinstance(model, Task) else model
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def _checked(settings: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**settings)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _labeled(label: str, settings: Mapping[str, Any]) -> tuple[Algorithm, Settings]:
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
