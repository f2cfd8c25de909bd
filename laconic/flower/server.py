"""The server: Laconic's rounds as a Flower ServerApp, durable after every one of them."""

from __future__ import annotations

import time
import tomllib
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Unpack

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ValidationError

from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, LaconicError, unknown_name
from laconic.core.part import SLOTS
from laconic.core.validation import explain
from laconic.data.federated import ClientData
from laconic.flower.deployment import Deployment
from laconic.flower.keywords import ServerKeywords
from laconic.flower.plan import Model
from laconic.flower.training import FederatedTraining
from laconic.run.callbacks import Callback, Run
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.keys import SHORT_NAMES
from laconic.run.labels import split_label
from laconic.run.loop import run
from laconic.run.resume import FREE_TO_CHANGE, check_same
from laconic.run.training import Record, Result

LOG = getLogger("flwr.laconic")
MAY_CHANGE = FREE_TO_CHANGE | {"max_violations", "defense.refuse"}
"""Settings that may differ when a server is started again: a person may let clients back in that were set aside."""
MEANINGLESS = {
    "network": "messages take as long as they take; only a simulation can have a network that is not there",
    "engine": "the nodes run the clients",
    "ray": "the nodes run the clients",
    "store": "each node keeps its client's state in a file",
    "store_cache": "each node keeps its client's state in a file",
    "threads": "a node has one client",
    "chunk": "a node has one client",
}
"""Settings of a simulation, and why a federation has no use for them."""


def server_app(
    algorithm: Algorithm | str,
    model: Model,
    data: ClientData | str | None = None,
    **settings: Unpack[ServerKeywords],
) -> ServerApp:
    """The ServerApp of a federation.

    `data` is what the server has: its test examples and what inputs look like (or a data set's name); clients' examples are
    not used. Settings are those of a run (`rounds`, `clients`, `seed`, …) and of `Deployment`. What stands in Flower's run
    config, under the same names, comes last: `flwr run . --run-config "rounds=50"`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        said = {key.replace("-", "_"): value for key, value in context.run_config.items()}
        try:
            serve(grid, algorithm, model, data, {**settings, **said})
        except LaconicError as error:
            # Flower logs whatever is raised as unhandled, with where it was raised; what was wrong stands here, in one line.
            LOG.error("laconic: error: %s", error)
            raise error.with_traceback(None) from None

    return app


def serve(
    grid: Grid, algorithm: Algorithm | str, model: Model, data: ClientData | str | None, settings: dict[str, Any]
) -> Result:
    """Run to the end, or resume where an earlier server was stopped."""
    algorithm, model, data, settings = _renamed(algorithm, model, data, dict(settings))
    own = {key: value for key, value in settings.items() if key in Deployment.model_fields}
    try:
        deployment = Deployment(**own)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None
    config, algorithm, loaded = _configured(
        algorithm, model, data, {key: value for key, value in settings.items() if key not in own}
    )
    training = FederatedTraining(grid, algorithm, model, loaded, config, deployment)
    resolved = config.resolved(training)
    training.roster.plan = training.roster.plan.model_copy(update={"partition": resolved.partition})
    path = Path(deployment.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{algorithm.name}-flower")
    # A round is saved before the next one, whose instructions acknowledge it.
    directory = RunDirectory(path, resume=True, every_round=True)
    if directory.exists():
        stored = RunConfig.model_validate(tomllib.loads(directory.config.read_text()))
        check_same(resolved.model_dump(), stored, path, MAY_CHANGE)
    training.save = partial(directory.save_checkpoint, training)
    result = run(training, resolved, directory, [ClientEvaluation(training, directory), RoundLog()])
    LOG.info("laconic: finished: %s sha256=%s", result, result.model_sha256)
    return result


def _renamed(
    algorithm: Algorithm | str, model: Model, data: ClientData | str | None, settings: dict[str, Any]
) -> tuple[Algorithm | str, Model, ClientData | str | None, dict[str, Any]]:
    """The names of algorithm, model and data set that the run config gives for this run, and the other settings.

    Nodes read the same run config. An object that the app brings has no name, and stays.
    """
    named: dict[str, Any] = {key: settings.pop(key) for key in ("model", "dataset", "algorithm") if key in settings}
    model = named.pop("model", model) if isinstance(model, str) else model
    if isinstance(algorithm, str) and named.get("algorithm", algorithm) != algorithm:
        LOG.info(
            "laconic: the run config's algorithm is used, %r, and not the app's, %r", named["algorithm"], algorithm
        )
    algorithm = named.pop("algorithm", algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(data, str):
        data = named.pop("dataset", data)
    elif "partition" in settings:
        named["partition"] = settings.pop("partition")
    for key, value in named.items():
        LOG.info("laconic: %s = %r does not apply: the app brings its own", key, value)
    return algorithm, model, data, settings


class ClientEvaluation(Callback):
    """Adds the metrics on clients' own examples to a round's record, once the round is saved: a crash must not undo it."""

    def __init__(self, training: FederatedTraining, directory: RunDirectory) -> None:
        self.training, self.directory = training, directory

    def on_round_end(self, run: Run, record: Record) -> None:
        found = self.training.evaluate_on_clients()
        if found:
            record.update(found)
            self.directory.amend(record)
            self.directory.save_checkpoint(self.training)


class RoundLog(Callback):
    """Writes a line for each round to Flower's log."""

    def on_run_start(self, run: Run) -> None:
        LOG.info("laconic: %s in '%s', after round %d", run.label, run.directory, len(run.history))

    def on_round_end(self, run: Run, record: Record) -> None:
        LOG.info("laconic: %s", _line(record))


def _configured(
    algorithm: Algorithm | str, model: Model, data: ClientData | str | None, said: dict[str, Any]
) -> tuple[RunConfig, Algorithm, ClientData | None]:
    """The config in one piece; an algorithm that is given whole has its parts already."""
    names = {
        "model": model if isinstance(model, str) else getattr(model, "__qualname__", type(model).__qualname__),
        "dataset": data if isinstance(data, str) else getattr(data, "name", "own"),
    }
    if isinstance(algorithm, str):
        config = load_config(None, split_label(algorithm), names, said)
        made = config.build_algorithm()
    else:
        fields, changes = _placed(algorithm, said)
        made = algorithm.replace(**changes)
        try:
            config = RunConfig(**{"algorithm": algorithm.name} | names | fields)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None
    for key, why in MEANINGLESS.items():
        value = getattr(config, key)
        if key in config.model_fields_set and value != RunConfig.model_fields[key].get_default(
            call_default_factory=True
        ):
            table = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else None
            given = f"{key} = {value!r}" if table is None else ", ".join(f"{key}.{k} = {v!r}" for k, v in table.items())
            raise ConfigError(f"{given}: has no meaning on Flower: {why}")
    if not config.defense.noise and "refuse" not in config.defense.model_fields_set:
        # Nodes are not trusted as simulated clients are.
        defense = config.defense.model_copy(update={"refuse": "auto"})
        config = config.model_copy(update={"defense": defense})
    return config, made, config.load_data() if isinstance(data, str) else data


def _placed(algorithm: Algorithm, said: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is said beside an algorithm that is given whole: fields of a config, and changes of its parts."""
    fields: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for key, value in said.items():
        place = SHORT_NAMES.get(key, key)
        if "." not in place and place not in RunConfig.model_fields and algorithm.owners(place):
            place = f"{algorithm.owner(place)}.{place}"
        head, dot, rest = place.partition(".")
        if head not in RunConfig.model_fields:
            raise unknown_name("setting", key, [*RunConfig.model_fields, *SHORT_NAMES, *Deployment.model_fields])
        target = changes if head in SLOTS else fields
        if head in SLOTS and not dot and not isinstance(value, dict):
            dot, rest = ".", "name"
        target[head] = target.get(head, {}) | {rest: value} if dot else value
    return fields, changes


def _line(record: Record) -> str:
    """A round for people who read logs."""
    shown = [f"round {record['round']}", f"{record['participants']} clients"]
    shown += [f"{name} {record[name]:.4f}" for name in ("accuracy", "loss") if isinstance(record.get(name), float)]
    if record.get("epsilon") is not None:
        shown.append(f"epsilon {record['epsilon']:.4g}")
    if record.get("refused"):
        shown.append(f"{sum(record['refused'].values())} refused")
    shown += [f"up {record['bytes_up']:,} B", f"down {record['bytes_down']:,} B"]
    return ", ".join(shown)
