"""The server's side of a federation: rounds whose clients are nodes, which come, go, fail and lie."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.serverapp import Grid
from pydantic import BaseModel, ConfigDict, Field

from laconic.algorithms.algorithm import Algorithm
from laconic.compression import encode_dense
from laconic.compression.packet import Packet, Stream
from laconic.core.errors import ConfigError, PacketError
from laconic.core.layout import Layout
from laconic.core.part import State, section
from laconic.core.randomness import Draw, Randomness
from laconic.data.federated import ClientData
from laconic.federation.ledger import Ledger
from laconic.federation.server import Server
from laconic.flower.engine import GridEngine
from laconic.flower.plan import Model, Plan, initial_hash, make_model
from laconic.flower.population import Population
from laconic.flower.roster import Roster
from laconic.gradients.choose import settle
from laconic.gradients.named_rng import stochastic
from laconic.run.config import RunConfig
from laconic.run.simulation import usable_device
from laconic.run.training import SMALLER, Diverged, Record, Training

LOG = getLogger("flwr.laconic")
MESSAGE_EVERY = 30.0
"""Seconds between two words about what the server is waiting for."""
LOOK_EVERY = 0.5
"""Seconds between two looks for new nodes while the server waits for them."""
SHORTEST_REST, LONGEST_REST = 2.0, 60.0
"""Seconds before a round that nobody has answered is asked again: twice as long each time, up to a limit."""
UNSTABLE = {"not finite", "exploding"}
"""What the updates of honest clients are refused for when training diverges."""


class Unanswered(Exception):
    """Nobody's answer counts: the round has to be asked again."""


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
    client_eval_every: int = Field(0, ge=0)
    """Rounds between two evaluations on the clients' own examples; 0 is never: the whole model travels for it."""


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
            defenses=config.defense,
            send_buffers=config.buffers != "frozen",
        )
        # Before any node is here; their sizes are looked at as they come.
        self._check_sizes({})
        self.privacy = self._account()
        if self.privacy is not None:
            # Nodes know the seed: what hides them from each other must not follow from it.
            self._hide(int.from_bytes(os.urandom(16), "little"))
        plan = Plan(
            run=uuid4().hex,
            name=algorithm.name,
            parts={slot: part.table() for slot, part in self.algorithm.parts().items()},
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
            max_violations=config.max_violations,
            patience=deployment.deadline,
            replace_nodes=deployment.replace_nodes,
            most_examples=deployment.most_examples,
            fixed_sizes=config.weighting == "size" or config.sampling == "weighted",
            fits=self._check_sizes,
        )
        self.engine = GridEngine(
            grid,
            self.roster,
            deadline=deployment.deadline,
            quorum=deployment.quorum,
            examine=self.server.examine,
            refuse=self._refuse,
        )
        self.transport = self.engine
        self.mapper = map
        self.server.refusal = self._refuse
        self.server.reachable = lambda client: self.roster.node(client) is not None
        self.server.choose = self._present
        self.server.heard = self._heard
        self.save: Callable[[], None] = lambda: None
        """Makes everything durable."""
        self._doubtful: list[tuple[int, PacketError]] = []
        """Refused in this exchange for what may be the fault of the settings."""
        self._unstable: dict[int, int] = {}
        """By client: for how many such replies it was blamed since anybody's answer has counted."""
        self.ledger = Ledger()
        self.seconds = 0.0
        self._begun = False

    def _hide(self, secret: int) -> None:
        self._secret = secret
        self.server.secret = Randomness(secret)

    def _check_sizes(self, sizes: Mapping[int, int]) -> None:
        self.algorithm.method.check(np.array([*sizes.values()], dtype=np.int64), self.settings.weighting)

    def _round(self) -> Ledger:
        """A round that somebody has answered."""
        wasted, rest = Ledger(), SHORTEST_REST
        while True:
            self._wait_for_nodes()
            try:
                costs = super()._round()
                break
            except Unanswered:
                wasted.add(self.server.costs)
                LOG.warning(
                    "laconic: nobody's answer in round %d counts; it is asked again in %g seconds",
                    self.server.round + 1,
                    rest,
                )
                # As after a crash: an answer to the first question that comes now must not pass for one to the second.
                self.server.incarnation = (self.server.incarnation + 1) % 2**16
                self.save()
                time.sleep(rest)
                rest = min(LONGEST_REST, 2 * rest)
        # What was said in vain has crossed all the same; the invited were the same ones.
        wasted.invited = 0
        costs.add(wasted)
        return costs

    def _refuse(self, client: int, error: PacketError) -> None:
        """A reply that cannot be used; who is to blame for one that is not finite is seen at the end of the exchange."""
        if error.reason in UNSTABLE:
            self._doubtful.append((client, error))
        else:
            self.roster.blocklist.record_violation(client, error)

    def _heard(self, exchange: int, answers: int) -> None:
        """An exchange is over. Where nobody's answer counts, training has diverged, or the round is asked again."""
        doubtful, self._doubtful = self._doubtful, []
        if answers:
            self._unstable = {}
        elif doubtful:
            self._stop_if_diverged(doubtful)
        for client, error in doubtful:
            self.roster.blocklist.record_violation(client, error)
        # Noise is added for those that are silent, too; and whoever was heard once cannot be asked the same again.
        if not answers and exchange == 0 and self.server.costs.invited and not self.settings.defense.noise:
            raise Unanswered

    def _stop_if_diverged(self, doubtful: list[tuple[int, PacketError]]) -> None:
        """One client alone may be at fault where there are others; two, or all there are, are not."""
        for client, _ in doubtful:
            self._unstable[client] = self._unstable.get(client, 0) + 1
        others = {*self.roster.clients()} - {*self._unstable}
        if others and len(self._unstable) < 2:
            return
        for client, error in doubtful:
            LOG.warning("laconic: the reply of %s was refused: %s", self.roster.name(client), error)
            self._unstable[client] -= 1
        if any(self._unstable.values()):
            # Blamed while it was alone: the checkpoint, of the last round that was whole, has it.
            for client, count in self._unstable.items():
                self.roster.blocklist.clear_violations(client, count)
            self.save()
        what = " or ".join(sorted({error.reason for _, error in doubtful}))
        raise Diverged(f"every update in round {self.server.round + 1} is {what}: {SMALLER}")

    def _present(self, drawn: list[int]) -> list[int]:
        """Those that were drawn, once any of them is here; after a deadline others that are here stand in for them.

        Where noise hides who takes part, nobody stands in for anybody: a round may have no clients at all.
        """
        if not drawn or self.settings.defense.noise:
            return drawn
        started, said = time.monotonic(), -math.inf
        while not any(map(self.server.reachable, drawn)):
            now = time.monotonic()
            hopeless = all(map(self.roster.blocklist.is_blocked, drawn))
            if self.roster.clients() and (hopeless or now - started >= self.deployment.deadline):
                here = self.roster.clients()
                generator = self.server.secret.numpy(Draw.STAND_INS, self.server.round)
                chosen = generator.choice(here, min(len(drawn), len(here)), replace=False, shuffle=False)
                LOG.warning("laconic: none of the drawn clients is here; %d others stand in for them", len(chosen))
                return sorted(int(client) for client in chosen)
            if now - said >= MESSAGE_EVERY:
                said = now
                shown = ", ".join(map(str, drawn[:10])) + (", …" if len(drawn) > 10 else "")
                LOG.warning(
                    "laconic: waiting: none of the clients drawn for round %d is here (%s)",
                    self.server.round + 1,
                    shown,
                )
            time.sleep(LOOK_EVERY)
            self._look()
        return drawn

    def _look(self) -> None:
        """See who is here, and how much everybody has."""
        self.roster.refresh()
        if self.roster.sizes != self.population.sizes:
            self.population.sizes = dict(self.roster.sizes)
            self.server.resized()
        if self.roster.blocklist.blocked_count() == len(self.population):
            raise Diverged(
                f"all clients are set aside after round {self.server.round}: their replies had to be refused; "
                "a higher `max_violations` lets them back in"
            )

    def _wait_for_nodes(self) -> None:
        """Until enough are here; when the server starts, for all that are expected, but not for ever."""
        started = said = time.monotonic()
        while True:
            self._look()
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
                aside = self.roster.blocklist.blocked_count()
                but = f", {aside} are set aside" if aside else ""
                LOG.warning("laconic: waiting for nodes: %d of %d are here%s", here, hoped_for, but)
            time.sleep(LOOK_EVERY)
        self._begun = True

    def evaluate_on_clients(self) -> Record:
        """The metrics on clients' own examples, where they are due, and the totals with the model that travels for them.

        A client speaks for as many examples as it said it has; what most do not report is left out.
        """
        every = self.deployment.client_eval_every
        if not every or self.server.round % every:
            return {}
        bodies = {Stream.MODEL: encode_dense(self.server.model)}
        if self.server.send_buffers:
            bodies[Stream.BUFFERS] = encode_dense(self.server.buffers)
        label = (self.layout.fingerprint, 0, self.server.round)
        packets = [Packet(body, stream, *label).to_bytes() for stream, body in bodies.items()]
        asked, answers = self.engine.evaluate(packets, self.server.round)
        for packet in packets * asked:
            self.ledger.count("down", "evaluation", len(packet), 0)
        found: Record = {}
        for name in sorted({name for _, _, metrics in answers for name in metrics}):
            said = [
                (min(count, self.roster.sizes[client]), metrics[name])
                for client, count, metrics in answers
                if name in metrics
            ]
            if 2 * len(said) > len(answers):
                found[f"clients_{name}"] = math.fsum(n * value for n, value in said) / sum(n for n, _ in said)
        return found | self.ledger.totals()

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
