"""The server side of a run, for simulations and Flower: rounds, records, evaluation and the checkpointed state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from laconic.algorithms.algorithm import Algorithm
from laconic.core.counts import counted
from laconic.core.devices import all_finite, one_operator_thread
from laconic.core.errors import ConfigError, LaconicError, PacketError, warn
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from laconic.core.state_dict import StateDict, joined, section
from laconic.core.task import Task
from laconic.data.arrays import Pair
from laconic.data.federated import Array, ClientData, Examples
from laconic.data.form import Form
from laconic.data.tables import data_frame
from laconic.engine.prepared import PreparedTask
from laconic.federation.client_links import DiskClientLinkState
from laconic.federation.database import Database
from laconic.federation.engine import Engine
from laconic.federation.ledger import Ledger
from laconic.federation.policy import ReplyPolicy
from laconic.federation.privacy import Privacy
from laconic.federation.round import Round, run_round
from laconic.federation.server import Server
from laconic.federation.settings import Weighting
from laconic.run.evaluate import Measured, evaluate, evaluate_module, predict, try_metrics
from laconic.run.files import save_model
from laconic.run.metrics import requested_metrics
from laconic.run.records import NESTED, OTHER_KEYS, Record, metrics_of
from laconic.run.settings import Settings


@dataclass
class Result:
    """The result of a run: its history, trained model and costs."""

    algorithm: Algorithm
    settings: Settings
    history: list[Record]
    model: nn.Module
    ledger: Ledger
    model_sha256: str
    seconds: float
    task: Task
    """The trained model with its loss and metrics."""
    form: Form
    """The form of the data."""
    stopped: str | None = None
    """Why a callback stopped the run before its last round; None if none did."""

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation."""
        return next(filter(None, map(metrics_of, reversed(self.history))), {})

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation, if the task has one."""
        return self.metrics.get("accuracy")

    @property
    def loss(self) -> float | None:
        """The loss of the last evaluation."""
        return self.metrics.get("loss")

    @property
    def collapsed(self) -> str | None:
        """Why the run collapsed, and in which round; None if it did not."""
        return next((record["collapsed"] for record in self.history if "collapsed" in record), None)

    def predict(self, inputs: Array | Mapping[str, Array]) -> Tensor:
        """The trained model's outputs for an array of inputs, one row per example: logits, or predicted values.

        Inputs have the form of the training data: uint8 images are normalized, and named inputs are a dict.

        >>> import laconic
        >>> data = laconic.data.load("digits")
        >>> result = laconic.simulate("fed_avg", "logistic", data, rounds=3, participants=5)
        >>> result.predict(data.test.inputs).argmax(-1)[:5]
        tensor([3, 1, 4, 5, 9])
        """
        return predict(self.model, self.form.inputs(inputs), *self._placed())

    def evaluate(self, data: Examples | ClientData | Pair | Dataset[Any] | Mapping[str, Any]) -> dict[str, float]:
        """The metrics of the trained model on other data.

        Args:
            data: A pair of arrays (inputs, targets), a data set of torch or Hugging Face, a DataFrame with the target column
                of training, or a `ClientData` or dict, whose test examples are used.
        """
        return evaluate_module(map, self.task, self.model, self.form.examples(data), *self._placed())[0]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the trained model's state dict as a safetensors file.

        `module.load_state_dict(laconic.load_model(path))` loads it into a module of the same kind.
        """
        save_model(Path(path), self.model, self.model_sha256, len(self.history), self.form.normalize)

    def to_pandas(self) -> Any:
        """The history as a pandas DataFrame: one row per round, one column per number (extra `tables`)."""
        rows = [{key: value for key, value in record.items() if key not in NESTED} for record in self.history]
        return data_frame(rows).set_index("round")

    def _placed(self) -> tuple[torch.device, torch.dtype]:
        parameter = next(self.model.parameters())
        return parameter.device, parameter.dtype

    def __repr__(self) -> str:
        costs = self.ledger.totals()
        metrics = " ".join(f"{name}={value:.4f}" for name, value in self.metrics.items())
        traffic = f"up={costs['bytes_up']:,}B down={costs['bytes_down']:,}B"
        rounds = counted(len(self.history), "round")
        collapsed = f"; {self.collapsed}" if self.collapsed else ""
        return f"<{self.algorithm.title}: {rounds}, {metrics}, {traffic}, {self.seconds:.1f} s{collapsed}>"


class Training:
    """A server and an engine that run the rounds of a training. Subclasses provide the engine."""

    engine: Engine
    """Runs the clients."""
    database: Database | None = None
    """The database of client states and checkpoints, if the store is on disk."""
    last_round: Round | None = None
    """The last completed round."""

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
        weight_limit: float | None = None,
    ) -> None:
        participants = settings.expected_participants(len(data))
        if participants > len(data):
            raise ConfigError(f"participants = {participants}: the data has only {counted(len(data), 'client')}")
        self.algorithm, self.data = algorithm.resolve(), data
        self.task, self._first_layout = _with_metrics(prepared.task, data, settings), prepared.layout
        self._example = prepared.batch
        if self.task.metrics:
            self.metric_names()
        weighting = weighting_of(algorithm, settings, len(data))
        if weighting == "size" and settings.sampling == "weighted" and settings.draws_unequally(len(data)):
            warn("weighting = 'size' and sampling = 'weighted' count a client's size twice; leave weighting out")
        chosen = {"numerics": prepared.numerics, "participants": participants, "weighting": weighting}
        self.settings = settings.model_copy(update=chosen)
        """The resolved settings: gradient strategy, number of participants and weighting are explicit."""
        self.server = Server(
            self.algorithm,
            prepared.layout,
            prepared.initial_model,
            prepared.initial_buffers,
            data,
            Randomness(settings.seed),
            participants=participants,
            sampling=settings.sampling,
            weighting=weighting,
            defenses=settings.defense,
            send_buffers=settings.buffers != "frozen",
            links=links,
            policy=policy,
            quorum=quorum,
            weight_limit=weight_limit,
        )
        self.privacy = self._account()
        """The accountant, where noise protects clients."""
        self.ledger, self.seconds = Ledger(), 0.0

    @property
    def layout(self) -> Layout:
        """The layout of the server's model."""
        return self.server.layout

    def _account(self) -> Privacy | None:
        """The privacy accountant; None without noise."""
        defense, settings = self.settings.defense, self.settings
        if not defense.noise:
            return None
        assert settings.participants is not None
        return Privacy(defense.noise, defense.delta, settings.sampling, settings.participants, len(self.data))

    def rounds(self) -> Generator[Record, None, None]:
        """Run the remaining rounds, and yield the record of each."""
        # The server's reductions must not depend on the number of cores.
        with one_operator_thread():
            while self.server.round < self.settings.rounds:
                started = time.perf_counter()
                self.last_round = None  # its vectors are not needed any more
                self.last_round = self._round()
                self.ledger.add(self.last_round.costs)
                record = self._record(self.last_round)
                self.seconds += time.perf_counter() - started
                record["seconds"] = round(self.seconds, 3)
                yield record

    def _round(self) -> Round:
        try:
            finished = run_round(self.server, self.engine)
        except PacketError as error:
            # A compressor, on a client or on the server, refused values that are not finite.
            if error.reason != "not finite":
                raise
            raise Diverged(f"an update is not finite in round {self.server.round + 1}: {DIVERGENCE_HINT}") from error
        if not all_finite(self.server.model):
            raise Diverged(f"the model is not finite after round {self.server.round}: {DIVERGENCE_HINT}")
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
        counts = ("skipped", "skipped_down", "accelerated", "lost", "clipped")
        record |= {name: getattr(costs, name) for name in counts if getattr(costs, name)}
        if costs.refused:
            record["refused"] = costs.refused
        # For this round only, unlike the totals above.
        record["streams"] = {
            key: {"packets": traffic.packets, "bytes": traffic.bytes, "paper_bits": traffic.paper_bits}
            for key, traffic in costs.streams.items()
        }
        return record

    def _measured(self, evaluated: bool) -> Record:
        """Further entries of a round's record."""
        return {}

    def map(self, function: Callable[[int], Measured], batches: Iterable[int]) -> Iterable[Measured]:
        """Apply the evaluation to batches, in order; by default one after the other."""
        return map(function, batches)

    def evaluate(self) -> dict[str, float]:
        """The metrics of the server's model on the test examples, or the clients' training loss if there are none."""
        if self.data.test is None:
            loss = math.nan if self.last_round is None else self.last_round.training_loss()
            return {"loss": loss} if loss == loss else {}
        return evaluate(self.map, self.task, self.layout, *self.server.averages, self.data.test)

    def metric_names(self) -> set[str]:
        """The names of the metrics of `evaluate`, found on two examples. Raises if a metric does not fit the model."""
        tried = {*self.task.named_metrics()} if self._example is None else try_metrics(self.task, self._example)
        reserved = OTHER_KEYS & tried
        if reserved:
            raise ConfigError(
                f"metrics: '{min(reserved)}' is the name of another value of a record; choose another name"
            )
        return {"loss"} if self.data.test is None else tried

    def keep_in(self, folder: Path) -> None:
        """Use the run directory for durable state that is not part of the checkpoint."""

    @property
    def clients_keep_state(self) -> bool:
        """Whether client states are stored outside the checkpoint. Each start then has its own incarnation number."""
        return False

    def saved(self) -> None:
        """Called when a checkpoint is durable: acknowledge the clients' updates."""
        self.server.acknowledge()

    def fingerprints(self) -> dict[str, Any]:
        """Fingerprints, by name, that a checkpoint must match to be loaded."""
        return {"model": self._first_layout.fingerprint}

    def state_dict(self) -> StateDict:
        """The state needed to resume."""
        return {
            **joined({"server": self.server.state_dict(), "ledger": self.ledger.state_dict()}),
            **joined({"fingerprint": self.fingerprints()}),
            "incarnation": self.server.incarnation,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state that `state_dict` returned. The run then continues bit for bit as without the interruption."""
        self.server.load_state_dict(section(state, "server"))
        if self.clients_keep_state:
            # Instructions after the checkpoint are sent again, and replies to the old ones must not be mistaken for new.
            self.server.incarnation = (state["incarnation"] + 1) % 2**16
        self.ledger.load_state_dict(section(state, "ledger"))
        self.seconds = state["seconds"]

    def figures(self) -> dict[str, np.ndarray]:
        """Measured matrices by name, which the run directory stores next to the metrics."""
        return {}

    def client_values(self) -> dict[str, list[float]]:
        """The last values of an evaluation by client: "client", its number, and each metric. Empty without one."""
        return {}

    def close(self) -> None:
        """Stop the engines and close files."""

    def trained(self) -> nn.Module:
        """The module with the server's current model, in evaluation mode."""
        module = self.task.to(self.server.model.device, self.layout.dtype).module
        self.layout.write(module, *self.server.averages)
        return module.eval()

    def save_model(self, path: Path) -> None:
        """Write the server's current model, including frozen parameters, as a safetensors file."""
        save_model(path, self.trained(), self.model_sha256(), self.server.round, Form.of(self.data).normalize)

    def model_sha256(self) -> str:
        """The SHA-256 hash of all parameters and floating-point buffers."""
        return self.server.sha256()

    def result(self, history: list[Record], stopped: str | None = None) -> Result:
        """Build the result. `stopped` is the reason if a callback stopped the run."""
        costs, task = (self.ledger, self.model_sha256(), self.seconds), replace(self.task, module=self.trained())
        trained = (task, Form.of(self.data), stopped)
        return Result(self.algorithm, self.settings, history, task.module, *costs, *trained)


def weighting_of(algorithm: Algorithm, settings: Settings, clients: int) -> Weighting:
    """The weighting of the settings, else the algorithm's own.

    If method or defense need equal weights, it is uniform. So it is if sampling draws some clients more often: weights would
    count a client's size twice.
    """
    if settings.weighting is not None:
        return settings.weighting
    method, defense = algorithm.method, settings.defense
    robust = defense.aggregate not in ("mean", "auto")
    equal = method.equal_weights or method.equal_clients or robust or defense.noise > 0
    return "uniform" if equal or settings.draws_unequally(clients) else algorithm.weighting


def _with_metrics(task: Task, data: ClientData, settings: Settings) -> Task:
    """The task with further metrics by name."""
    return task.with_metrics(requested_metrics(settings, data))


DIVERGENCE_HINT = (
    "training has diverged; try a smaller local_lr or server_lr, or scale large inputs and targets "
    "(scale=true scales only inputs)"
)


class Diverged(LaconicError):
    """Training diverged: the settings are valid, but updates or the model are not finite."""

    exit_code = 1
