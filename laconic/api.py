"""`simulate`: train a model with one call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, cast

from pydantic import ValidationError
from torch import nn
from torch.utils.data import Dataset

from laconic import data as data_sets
from laconic import models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.parameters import Changes
from laconic.core.errors import ConfigError, Interrupted, unknown_name
from laconic.core.part import SLOTS
from laconic.core.task import Task
from laconic.core.validation import explain
from laconic.data.arrays import Pair
from laconic.data.federated import ClientData
from laconic.run.callbacks import Callback, EachRound, ProgressBar
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.keywords import SettingsKeywords
from laconic.run.labels import split_label
from laconic.run.loop import run_training
from laconic.run.settings import Settings
from laconic.run.simulation import Simulation, initial_module, make_task
from laconic.run.training import Record, Result


class SimulateKeywords(SettingsKeywords, Changes, total=False):
    """The settings of a run, and parameters and parts of its algorithm."""


def simulate(
    algorithm: Algorithm | Callable[[], Algorithm] | str,
    model: Task | nn.Module | Callable[[], nn.Module] | str,
    data: ClientData | Sequence[Pair] | Sequence[Dataset[Any]] | Mapping[str, Any] | str,
    *,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    on_round: Callable[[Record], None] | None = None,
    out: str | PathLike[str] | None = None,
    **settings: Unpack[SimulateKeywords],
) -> Result:
    """Train a model over many simulated clients in this process.

    Args:
        algorithm: An `Algorithm`, a recipe such as `laconic.fed_avg`, or a label such as "fed_cams:compressor=sign".
        model: A `Task`, a module, a function that builds one (its initial weights then depend on the seed), or a name.
        data: A data set's name, or clients: a `ClientData`, or a list with one pair of arrays (inputs, targets) or one data
            set of torch or Hugging Face per client; or a `DatasetDict`, or partitions of Flower Datasets.
        callbacks: Objects that are notified of the run's progress and may stop it. See `Callback`.
        progress: Whether to show a progress bar, in a terminal or a notebook.
        on_round: A function that is called with the record of each round.
        out: The run directory, such as "runs/mine", for `laconic report`, `plot` and `watch`. Its config.toml can be run
            again if algorithm, model and data are given by name. With a run directory, Ctrl-C stops after the current
            round and saves it.
        settings: Fields of `Settings`, such as rounds, participants, seed and eval_every, and parameters of the algorithm,
            such as local_lr.

    >>> import laconic
    >>> result = laconic.simulate("fed_avg", "logistic", "digits", rounds=3, participants=5)
    >>> len(result.history), result.ledger.bytes("up")
    (3, 39225)
    """
    recipe, checked = _configured(algorithm, settings)
    clients = data_sets.load(data, seed=checked.seed) if isinstance(data, str) else data_sets.as_data(data)
    simulation = Simulation(recipe, _task(model, clients, checked.seed), clients, checked)
    names: dict[str, Any] = {
        "algorithm": recipe.name,
        "dataset": data if isinstance(data, str) else getattr(clients, "name", "own"),
        # The partition of data that is passed as an object is unknown. No config accepts "own".
        "partition": None if isinstance(data, str) else "own",
        "model": _name(model),
    }
    directory = None if out is None else RunDirectory(Path(out))
    builtin = [ProgressBar(shown=progress), EachRound(_warn_of_collapse), *([EachRound(on_round)] if on_round else [])]
    try:
        return run_training(simulation, RunConfig(**names), directory, [*builtin, *callbacks], more=True)
    except Interrupted as stop:
        # KeyboardInterrupt, as without `out`: a script that catches `Exception` must stop, too.
        raise KeyboardInterrupt(f"stopped after round {stop.done}; saved in '{out}'") from None


def _warn_of_collapse(record: Record) -> None:
    if "collapsed" in record:
        warnings.warn(record["collapsed"], stacklevel=2)


def _name(model: Task | nn.Module | Callable[[], nn.Module] | str) -> str:
    """The model's name in the config. Only a config with a registered name can be run again."""
    if isinstance(model, str):
        return model
    model = model.module if isinstance(model, Task) else model
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def _checked(settings: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**settings)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _configured(
    algorithm: Algorithm | Callable[[], Algorithm] | str, keywords: Mapping[str, Any]
) -> tuple[Algorithm, Settings]:
    """The algorithm with the parameters among the keywords, and the settings. A label takes precedence over keywords."""
    settings = {key: value for key, value in keywords.items() if key in Settings.model_fields}
    changes = {key: value for key, value in keywords.items() if key not in Settings.model_fields}
    if isinstance(algorithm, str):
        changes = {key: value for key, value in changes.items() if key not in split_label(algorithm)}
        recipe, checked = _labeled(algorithm, settings)
    else:
        recipe, checked = algorithm if isinstance(algorithm, Algorithm) else algorithm(), _checked(settings)
    for key in changes:
        if key not in SLOTS and not recipe.owners(key):
            parameters = {name for part in recipe.parts().values() for name in part.parameters()}
            raise unknown_name("setting", key, [*Settings.model_fields, *parameters])
    return recipe.replace(**cast(Changes, changes)), checked


def _labeled(label: str, settings: Mapping[str, Any]) -> tuple[Algorithm, Settings]:
    config = load_config(None, settings, split_label(label))
    for key in ("dataset", "partition", "clients", "model", "data_dir", "augment", "skip_empty"):
        if key in config.model_fields_set:
            raise ConfigError(f"'{label}': {key} does not belong to the algorithm; pass data and model to simulate")
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
