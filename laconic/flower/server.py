"""The server: Laconic's rounds as a Flower ServerApp, with a checkpoint after every round."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Iterable
from logging import getLogger
from pathlib import Path
from typing import Any, Unpack

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel

from laconic.algorithms.algorithm import Algorithm
from laconic.core.counts import counted
from laconic.core.errors import ConfigError, LaconicError, unknown_name
from laconic.core.part import SLOTS
from laconic.core.validation import validated
from laconic.data.federated import ClientData
from laconic.federation.settings import Defenses
from laconic.flower.deployment import Deployment
from laconic.flower.keywords import ServerKeywords
from laconic.flower.plan import allowed_name
from laconic.flower.training import FederatedTraining
from laconic.run.callbacks import Callback, Run
from laconic.run.config import RunConfig, load_config
from laconic.run.directory import RunDirectory
from laconic.run.keys import SHORT_NAMES
from laconic.run.labels import split_label
from laconic.run.loop import run_training
from laconic.run.records import TROUBLES, Record, troubles
from laconic.run.resume import FREE_TO_CHANGE, check_same
from laconic.run.simulation import Model
from laconic.run.training import Result

LOG = getLogger("flwr.laconic")
MAY_CHANGE = FREE_TO_CHANGE | {"max_violations", "defense.refuse"}
"""Settings that may differ when a server is restarted: those of resumed runs, and those that unblock clients."""
MEANINGLESS = {
    "network": "only a simulation simulates a network",
    "engine": "the nodes run the clients",
    "ray": "the nodes run the clients",
    "store": "each node keeps its client's state in a file",
    "store_cache": "each node keeps its client's state in a file",
    "threads": "a node has one client",
    "chunk": "a node has one client",
}
"""Settings that apply only to simulations, and why."""


def server_app(
    algorithm: Algorithm | str,
    model: Model,
    data: ClientData | str | None = None,
    *,
    callbacks: Iterable[Callback] = (),
    **settings: Unpack[ServerKeywords],
) -> ServerApp:
    """Build the ServerApp of a federation.

    Args:
        algorithm: An `Algorithm`, or a label such as "fed_cams:compressor=sign".
        model: The same model as the nodes'.
        data: The server's data or a data set's name. Its test examples and input shape are used, its clients are not.
        callbacks: Objects that are notified of the run's progress and may stop it, as in `laconic.simulate`.
        settings: Settings of a run (`rounds`, `clients`, `seed`, …) and fields of `Deployment`. Flower's run config takes
            precedence: `flwr run . --run-config "rounds=50"`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        overrides = {key.replace("-", "_"): value for key, value in context.run_config.items()}
        try:
            serve(grid, algorithm, model, data, {**settings, **overrides}, callbacks)
        except LaconicError as error:
            # Flower logs every exception with a traceback. This line has the message alone.
            LOG.error("laconic: error: %s", error)
            raise error.with_traceback(None) from None

    return app


def serve(
    grid: Grid,
    algorithm: Algorithm | str,
    model: Model,
    data: ClientData | str | None,
    settings: dict[str, Any],
    callbacks: Iterable[Callback] = (),
) -> Result:
    """Run the server to the end. If the run directory exists, resume from its checkpoint."""
    algorithm, model, data, settings = _renamed(algorithm, model, data, dict(settings))
    own = {key: value for key, value in settings.items() if key in Deployment.model_fields}
    deployment = validated(Deployment, own)
    config, algorithm, loaded = _configured(
        algorithm, model, data, {key: value for key, value in settings.items() if key not in own}
    )
    path = Path(deployment.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{algorithm.name}-flower")
    # Every round is saved before the next one starts, because the next instructions acknowledge its updates.
    from_round = None if deployment.from_round < 0 else deployment.from_round
    directory = RunDirectory(path, resume=True, every_round=True, from_round=from_round)
    if from_round is not None and config.defense.noise:
        # The later models were sent, so their rounds count for epsilon, and the same noise must not be added twice.
        raise ConfigError("from_round: not with defense.noise: the privacy of the discarded rounds is spent")
    training = FederatedTraining(grid, algorithm, model, loaded, config, deployment, directory.save_checkpoint)
    resolved = config.resolved(training)
    data_keys = {key: getattr(resolved, key) for key in ("partition", "augment", "skip_empty")}
    training.roster.plan = training.roster.plan.model_copy(update=data_keys)
    if directory.exists():
        directory.check_config()
        stored = RunConfig.model_validate(tomllib.loads(directory.config.read_text()))
        check_same(f"the run in '{path}'", resolved.model_dump(), stored.model_dump(), MAY_CHANGE)
    builtin = [ClientEvaluation(training, directory), RoundLog()]
    result = run_training(training, resolved, directory, [*builtin, *callbacks])
    LOG.info("laconic: finished: %s sha256=%s", result, result.model_sha256)
    return result


def _renamed(
    algorithm: Algorithm | str, model: Model, data: ClientData | str | None, settings: dict[str, Any]
) -> tuple[Algorithm | str, Model, ClientData | str | None, dict[str, Any]]:
    """Replace the names of algorithm, model and data set by those in the settings, and return the other settings.

    Objects that are passed instead of names are not replaced. Nodes read the same run config.
    """
    named: dict[str, Any] = {key: settings.pop(key) for key in ("model", "dataset", "algorithm") if key in settings}
    # Nodes refuse other names, too. Here the error comes before a name's code is imported, and at once.
    model = allowed_name("model", str(named.pop("model", model)), model) if isinstance(model, str) else model
    if isinstance(algorithm, str) and named.get("algorithm", algorithm) != algorithm:
        LOG.info("laconic: the run config's algorithm %r replaces the app's %r", named["algorithm"], algorithm)
    algorithm = named.pop("algorithm", algorithm) if isinstance(algorithm, str) else algorithm
    if isinstance(data, str):
        data = allowed_name("dataset", str(named.pop("dataset", data)), data)
    else:
        named |= {key: settings.pop(key) for key in ("partition", "augment", "skip_empty") if key in settings}
    for key, value in named.items():
        LOG.info("laconic: %s = %r is ignored: the app passes an object", key, value)
    return algorithm, model, data, settings


class ClientEvaluation(Callback):
    """Adds metrics on clients' examples to a round's record after the round is saved, so that a crash cannot undo it."""

    def __init__(self, training: FederatedTraining, directory: RunDirectory) -> None:
        self.training, self.directory = training, directory

    def on_round_end(self, run: Run, record: Record) -> None:
        metrics = self.training.evaluate_on_clients()
        if metrics:
            record.update(metrics)
            self.directory.amend(record)
            self.directory.save_checkpoint(self.training)


class RoundLog(Callback):
    """Writes a line for each round to Flower's log."""

    def on_run_start(self, run: Run) -> None:
        LOG.info("laconic: %s in '%s', after round %d", run.label, run.directory, len(run.history))

    def on_round_end(self, run: Run, record: Record) -> None:
        LOG.info("laconic: %s", _line(record))


def _configured(
    algorithm: Algorithm | str, model: Model, data: ClientData | str | None, settings: dict[str, Any]
) -> tuple[RunConfig, Algorithm, ClientData | None]:
    """The config, the algorithm and the data. An `Algorithm` object has its parts already."""
    names = {
        "model": model if isinstance(model, str) else getattr(model, "__qualname__", type(model).__qualname__),
        "dataset": data if isinstance(data, str) else getattr(data, "name", "own"),
    }
    if isinstance(algorithm, str):
        config = load_config(None, split_label(algorithm), names, settings)
        built = config.build_algorithm()
    else:
        fields, changes = _assigned(algorithm, settings)
        built = algorithm.replace(**changes)
        config = validated(RunConfig, {"algorithm": algorithm.name} | names | fields)
    for key, why in MEANINGLESS.items():
        value = getattr(config, key)
        if key in config.model_fields_set and value != RunConfig.model_fields[key].get_default(
            call_default_factory=True
        ):
            table = value.model_dump(exclude_defaults=True) if isinstance(value, BaseModel) else None
            given = f"{key} = {value!r}" if table is None else ", ".join(f"{key}.{k} = {v!r}" for k, v in table.items())
            raise ConfigError(f"{given}: does not apply on Flower: {why}")
    if not config.defense.noise:
        # Unlike simulated clients, nodes are not trusted.
        auto = dict.fromkeys(("aggregate", "clip", "refuse"), "auto")
        defense = Defenses(**auto | config.defense.model_dump(exclude_unset=True))
        config = config.model_copy(update={"defense": defense})
    return config, built, config.load_data() if isinstance(data, str) else data


def _assigned(algorithm: Algorithm, settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split settings into fields of the config and changes of the algorithm's parts."""
    fields: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        path = SHORT_NAMES.get(key, key)
        if "." not in path and path not in RunConfig.model_fields and algorithm.owners(path):
            path = f"{algorithm.owner(path)}.{path}"
        head, dot, rest = path.partition(".")
        if head not in RunConfig.model_fields:
            raise unknown_name("setting", key, [*RunConfig.model_fields, *SHORT_NAMES, *Deployment.model_fields])
        target = changes if head in SLOTS else fields
        if head in SLOTS and not dot and not isinstance(value, dict):
            dot, rest = ".", "name"
        target[head] = target.get(head, {}) | {rest: value} if dot else value
    return fields, changes


def _line(record: Record) -> str:
    items = [f"round {record['round']}", counted(record["participants"], "client")]
    items += [f"{name} {record[name]:.4f}" for name in ("accuracy", "loss") if isinstance(record.get(name), float)]
    if record.get("epsilon") is not None:
        items.append(f"epsilon {record['epsilon']:.4g}")
    items += [f"{count} {TROUBLES[name]}" for name, count in troubles([record]).items()]
    items += [f"up {record['bytes_up']:,} B", f"down {record['bytes_down']:,} B"]
    return ", ".join(items)
