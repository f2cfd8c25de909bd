"""The server side of a federation: rounds whose clients are nodes, which may be absent, fail, or send invalid replies."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from uuid import uuid4

import numpy as np
import torch
from flwr.serverapp import Grid

from laconic.algorithms.algorithm import Algorithm
from laconic.compression import encode_dense
from laconic.compression.packet import CoreStream, Packet
from laconic.core.errors import ConfigError
from laconic.core.randomness import Randomness
from laconic.core.state_dict import StateDict
from laconic.data.federated import ClientData
from laconic.engine.prepared import prepare, usable_device
from laconic.federation.aggregation import clamped
from laconic.federation.ledger import Ledger
from laconic.federation.policy import Outcome
from laconic.federation.round import Round
from laconic.federation.update_norms import ENOUGH
from laconic.flower.deployment import Deployment
from laconic.flower.engine import GridEngine
from laconic.flower.plan import Plan, initial_hash, make_model
from laconic.flower.policy import NodePolicy
from laconic.flower.population import Population
from laconic.flower.presence import Presence
from laconic.flower.roster import Roster
from laconic.run.config import RunConfig
from laconic.run.records import Record
from laconic.run.simulation import Model
from laconic.run.training import Diverged, Training, weighting_of

LOG = getLogger("flwr.laconic")
SHORTEST_REST, LONGEST_REST = 2.0, 60.0
"""The first and the longest delay, in seconds, of the exponential backoff for a round without a valid reply."""


class FederatedTraining(Training):
    """A training whose clients are Flower nodes."""

    _secret: int
    """The seed of the directions' projection and, with privacy noise, of noise and sampling. It never leaves the server."""

    def __init__(
        self,
        grid: Grid,
        algorithm: Algorithm,
        model: Model,
        data: ClientData | None,
        config: RunConfig,
        deployment: Deployment,
        save: Callable[[Training], None] = lambda training: None,
    ) -> None:
        """`save` writes a checkpoint. It is called when a round is repeated."""
        clients = config.clients or (0 if data is None else len(data))
        if not clients:
            raise ConfigError("clients: required: the total number of clients")
        for name in ("diagnostics", "full_gradient"):
            if getattr(config, name):
                raise ConfigError(f"{name}: needs data that never leaves a client; only a simulation has it")
        if config.client_eval is not None:
            raise ConfigError("client_eval: only simulations hold out examples; nodes evaluate with client-eval-every")
        if config.faults.any():
            raise ConfigError("faults: only simulations inject faults")
        self.deployment, self._save = deployment, save
        self.population = Population(clients, data)
        test = self.population.test
        example = None if test is None else partial(test.batch, torch.arange(2) % len(test))
        task = make_model(model, config.seed, self.population.shape)
        device, space = usable_device(config.device), (config.subspace, config.seed, config.subspace_every)
        prepared = prepare(task, config.numerics, device, example, None, *space)
        resolved, weighting = algorithm.resolve(), weighting_of(algorithm, config, clients)
        # Sizes are checked again when nodes join.
        check_sizes = partial(_check_sizes, resolved, weighting)
        check_sizes(())
        plan = Plan(
            run=uuid4().hex,
            name=algorithm.name,
            parts={slot: part.table() for slot, part in resolved.parts().items()},
            seed=config.seed,
            subspace=config.subspace,
            subspace_every=config.subspace_every,
            clients=clients,
            partition=config.partition,
            numerics=prepared.numerics,
            buffers=config.buffers,
            shape=self.population.shape,
            fingerprint=prepared.layout.full.fingerprint,
            initial=initial_hash(prepared.initial_weights, prepared.initial_buffers),
        )
        self.roster = Roster(
            grid,
            plan,
            max_violations=config.max_violations,
            patience=deployment.deadline,
            replace_nodes=deployment.replace_nodes,
            most_examples=deployment.most_examples,
            fixed_sizes=weighting == "size" or config.sampling == "weighted",
            fits=check_sizes,
        )
        # With noise, a round without replies is not repeated: the noise is added even if no client replies.
        policy = NodePolicy(self.roster, repeat=not config.defense.noise)
        quorum = None if deployment.quorum == 1 else deployment.quorum
        super().__init__(
            resolved,
            prepared,
            self.population,
            config.settings(),
            policy=policy,
            quorum=quorum,
            weight_limit=deployment.largest_weight,
        )
        # Nodes know the run's seed, so the noise and the directions must not depend on it.
        self._set_secret(int.from_bytes(os.urandom(16), "little"))
        self.presence = Presence(self.roster, self.population, self.server, deployment)
        if config.defense.noise:
            # A slow client could otherwise shorten or extend the deadline of others, which the noise does not hide.
            deployment = deployment.model_copy(update={"adaptive_deadline": False})
        self.engine: GridEngine = GridEngine(grid, self.presence, deployment)
        if self.server.defenses.compares_norms() and self.server.count < ENOUGH:
            few = (
                "with %d participants in a round, defenses that compare clients protect the model poorly or not at all"
            )
            LOG.warning(f"laconic: {few}; use at least %d", self.server.count, ENOUGH)

    def _set_secret(self, secret: int) -> None:
        self._secret = secret
        self.server.hide(Randomness(secret), participants_and_noise=self.privacy is not None)

    def _round(self) -> Round:
        """Run a round. Without a valid reply it is drawn again, with exponential backoff, until there is one."""
        wasted, rest = Ledger(), SHORTEST_REST
        while True:
            self.presence.wait_for_nodes()
            before, used = self.server.round, self.server.clients.sequences.copy()
            try:
                finished = super()._round()
            except Diverged:
                # The checkpoint must contain neither the violations that were cleared nor a part of a round.
                if self.server.round == before and np.array_equal(used, self.server.clients.sequences):
                    self._save(self)
                raise
            if finished.outcome is Outcome.PROCEED:
                break
            wasted.add(finished.costs)
            number = self.server.round + 1
            LOG.warning("laconic: round %d has no valid reply; it is repeated in %g seconds", number, rest)
            # As after a crash: a late reply to this attempt must not be accepted in the next one.
            self.server.incarnation = (self.server.incarnation + 1) % 2**16
            self.server.attempt += 1
            self._save(self)
            time.sleep(rest)
            rest = min(LONGEST_REST, 2 * rest)
        # Count the traffic of failed attempts, but not their participants: a round has one set of them.
        wasted.invited = 0
        finished.costs.add(wasted)
        if self.roster.refused_joins:
            finished.costs.refused["join"] = self.roster.refused_joins
            self.roster.refused_joins = 0
        return finished

    def evaluate_on_clients(self) -> Record:
        """If due, the metrics on clients' own examples, and the updated cost totals.

        Metrics are averaged over examples, weighted by the share of their targets that count. A client counts with at most
        the size that it reported when it joined, and with at most `largest_weight` times the median size. Metrics that
        only a minority reports are left out. No value is larger than `clamped` allows, and no accuracy is outside 0 to 1.
        """
        every = self.deployment.client_eval_every
        if not every or self.server.round % every:
            return {}
        packets = self._evaluation_packets()
        asked, refused, answers = self.engine.evaluate(packets, self.server.round)
        for packet in packets * asked:
            self.ledger.count("down", "evaluation", len(packet), 0)
        means: Record = {"evaluations_refused": refused} if refused else {}
        weights = self.server.client_weights()
        for name in sorted({name for _, _, metrics in answers for name in metrics}):
            reported = [
                (min(count, float(weights[client])), metrics[name])
                for client, count, metrics in answers
                if name in metrics and count > 0
            ]
            if 2 * len(reported) > len(answers):
                means[f"clients_{name}"] = _mean_metric(name, reported)
        return means | self.ledger.totals()

    def _evaluation_packets(self) -> list[bytes]:
        """The model for an evaluation on clients, and its buffers."""
        model, buffers = self.server.averages
        layout = self.layout
        if self.settings.subspace_every is not None:  # a node may not know the current subspace
            layout, model = layout.full, layout.expand(model)
        bodies = {CoreStream.MODEL: encode_dense(model)}
        if self.server.send_buffers:
            bodies[CoreStream.BUFFERS] = encode_dense(buffers)
        label = (layout.fingerprint, 0, self.server.round)
        return [Packet(body, stream, *label).to_bytes() for stream, body in bodies.items()]

    @property
    def clients_keep_state(self) -> bool:
        return True

    def state_dict(self) -> StateDict:
        """The server's state. Client states are on the nodes."""
        own = {"run": self.roster.plan.run, "roster": self.roster.state_dict(), "secret": self._secret}
        return super().state_dict() | own | {"attempt": self.server.attempt}

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.roster.plan = self.roster.plan.model_copy(update={"run": state["run"]})
        self.roster.load_state_dict(state["roster"])
        self.server.attempt = state["attempt"]
        self._set_secret(state["secret"])


def _mean_metric(name: str, reported: Sequence[tuple[float, float]]) -> float:
    """The mean of a metric over (weight, value) pairs."""
    values = clamped([value for _, value in reported])
    if name.endswith("accuracy"):
        values = [min(max(value, 0.0), 1.0) for value in values]
    total = math.fsum(weight * value for (weight, _), value in zip(reported, values, strict=True))
    return total / sum(weight for weight, _ in reported)


def _check_sizes(algorithm: Algorithm, weighting: str, sizes: Iterable[int]) -> None:
    algorithm.method.check(np.fromiter(sizes, dtype=np.int64), weighting)
