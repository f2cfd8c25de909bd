"""The server: Laconic's rounds as a Flower ServerApp, durable after every one of them."""

from __future__ import annotations

import fcntl
import math
import os
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from laconic.algorithm import Algorithm
from laconic.data.federated import ClientData
from laconic.engine.choice import settle
from laconic.engine.draws import stochastic
from laconic.errors import ConfigError, unknown_name
from laconic.flower.engine import GridEngine
from laconic.flower.plan import Model, Plan, initial_hash, make_model
from laconic.flower.population import Population
from laconic.flower.roster import Roster
from laconic.layout import Layout
from laconic.link.compressors import encode_dense
from laconic.link.packet import Packet, Stream
from laconic.parts import State, explain, section
from laconic.randomness import Randomness
from laconic.run.config import RunConfig, load_config, spelt_out
from laconic.run.directory import RunDirectory
from laconic.run.driver import FREE_TO_CHANGE
from laconic.run.labels import split_label
from laconic.run.ledger import Ledger
from laconic.run.simulation import usable_device
from laconic.run.training import Record, Result, Training
from laconic.server.server import Server

LOG = getLogger("flwr.laconic")
MESSAGE_EVERY = 30.0
"""Seconds between two words about what the server is waiting for."""
LOOK_EVERY = 0.5
"""Seconds between two looks for new nodes while the server waits for them."""


class Deployment(BaseModel):
    """What only a real federation has to decide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    out: str | None = None
    """The run's directory: a server that is started again with the same one goes on there."""
    deadline: float = Field(600.0, gt=0)
    """Seconds after which an exchange closes with the replies that are there."""
    quorum: float = Field(1.0, gt=0, le=1)
    """The share of the clients asked whose replies close an exchange at once."""
    first: int | None = Field(None, ge=1)
    """Nodes to wait for when the server starts, at most for a deadline; all clients when not given."""
    minimum: int = Field(1, ge=1)
    """Nodes without which no round begins; the server waits for them."""
    replace_nodes: bool = False
    """Whether a client's number may pass to a node that is not the one that had it."""
    most_examples: int | None = Field(None, ge=1)
    """A node that says that it has more is turned away."""
    client_eval_every: int | None = Field(None, ge=1)
    """Rounds between two evaluations on the clients' own examples; none when not given, since the model travels for it."""


def server_app(
    algorithm: Algorithm | str, model: Model, data: ClientData | str | None = None, **settings: Any
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
        serve(grid, algorithm, model, data, settings | said)

    return app


def serve(
    grid: Grid, algorithm: Algorithm | str, model: Model, data: ClientData | str | None, settings: dict[str, Any]
) -> Result:
    """Run to the end, or go on where an earlier server was stopped."""
    # Names may be changed for one run; nodes read the same run config.
    model = settings.pop("model", model) if isinstance(model, str) else model
    data = settings.pop("dataset", data) if isinstance(data, str) else data
    algorithm = settings.pop("algorithm", algorithm) if isinstance(algorithm, str) else algorithm
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
    folder = RunDirectory(Path(deployment.out or f"runs/{time.strftime('%Y%m%d-%H%M%S')}-{algorithm.name}-flower"))
    if folder.exists():
        _check_same(folder, resolved)
    else:
        folder.create(training, resolved.to_toml())
    with _alone(folder.path):
        history = folder.resume(training, resolved.to_toml())
        LOG.info("laconic: %s in '%s', after round %d", algorithm.name, folder.path, training.server.round)
        # The number of this start must be durable before anyone hears it.
        folder.save_checkpoint(training)
        for record in training.rounds():
            history.append(record)
            folder.append(record)
            # Before the next round, whose instructions acknowledge this one.
            folder.save_checkpoint(training)
            LOG.info("laconic: %s", _line(record))
        folder.save_model(training)
    result = training.result(history)
    LOG.info("laconic: finished: %s sha256=%s", result, result.model_sha256)
    return result


class FederatedTraining(Training):
    """A server whose clients are nodes."""

    _secret: int | None = None
    """From this follow the noise and who takes part, where noise hides clients; it never leaves the server."""

    def __init__(
        self,
        grid: Grid,
        algorithm: Algorithm,
        model: Model,
        data: ClientData | None,
        config: RunConfig,
        deployment: Deployment,
    ) -> None:
        clients = config.clients or (0 if data is None else len(data))
        if not clients:
            raise ConfigError("clients: required, and not given: how many there are in all")
        participants = config.participants or clients
        if participants > clients:
            raise ConfigError(f"participants = {participants}: there are only {clients} clients")
        for name in ("diagnostics", "full_gradient"):
            if getattr(config, name):
                raise ConfigError(f"{name}: what it needs never leaves a client; only a simulation can")
        if config.faults.any():
            raise ConfigError("faults: on purpose they are made in simulations only")
        self.algorithm = algorithm.fitted()
        self.deployment = deployment
        device = usable_device(config.device)
        self.population = Population(clients, data)
        self.data = self.population
        dtype: torch.dtype = getattr(torch, config.numerics.dtype)
        self.task = make_model(model, config.seed, self.population.shape).to(device, dtype)
        self.layout = Layout.of(self.task.module)
        # Without an example nothing can be tried: one client a call works for all.
        numerics = config.numerics
        if numerics.strategy == "auto":
            numerics = numerics.model_copy(update={"strategy": "loop"})
        test = self.population.test
        if test is not None:
            example = test.batch(torch.arange(2) % len(test), dtype)
            batch = tuple(part.to(device) for part in example)
            self.task.check(batch)
            draws = stochastic(self.task, batch)
            numerics = settle(config.numerics, self.task, self.layout, draws, batch)
        self.settings = config.settings().model_copy(update={"numerics": numerics, "participants": participants})
        initial, buffers = self.layout.flatten(self.task.module), self.layout.flatten_buffers(self.task.module)
        self.server = Server(
            self.algorithm,
            self.layout,
            initial,
            buffers.to(device),
            self.population,
            Randomness(config.seed),
            participants=participants,
            sampling=config.sampling,
            weighting=config.weighting,
            defences=config.defence,
            send_buffers=config.buffers != "frozen",
        )
        self.privacy = self._account()
        if self.privacy is not None:
            # Nodes know the seed: what hides them from each other must not follow from it.
            self._hide(int.from_bytes(os.urandom(16), "little"))
        plan = Plan(
            run=uuid4().hex,
            name=algorithm.name,
            parts={slot: spelt_out(part) for slot, part in self.algorithm.parts().items()},
            seed=config.seed,
            clients=clients,
            partition=config.partition,
            numerics=numerics,
            buffers=config.buffers,
            shape=self.population.shape,
            fingerprint=self.layout.fingerprint,
            initial=initial_hash(initial, buffers),
        )
        self.roster = Roster(
            grid,
            plan,
            strikes=config.strikes,
            patience=deployment.deadline,
            replace_nodes=deployment.replace_nodes,
            most_examples=deployment.most_examples,
            fixed_sizes=config.weighting == "size" or config.sampling == "weighted",
        )
        self.engine = GridEngine(grid, self.roster, deadline=deployment.deadline, quorum=deployment.quorum)
        self.transport = self.engine
        self.mapper = map
        self.server.refusal = self.roster.strikes.offend
        self.server.reachable = lambda client: self.roster.node(client) is not None
        self.ledger = Ledger()
        self.seconds = 0.0
        self._begun = False
        self._on_clients: Record = {}

    def _hide(self, secret: int) -> None:
        self._secret = secret
        self.server.secret = Randomness(secret)

    def _round(self) -> Ledger:
        self._wait_for_nodes()
        self.population.sizes = dict(self.roster.sizes)
        sizes = np.array([*self.roster.sizes.values()])
        self.algorithm.method.check(sizes, self.settings.weighting)
        costs = super()._round()
        self._on_clients = self._evaluate_on_clients(costs)
        return costs

    def _wait_for_nodes(self) -> None:
        """Until enough are here; when the server starts, for all that are expected, but not for ever."""
        started = said = time.monotonic()
        while True:
            self.roster.refresh()
            here = len(self.roster.clients())
            now = time.monotonic()
            expected = self.deployment.first or len(self.population)
            hoped_for = self.deployment.minimum
            if not self._begun and now - started < self.deployment.deadline:
                hoped_for = max(hoped_for, expected)
            if here >= hoped_for:
                break
            if now - said >= MESSAGE_EVERY or said == started:
                said = now
                LOG.warning("laconic: waiting for nodes: %d of %d are here", here, hoped_for)
            time.sleep(LOOK_EVERY)
        self._begun = True

    def _measured(self, evaluated: bool) -> Record:
        return self._on_clients

    def _evaluate_on_clients(self, costs: Ledger) -> Record:
        """The metrics on clients' own examples, where that was asked for; the model that travels for it is counted."""
        every = self.deployment.client_eval_every
        if every is None or self.server.round % every:
            return {}
        bodies = {Stream.MODEL: encode_dense(self.server.model)}
        if self.server.send_buffers:
            bodies[Stream.BUFFERS] = encode_dense(self.server.buffers)
        label = (self.layout.fingerprint, 0, self.server.round)
        packets = [Packet(body, stream, *label).to_bytes() for stream, body in bodies.items()]
        asked, answers = self.engine.evaluate(packets, self.server.round)
        for packet in packets * asked:
            costs.count("down", "evaluation", len(packet), 0)
        examples = sum(count for count, _ in answers)
        names = {name for _, found in answers for name in found}
        sums = {name: math.fsum(count * found.get(name, math.nan) for count, found in answers) for name in names}
        return {f"clients_{name}": total / examples for name, total in sorted(sums.items())}

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """The server's side alone: clients keep their own."""
        tensors = {f"server/{name}": value for name, value in self.server.state().items()}
        return tensors, {
            "run": self.roster.plan.run,
            "incarnation": self.server.incarnation,
            "roster": self.roster.table(),
            "secret": self._secret,
            "ledger": self.ledger.table(),
            "seconds": self.seconds,
            "model": self.layout.fingerprint,
        }

    def restore(self, tensors: State, numbers: dict[str, Any]) -> None:
        """Go on as the next incarnation: what the last one asked and did not save is asked again."""
        if numbers["model"] != self.layout.fingerprint:
            raise ConfigError("resume: the model has another form than the one that the run was started with")
        self.server.restore(section(tensors, "server"))
        self.server.incarnation = (numbers["incarnation"] + 1) % 2**16
        self.roster.plan = self.roster.plan.model_copy(update={"run": numbers["run"]})
        self.roster.restore(numbers["roster"])
        if self.privacy is not None:
            self._hide(numbers["secret"])
        self.ledger = Ledger.from_table(numbers["ledger"])
        self.seconds = numbers["seconds"]


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
        fields = {"algorithm": algorithm.name} | names | said
        for key in fields:
            if key not in RunConfig.model_fields:
                raise unknown_name("setting", key, [*RunConfig.model_fields, *Deployment.model_fields])
        try:
            config, made = RunConfig(**fields), algorithm
        except ValidationError as error:
            raise ConfigError(explain(error)) from None
    return config, made, config.load_data() if isinstance(data, str) else data


def _check_same(folder: RunDirectory, resolved: RunConfig) -> None:
    """A run goes on with what it was started with."""
    then, now = (tomllib.loads(text) for text in (folder.config.read_text(), resolved.to_toml()))
    for key in sorted({*then, *now} - FREE_TO_CHANGE):
        if then.get(key) != now.get(key):
            started = f"the run in '{folder.path}' was started with {then.get(key)!r}"
            raise ConfigError(f"resume: {key} = {now.get(key)!r}, but {started}")


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One server for one run: two would acknowledge what the other does not know."""
    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"out = '{path}': another server is at work there") from None
        yield
    finally:
        os.close(folder)


def _line(record: Record) -> str:
    """A round for people who read logs."""
    shown = [f"round {record['round']}", f"{record['participants']} clients"]
    shown += [f"{name} {record[name]:.4f}" for name in ("accuracy", "loss") if isinstance(record.get(name), float)]
    shown += [f"up {record['bytes_up']:,} B", f"down {record['bytes_down']:,} B"]
    return ", ".join(shown)
