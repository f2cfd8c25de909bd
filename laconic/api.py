"""`simulate` and `compare`: train models with one call."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from inspect import signature
from itertools import product
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack, cast

from torch import nn
from torch.utils.data import Dataset

from laconic import data as data_sets
from laconic.algorithms.algorithm import DEFAULT_SLOTS, Algorithm
from laconic.algorithms.parameters import Changes
from laconic.algorithms.precedence import without_own
from laconic.core.errors import ConfigError, Interrupted, KindWarning, unknown_name, warn
from laconic.core.part import SLOTS, parameter_names
from laconic.core.task import Metric, Task
from laconic.core.validation import validated
from laconic.data.arrays import Pair
from laconic.data.federated import ClientData
from laconic.gradients.numerics import Numerics
from laconic.report.comparison import Comparison, Planned, check_files, check_labels, directory_of, run_all
from laconic.run.callbacks import Callback, EachRound, ProgressBar
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.driver import Finished
from laconic.run.keywords import SettingsKeywords
from laconic.run.labels import split_label
from laconic.run.loop import run_training
from laconic.run.records import Record
from laconic.run.resume import check_same
from laconic.run.settings import Settings
from laconic.run.simulation import Model, Simulation, task_of
from laconic.run.target import Target, check_ranking
from laconic.run.training import Result


class SimulateKeywords(SettingsKeywords, Changes, total=False):
    """The settings of a run, and parameters and parts of its algorithm."""


Recipe = Algorithm | Callable[[], Algorithm] | str
Data = ClientData | Sequence[Pair] | Sequence[Dataset[Any]] | Mapping[str, Any] | str


def simulate(
    algorithm: Recipe,
    model: Model,
    data: Data,
    *,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    on_round: Callable[[Record], None] | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    **settings: Unpack[SimulateKeywords],
) -> Result:
    """Train a model over many simulated clients in this process.

    Args:
        algorithm: An `Algorithm`, a recipe such as `laconic.fed_avg`, or a label such as "fed_cams:compressor=sign".
        model: A `Task`, a module, a name, or a function that builds a module or a task. With a function, the initial weights
            depend on the seed.
        data: A data set's name, a `ClientData`, a `DatasetDict`, partitions of Flower Datasets, or a list with one
            entry per client: a pair of arrays (inputs, targets), or a data set of torch or Hugging Face.
        callbacks: Objects that are notified of the run's progress and may stop it. See `Callback`.
        progress: Whether to show a progress bar, in a terminal or a notebook.
        on_round: A function that is called with the record of each round.
        out: The run directory, such as "runs/mine", for `laconic report`, `plot` and `watch`. Its config.toml can be run
            again if algorithm, model and data are given by name. With a run directory, Ctrl-C stops after the current
            round and saves it.
        resume: Whether to continue the run in `out`, if there is one. Pass the same algorithm, model, data and settings
            again; only the number of rounds, and settings that affect only speed, may differ. The result equals that of an
            uninterrupted run, bit for bit.
        settings: Fields of `Settings`, such as rounds, participants, seed and eval_every, and parameters of the algorithm,
            such as local_lr. Values that `algorithm` sets, other than its recipe's defaults, take precedence.

    >>> import laconic
    >>> result = laconic.simulate("fed_avg", "logistic", "digits", rounds=3, participants=5)
    >>> len(result.history), result.ledger.bytes("up")
    (3, 39225)
    """
    if resume and out is None:
        raise ConfigError("resume: name the run's directory, as in out='runs/mine'")
    simulation, config = _build(algorithm, model, data, settings)
    callbacks = [*_builtin(progress), *([EachRound(on_round)] if on_round else []), *_listed(callbacks)]
    try:
        return _run(simulation, config, None if out is None else Path(out), callbacks, resume)
    except Interrupted as stop:
        # KeyboardInterrupt, as without `out`: a script that catches `Exception` must stop, too.
        raise KeyboardInterrupt(f"stopped after round {stop.done}; saved in '{out}'") from None


def compare(
    algorithms: Mapping[str, Recipe] | Sequence[Recipe],
    model: Model,
    data: Data,
    *,
    seeds: int = 1,
    target: float | str | None = None,
    rank_by: str = "bytes",
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    **settings: Unpack[SimulateKeywords],
) -> Comparison:
    """Train with several algorithms on the same data and from the same initial model, and rank them.

    All runs are checked before the first one starts.

    Args:
        algorithms: The algorithms by label, or a list of them, labeled by their names. Each is given as in `simulate`.
        model: As in `simulate`.
        data: As in `simulate`.
        seeds: The number of seeds per algorithm. The table then has means and standard deviations.
        target: A target accuracy, as a fraction, or a value of another metric, as in "f1=0.8". Algorithms are ranked by the
            cost until they reach it.
        rank_by: The cost of reaching the target: "bytes", "rounds", or "time" (simulated network). Or a metric, such as
            "f1": algorithms are ranked by its last value.
        callbacks: As in `simulate`; each is used for one run after the other.
        progress: Whether to show a progress bar for each run.
        out: The folder of the run directories. Default: a temporary folder, which is deleted together with the result.
        resume: Whether to continue the comparison in `out`, if there is one. Finished runs are not repeated. You may
            increase `seeds`.
        settings: As in `simulate`.

    >>> import laconic
    >>> contenders = {"dense": laconic.fed_avg, "signs": laconic.fed_cams(compressor="sign")}
    >>> comparison = laconic.compare(contenders, "logistic", "digits", rounds=3, participants=5)
    >>> comparison["signs"].ledger.bytes("up") < comparison["dense"].ledger.bytes("up") / 10
    True
    """
    if resume and out is None:
        raise ConfigError("resume: name the folder of the comparison, as in out='runs/compared'")
    contenders = _contenders(algorithms, seeds)
    goal = Target.of(target)
    temporary = TemporaryDirectory(prefix="laconic-") if out is None else None
    folder = Path(temporary.name if temporary is not None else os.fspath(out or ""))
    hooks = [*_builtin(progress), *_listed(callbacks)]
    data = data if isinstance(data, str) else _as_data(data, model)
    loaded: dict[int, Data] = {}

    def build(label: str, seed: int) -> tuple[Simulation, RunConfig]:
        if isinstance(data, str) and seed not in loaded:
            loaded[seed] = data_sets.load(data, seed=seed)
        return _build(contenders[label], model, data, {**settings, "seed": seed}, loaded.get(seed), compare)

    def start(label: str, seed: int, directory: Path, more: bool) -> Finished:
        simulation, config = build(label, seed)
        resolved = config.resolved(simulation)
        result = _run(simulation, config, directory, hooks, resume, label=label, more=more)
        return Finished(label, resolved, result, directory, goal)

    first = settings.get("seed", 0)
    runs = [*product(contenders, range(first, first + seeds))]
    planned = [
        Planned(label, directory_of(folder, label, seed if seed > first else None), partial(start, label, seed))
        for label, seed in runs
    ]
    check_files(planned, resume, hooks)
    networks = []
    for label, seed in runs:
        simulation, _ = build(label, seed)
        networks.append(simulation.settings.network.any())
        simulation.close()
        goal = goal and goal.checked(simulation.metric_names(), simulation.task.named_metrics())
    check_ranking(rank_by, goal, simulation.metric_names(), networks)
    try:
        finished, failed = run_all(planned)
    except Interrupted as stop:
        saved = f"; saved in '{out}'" if out is not None else ""
        raise KeyboardInterrupt(f"stopped after round {stop.done}{saved}") from None
    labels = {plan.directory: plan.label for plan in planned}
    return Comparison(finished, failed, [*labels], goal, rank_by, labels, temporary)


def _contenders(algorithms: Mapping[str, Recipe] | Sequence[Recipe], seeds: int) -> Mapping[str, Recipe]:
    if seeds < 1:
        raise ConfigError(f"seeds = {seeds}: 1 or more is allowed")
    if not algorithms or isinstance(algorithms, str):
        raise ConfigError("compare: name at least one algorithm, as in {'a': laconic.fed_avg}")
    if isinstance(algorithms, Mapping):
        return algorithms
    labels = [recipe if isinstance(recipe, str) else _made(recipe).title for recipe in algorithms]
    check_labels(labels, "pass a dict with a label for each, as in {'first': laconic.fed_avg, 'second': …}")
    return dict(zip(labels, algorithms, strict=True))


def _made(recipe: Algorithm | Callable[[], Algorithm]) -> Algorithm:
    given: object = recipe
    if isinstance(given, nn.Module | Task) or (isinstance(given, type) and issubclass(given, nn.Module)):
        name = getattr(given, "__name__", type(given).__name__)
        raise ConfigError(f"algorithm: {name} is a model; write simulate('fed_avg', model, data), in this order")
    algorithm: object = recipe() if callable(recipe) else recipe
    if not isinstance(algorithm, Algorithm):
        found = type(algorithm).__name__
        raise ConfigError(f"algorithm: a recipe such as laconic.fed_avg, or its name, is needed, not {found}")
    return algorithm


def _build(
    algorithm: Recipe,
    model: Model,
    data: Data,
    keywords: Mapping[str, Any],
    loaded: Data | None = None,
    caller: Callable[..., Any] = simulate,
) -> tuple[Simulation, RunConfig]:
    """The simulation and its config. `loaded` is the data set that `data` names, if it is loaded already."""
    metrics = keywords.get("metrics")
    objects = metrics if isinstance(metrics, Mapping | Metric) else {}
    recipe, checked = _configured(algorithm, {**keywords, "metrics": None} if objects else keywords, caller)
    given = data if loaded is None else loaded
    clients = data_sets.load(given, seed=checked.seed) if isinstance(given, str) else _as_data(given, model)
    simulation = Simulation(recipe, task_of(model, clients, checked.seed).with_metrics(objects), clients, checked)
    names: dict[str, Any] = {
        "algorithm": recipe.name,
        "dataset": data if isinstance(data, str) else getattr(clients, "name", "own"),
        # The partition of data that is passed as an object is unknown. No config accepts "own".
        "partition": None if isinstance(data, str) else "own",
        "model": _name(model),
    }
    return simulation, RunConfig(**names)


def _as_data(given: Any, model: Model) -> ClientData:
    """Data in any form. A task's own loss decides what the targets are, whatever kind of task they suggest."""
    if not isinstance(model, Task) or isinstance(given, ClientData):
        return data_sets.as_data(given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KindWarning)
        return data_sets.as_data(given)


def _builtin(progress: bool) -> list[Callback]:
    return [ProgressBar(shown=progress), EachRound(_warn_of_collapse)]


def _listed(callbacks: Iterable[Callback]) -> list[Callback]:
    if isinstance(callbacks, Callback):
        raise ConfigError(f"callbacks: a list is needed, as in callbacks=[{type(callbacks).__name__}(…)]")
    return [*callbacks]


def _run(
    simulation: Simulation,
    config: RunConfig,
    out: Path | None,
    callbacks: Sequence[Callback],
    resume: bool,
    label: str | None = None,
    more: bool = True,
) -> Result:
    directory = None if out is None else RunDirectory(out, resume=resume)
    try:
        if directory is not None and resume and directory.exists():
            # "auto" numerics depend on the model. The checkpoint has fingerprints of both.
            wanted = config.resolved(simulation).model_dump(exclude={"numerics"})
            check_same(f"the run in '{directory.path}'", wanted, directory.stored_config().model_dump())
    except BaseException:
        simulation.close()
        raise
    return run_training(simulation, config, directory, callbacks, label=label, more=more)


def _warn_of_collapse(record: Record) -> None:
    if "collapsed" in record:
        warn(record["collapsed"])


def _name(model: Model) -> str:
    """The model's name in the config. Only a config with a registered name can be run again."""
    if isinstance(model, str):
        return model
    model = model.module if isinstance(model, Task) else model
    return str(getattr(model, "__qualname__", type(model).__qualname__))


_COMPARED = (("target", "0.9"), ("seeds", "3"))
_ELSEWHERE = {
    "loss": "a loss is part of the model; pass laconic.Task(module, loss) as the model",
    "clients": "not a setting of simulate; the number of clients is fixed when the data is loaded: "
    "laconic.data.divide(data, clients=10, partition='iid'), or for built-in data laconic.data.load('digits', clients=10)",
    "partition": "not a setting of simulate; the partition is fixed when the data is loaded: "
    "laconic.data.divide(data, clients=10, partition='iid'), or for built-in data laconic.data.load('digits', "
    "partition='iid')",
    "test": "the data has the test examples, as in laconic.data.from_arrays(clients, test=(inputs, targets))",
    "skip_empty": "leave out empty clients where you make the data: laconic.data.from_arrays(clients, skip_empty=True)",
    **{
        name: f"it belongs to the data, as in laconic.data.from_arrays(clients, {name}=…)"
        for name in ("kind", "classes", "labels", "normalize")
    },
    "callback": "pass a list, as in callbacks=[laconic.EarlyStopping()]",
    **{name: f"an argument of laconic.compare, as in laconic.compare([…], {name}={text})" for name, text in _COMPARED},
    "betas": "the local optimizer has them, as in local_optimizer='adam:beta1=0.9,beta2=0.99'",
    **{name: f"it is a part of numerics, as in numerics={{'{name}': …}}" for name in Numerics.model_fields},
}
"""What is no setting of `simulate`, and where it belongs."""


def _configured(
    algorithm: Recipe, keywords: Mapping[str, Any], caller: Callable[..., Any]
) -> tuple[Algorithm, Settings]:
    """The algorithm with the parameters among the keywords, and the settings.

    A label, and what an algorithm sets, take precedence over keywords. An error also names the keywords of `caller`.
    """
    settings = {key: value for key, value in keywords.items() if key in Settings.model_fields}
    changes = {key: value for key, value in keywords.items() if key not in settings}
    if isinstance(algorithm, str):
        changes = {key: value for key, value in changes.items() if key not in split_label(algorithm)}
        recipe, checked = _labeled(algorithm, settings)
    else:
        recipe, checked = _made(algorithm), validated(Settings, settings)
    changed = without_own(recipe, changes)
    parts = recipe.by_slot({key: value for key, value in changed.items() if key in {*SLOTS, *DEFAULT_SLOTS}})
    for key in sorted(changes.keys() - SLOTS.keys()):
        if not recipe.owners(key) and not recipe.owners(key, parts):
            kinds = recipe.kinds(parts).values()
            raise _unknown_keyword(key, caller, set().union(*map(parameter_names, kinds)))
    return recipe.replace(**cast(Changes, changed)), checked


def _unknown_keyword(key: str, caller: Callable[..., Any], parameters: Collection[str]) -> ConfigError:
    """The error for a keyword that is neither one of `caller` nor a setting nor one of the algorithm's parameters."""
    if key in _ELSEWHERE:
        return ConfigError(f"{key}: {_ELSEWHERE[key]}")
    named = [name for name, taken in signature(caller).parameters.items() if taken.kind is taken.KEYWORD_ONLY]
    return unknown_name("setting", key, {*named, *SLOTS, *DEFAULT_SLOTS, *Settings.model_fields, *parameters})


def _labeled(label: str, settings: Mapping[str, Any]) -> tuple[Algorithm, Settings]:
    config = load_config(None, settings, split_label(label))
    for key in ("dataset", "partition", "clients", "model", "data_dir", "augment", "skip_empty"):
        if key in config.model_fields_set:
            raise ConfigError(f"'{label}': {key} does not belong to the algorithm; pass data and model to simulate")
    return config.build_algorithm(), config.settings()
