"""The server's side of a run, whoever runs the clients: rounds, their records, evaluation, what a checkpoint holds."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError, LaconicError, PacketError
from laconic.core.part import section
from laconic.core.randomness import Randomness
from laconic.core.state_dict import StateDict, prefixed
from laconic.data.federated import ClientData
from laconic.engine.prepared import PreparedTask
from laconic.federation.client_links import DiskClientLinkState
from laconic.federation.database import Database
from laconic.federation.engine import Engine
from laconic.federation.ledger import Ledger
from laconic.federation.policy import ReplyPolicy
from laconic.federation.privacy import Privacy
from laconic.federation.round import Round, run_round
from laconic.federation.server import Server
from laconic.run.evaluate import Mapper, evaluate
from laconic.run.settings import Settings

Record = dict[str, Any]
"""One round as plain numbers: a line of metrics.jsonl. Costs are totals since the start; `streams` is the round alone."""
DIAGNOSTICS = (
    *("skip_rate", "skip_rate_down", "acceleration_rate", "memory_norm", "server_memory_norm"),
    *("q_c", "q_a", "gamma", "gradient_norm_squared", "objective", "epsilon"),
)
"""What is measured of a run on its way, where that was asked for."""
OTHER_KEYS = {
    *("round", "participants", "training_loss", "seconds", "streams", "refused"),
    *("skipped", "skipped_down", "accelerated", "lost", "simulated_seconds", "cut_off"),
    *DIAGNOSTICS,
    *Ledger().totals(),
}
"""What stands in a record besides the task's metrics."""


def metrics_of(record: Record) -> dict[str, float]:
    """The task's metrics in a record; empty if the round was not evaluated."""
    return {name: value for name, value in record.items() if name not in OTHER_KEYS}


TROUBLES = {"cut_off": "cut off", "lost": "lost state", "refused": "refused"}
"""What can go wrong with a client's round, as it stands in a record, and for people."""


def troubles(history: Sequence[Record]) -> dict[str, int]:
    """How often each of them has happened; what never has is left out.

    >>> troubles([{"cut_off": 2}, {"refused": {"late": 1, "checksum": 2}}])
    {'cut_off': 2, 'refused': 3}
    """
    found = {name: sum(_count(record.get(name, 0)) for record in history) for name in TROUBLES}
    return {name: count for name, count in found.items() if count}


def _count(value: int | dict[str, int]) -> int:
    return sum(value.values()) if isinstance(value, dict) else value


@dataclass
class Result:
    """What a run leaves behind."""

    algorithm: Algorithm
    settings: Settings
    history: list[Record]
    model: nn.Module
    ledger: Ledger
    model_sha256: str
    seconds: float
    stopped: str | None = None
    """Why a callback has ended the run before its last round; None if none has."""

    @property
    def metrics(self) -> dict[str, float]:
        """The last evaluation."""
        return next((found for record in reversed(self.history) if (found := metrics_of(record))), {})

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation, if the task has one."""
        return self.metrics.get("accuracy")

    @property
    def loss(self) -> float | None:
        """The loss of the last evaluation."""
        return self.metrics.get("loss")

    def __repr__(self) -> str:
        costs = self.ledger.totals()
        shown = " ".join(f"{name}={value:.4f}" for name, value in self.metrics.items())
        traffic = f"up={costs['bytes_up']:,}B down={costs['bytes_down']:,}B"
        return f"<{self.algorithm.name}: {len(self.history)} rounds, {shown}, {traffic}, {self.seconds:.1f} s>"


class Training:
    """A server and an engine that go through the rounds together."""

    transport: Engine
    """Who runs the clients."""
    mapper: Mapper
    """Where evaluation runs."""
    database: Database | None = None
    """Where clients' states and checkpoints are, if not in memory and in a file."""
    last_round: Round | None = None
    """The last round that was run."""

    def __init__(
        self,
        algorithm: Algorithm,
        prepared: PreparedTask,
        data: ClientData,
        settings: Settings,
        *,
        policy: ReplyPolicy,
        links: DiskClientLinkState | None = None,
        quorum: float | None = None,
    ) -> None:
        participants = settings.participants or len(data)
        if participants > len(data):
            raise ConfigError(f"participants = {participants}: there are only {len(data)} clients")
        self.algorithm, self.data = algorithm.resolve(), data
        self.task, self.layout = prepared.task, prepared.layout
        self.settings = settings.model_copy(update={"numerics": prepared.numerics, "participants": participants})
        """Resolved: with the strategy for gradients and the number of participants."""
        self.server = Server(
            self.algorithm,
            self.layout,
            prepared.initial_model,
            prepared.initial_buffers,
            data,
            Randomness(settings.seed),
            participants=participants,
            sampling=settings.sampling,
            weighting=settings.weighting,
            defenses=settings.defense,
            send_buffers=settings.buffers != "frozen",
            links=links,
            policy=policy,
            quorum=quorum,
        )
        self.privacy = self._account()
        """The accountant, where noise protects clients."""
        self.ledger = Ledger()
        self.seconds = 0.0

    def _account(self) -> Privacy | None:
        """What the noise is worth; nothing without noise."""
        defense, settings = self.settings.defense, self.settings
        if not defense.noise:
            return None
        assert settings.participants is not None
        return Privacy(defense.noise, defense.delta, settings.sampling, settings.participants, len(self.data))

    def rounds(self) -> Generator[Record, None, None]:
        """Run the rounds that are left; one record each."""
        before = torch.get_num_threads()
        # Reductions of the server must not depend on how many cores there are.
        torch.set_num_threads(1)
        try:
            while self.server.round < self.settings.rounds:
                started = time.perf_counter()
                self.last_round = self._round()
                self.ledger.add(self.last_round.costs)
                record = self._record(self.last_round)
                self.seconds += time.perf_counter() - started
                record["seconds"] = round(self.seconds, 3)
                yield record
        finally:
            torch.set_num_threads(before)

    def _round(self) -> Round:
        try:
            finished = run_round(self.server, self.transport)
        except PacketError as error:
            # A compressor, on a client or on the server, was given what no packet may carry.
            if error.reason != "not finite":
                raise
            raise Diverged(f"an update is not finite in round {self.server.round + 1}: {SMALLER}") from error
        if not bool(torch.isfinite(self.server.model).all()):
            raise Diverged(f"the model is not finite after round {self.server.round}: {SMALLER}")
        return finished

    def _record(self, last: Round) -> Record:
        server, costs = self.server, last.costs
        record: Record = {"round": server.round, "participants": costs.folded}
        loss = last.training_loss()
        record["training_loss"] = loss if loss == loss else None
        evaluated = server.round == self.settings.rounds or server.round % self.settings.eval_every == 0
        if evaluated:
            record |= self.evaluate()
            if self.privacy is not None:
                record["epsilon"] = self.privacy.epsilon(server.round)
        record |= self.ledger.totals()
        record |= self._measured(evaluated)
        counts = ("skipped", "skipped_down", "accelerated", "lost")
        record |= {name: getattr(costs, name) for name in counts if getattr(costs, name)}
        if costs.refused:
            record["refused"] = costs.refused
        # Of this round alone, unlike the totals above.
        record["streams"] = {
            key: {"packets": traffic.packets, "bytes": traffic.bytes, "paper_bits": traffic.paper_bits}
            for key, traffic in costs.streams.items()
        }
        return record

    def _measured(self, evaluated: bool) -> Record:
        """What else stands in the record of a round."""
        return {}

    def evaluate(self) -> dict[str, float]:
        """The metrics of the server's model on the test examples; the clients' training loss where there are none."""
        if self.data.test is None:
            loss = math.nan if self.last_round is None else self.last_round.training_loss()
            return {"loss": loss} if loss == loss else {}
        return evaluate(self.mapper, self.task, self.layout, self.server.model, self.server.buffers, self.data.test)

    def keep_in(self, folder: Path) -> None:
        """The run has a directory: what must outlive this process, and is in no checkpoint, goes there."""

    @property
    def clients_keep_state(self) -> bool:
        """Whether clients keep their states outside of the checkpoint. Each start then has its own incarnation number."""
        return False

    def saved(self) -> None:
        """A checkpoint of all up to now is durable."""
        self.server.acknowledge()

    def fingerprints(self) -> dict[str, Any]:
        """What must be the same when a checkpoint is loaded, by what it is."""
        return {"model": self.layout.fingerprint}

    def state_dict(self) -> StateDict:
        """All that is needed to continue."""
        return {
            **prefixed("server", self.server.state_dict()),
            **prefixed("ledger", self.ledger.state_dict()),
            **prefixed("fingerprint", self.fingerprints()),
            "incarnation": self.server.incarnation,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what `state_dict` returned, bit for bit."""
        self.server.load_state_dict(section(state, "server"))
        if self.clients_keep_state:
            # What the last start asked and did not save is asked again.
            self.server.incarnation = (state["incarnation"] + 1) % 2**16
        self.ledger.load_state_dict(section(state, "ledger"))
        self.seconds = state["seconds"]

    def figures(self) -> dict[str, np.ndarray]:
        """Matrices that were measured and belong beside the metrics, by name."""
        return {}

    def close(self) -> None:
        """Stop the engines, and close files."""

    def trained(self) -> nn.Module:
        """The module with the server's present model."""
        module = self.task.to(self.server.model.device, self.layout.dtype).module
        self.layout.write(module, self.server.model, self.server.buffers)
        return module.eval()

    def model_sha256(self) -> str:
        """The hash of every parameter and floating buffer, bit for bit."""
        digest = sha256()
        for vector in (self.server.model, self.server.buffers):
            digest.update(vector.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def result(self, history: list[Record], stopped: str | None = None) -> Result:
        """What a run returns; `stopped` is why a callback has ended it."""
        costs = (self.ledger, self.model_sha256(), self.seconds)
        return Result(self.algorithm, self.settings, history, self.trained(), *costs, stopped)


SMALLER = "training has diverged; try a smaller local_lr or server_lr"


class Diverged(LaconicError):
    """Training has left the finite numbers: the run was in order, and did not work out."""

    exit_code = 1
