"""A whole federated training in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import nn

from laconic.algorithm import Algorithm, Engine, run_round
from laconic.client.runtime import ClientRuntime
from laconic.data.federated import ClientData, FederatedData, GeneratedData, sizes_of
from laconic.engine.draws import stochastic
from laconic.engine.faults import FaultyEngine
from laconic.engine.gradients import vmap_works
from laconic.engine.inline import InlineEngine
from laconic.errors import ConfigError, LaconicError, PacketError
from laconic.layout import Layout
from laconic.link.occasion import Occasion
from laconic.parts import State
from laconic.randomness import Randomness
from laconic.run.database import Database
from laconic.run.diagnostics import Diagnostics
from laconic.run.disk_store import DiskStore
from laconic.run.evaluate import evaluate
from laconic.run.full_gradient import FullGradient
from laconic.run.ledger import Ledger
from laconic.run.settings import Settings
from laconic.run.store import MemoryStore
from laconic.server.peers import DiskPeers
from laconic.server.server import Server
from laconic.task import TASKS, Task

Record = dict[str, Any]
"""One round as plain numbers: a line of metrics.jsonl. Costs are totals since the start; `streams` is the round alone."""


OTHER_KEYS = {
    *("round", "participants", "training_loss", "seconds", "streams", "refused"),
    *("skipped", "skipped_down", "accelerated", "lost"),
    *("skip_rate", "skip_rate_down", "acceleration_rate", "memory_norm", "server_memory_norm"),
    *("q_c", "q_a", "gamma", "gradient_norm_squared", "objective"),
    *Ledger().totals(),
}
"""What stands in a record besides the task's metrics."""


def metrics_of(record: Record) -> dict[str, float]:
    """The task's metrics in a record; empty if the round was not evaluated."""
    return {name: value for name, value in record.items() if name not in OTHER_KEYS}


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


class Simulation:
    """The server, its clients and an engine, ready to run; everything is checked here, before any work."""

    def __init__(self, algorithm: Algorithm, task: Task, data: ClientData, settings: Settings) -> None:
        device = _device(settings.device)
        dtype: torch.dtype = getattr(torch, settings.numerics.dtype)
        participants = settings.participants or len(data)
        if participants > len(data):
            raise ConfigError(f"participants = {participants}: there are only {len(data)} clients")
        algorithm = algorithm.fitted()
        algorithm.method.check(sizes_of(data), settings.weighting)
        self.algorithm, self.data = algorithm, data
        self.task = task.to(device, dtype)
        self.layout = Layout.of(self.task.module)
        # Two examples, the same one twice if need be: batch norm cannot be tried on one.
        example = data.batch(0, np.arange(2) % data.size(0), dtype)
        batch = tuple(part.to(device) for part in example)
        self.task.check(batch)
        check_labels(self.task, data, batch)
        draws = stochastic(self.task, batch)
        numerics = settings.numerics.resolve(self.task.module)
        if settings.numerics.strategy == "auto" and not vmap_works(self.task, self.layout, numerics, draws, batch):
            numerics = numerics.model_copy(update={"strategy": "loop"})
        self.settings = settings.model_copy(update={"numerics": numerics, "participants": participants})
        self.randomness = Randomness(settings.seed)
        self.database = Database(settings.store_cache) if settings.store == "disk" else None
        self.store = MemoryStore() if self.database is None else DiskStore(self.database)
        frozen = settings.buffers == "frozen"
        buffers = self.layout.flatten_buffers(self.task.module)
        self.server = Server(
            algorithm,
            self.layout,
            self.layout.flatten(self.task.module),
            buffers.to(device),
            data,
            self.randomness,
            participants=participants,
            sampling=settings.sampling,
            weighting=settings.weighting,
            send_buffers=not frozen,
            peers=None if self.database is None else DiskPeers(self.database),
        )
        runtime = ClientRuntime(
            algorithm,
            self.task,
            self.layout,
            self.layout.flatten(self.task.module).cpu(),
            buffers.cpu(),
            data,
            self.randomness,
            self.store,
            device,
            probing=settings.diagnostics,
        )
        self.engine = InlineEngine(
            runtime,
            numerics,
            draws,
            frozen_buffers=frozen,
            threads=settings.threads,
            chunk=settings.chunk,
        )
        self._warm_up(batch)
        self.transport: Engine = self.engine
        if settings.faults.any():
            self.transport = FaultyEngine(self.engine, runtime, settings.faults, self.randomness)
        self.diagnostics: Diagnostics | None = None
        if settings.diagnostics:
            self.diagnostics = Diagnostics(algorithm.uplink.effective)
            self.server.observer = self.diagnostics.observe
        self.full_gradient = FullGradient(self.engine, settings.weighting) if settings.full_gradient else None
        self.ledger = Ledger()
        self.seconds = 0.0

    def _warm_up(self, batch: tuple[torch.Tensor, ...]) -> None:
        try:
            self.engine.warm_up(batch)
        except BaseException:
            self.engine.close()
            raise

    def rounds(self) -> Iterator[Record]:
        """Run the rounds that are left; one record each."""
        before = torch.get_num_threads()
        # Reductions of the server must not depend on how many cores there are.
        torch.set_num_threads(1)
        try:
            while self.server.round < self.settings.rounds:
                started = time.perf_counter()
                self.ledger.add(self._round())
                record = self._record()
                self.seconds += time.perf_counter() - started
                record["seconds"] = round(self.seconds, 3)
                yield record
        finally:
            torch.set_num_threads(before)

    def _round(self) -> Ledger:
        try:
            costs = run_round(self.server, self.transport)
        except PacketError as error:
            # A compressor, on a client or on the server, was given what no packet may carry.
            if error.reason != "not finite":
                raise
            raise Diverged(f"an update is not finite in round {self.server.round + 1}: {_SMALLER}") from error
        if "not finite" in costs.refused:
            raise Diverged(f"the update of a client is not finite in round {self.server.round}: {_SMALLER}")
        if not bool(torch.isfinite(self.server.model).all()):
            raise Diverged(f"the model is not finite after round {self.server.round}: {_SMALLER}")
        return costs

    def _record(self) -> Record:
        server = self.server
        record: Record = {"round": server.round, "participants": server.costs.folded}
        loss = server.training_loss()
        record["training_loss"] = loss if loss == loss else None
        last = server.round == self.settings.rounds
        if last or server.round % self.settings.eval_every == 0:
            record |= self.evaluate()
            if self.full_gradient is not None:
                record |= self.full_gradient.measure(server)
        record |= self.ledger.totals()
        if self.diagnostics is not None:
            record |= self.diagnostics.measure(Occasion(self.layout, self.randomness, server.round))
            record |= self._rates()
        counts = ("skipped", "skipped_down", "accelerated", "lost")
        record |= {name: getattr(server.costs, name) for name in counts if getattr(server.costs, name)}
        if server.costs.refused:
            record["refused"] = server.costs.refused
        # Of this round alone, unlike the totals above.
        record["streams"] = {
            key: {"packets": traffic.packets, "bytes": traffic.bytes, "paper_bits": traffic.paper_bits}
            for key, traffic in server.costs.streams.items()
        }
        return record

    def _rates(self) -> dict[str, float]:
        """How often nothing was sent, and the length of the server's own error memory."""
        costs, state = self.server.costs, self.server.downlink_state
        found = {
            "skip_rate": costs.skipped / max(1, costs.folded),
            "skip_rate_down": costs.skipped_down / max(1, costs.invited),
            "acceleration_rate": costs.accelerated / max(1, costs.folded),
        }
        if "phi" in state:
            found["server_memory_norm"] = float(torch.linalg.vector_norm(state["phi"]))
        return found

    def evaluate(self) -> dict[str, float]:
        """The metrics of the server's model on the test examples; the clients' training loss where there are none."""
        if self.data.test is None:
            loss = self.server.training_loss()
            return {"loss": loss} if loss == loss else {}
        return evaluate(self.engine, self.task, self.layout, self.server.model, self.server.buffers, self.data.test)

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """All that is needed to continue, as tensors and as plain numbers; what is in a database stays there."""
        tensors = {f"server/{name}": value for name, value in self.server.state().items()}
        numbers: dict[str, dict[str, Any]] = {}
        if isinstance(self.store, MemoryStore):
            clients, numbers = self.store.snapshot()
            tensors |= {f"clients/{name}": value for name, value in clients.items()}
        held: list[dict[str, Any]] = []
        if isinstance(self.transport, FaultyEngine):
            packets, held = self.transport.snapshot()
            tensors |= {f"held/{name}": value for name, value in packets.items()}
        return tensors, {
            "held": held,
            "ledger": self.ledger.table(),
            "clients": numbers,
            "seconds": self.seconds,
            "model": self.layout.fingerprint,
            "data": self._data_fingerprint(),
        }

    def _data_fingerprint(self) -> str | None:
        return self.data.fingerprint() if isinstance(self.data, FederatedData | GeneratedData) else None

    def restore(self, tensors: State, numbers: dict[str, Any]) -> None:
        """Continue from a snapshot, bit for bit; with another model or other data that cannot be."""
        if numbers["model"] != self.layout.fingerprint:
            raise ConfigError("resume: the model has another form than the one that the run was started with")
        if numbers["data"] != self._data_fingerprint():
            raise ConfigError("resume: the data is not the same as the run was started with")
        sections: dict[str, State] = {"server": {}, "clients": {}, "held": {}}
        for key, value in tensors.items():
            section, name = key.split("/", 1)
            sections[section][name] = value
        self.server.restore(sections["server"])
        if isinstance(self.store, MemoryStore):
            self.store.restore(sections["clients"], numbers["clients"])
        if isinstance(self.transport, FaultyEngine):
            self.transport.restore(sections["held"], numbers["held"])
        self.ledger = Ledger.from_table(numbers["ledger"])
        self.seconds = numbers["seconds"]

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

    def result(self, history: list[Record]) -> Result:
        """What to hand to a person at the end."""
        settings, ledger = self.settings, self.ledger
        return Result(self.algorithm, settings, history, self.trained(), ledger, self.model_sha256(), self.seconds)

    def close(self) -> None:
        """Stop the engine, and let go of the database."""
        self.engine.close()
        if self.database is not None:
            self.database.close()


_SMALLER = "training has diverged; try a smaller local_lr or server_lr"


class Diverged(LaconicError):
    """Training has left the finite numbers."""


def initial_module(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module whose initial weights follow from the seed, so that every side can make them for itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Randomness(seed).integer("initial model"))
        return build()


def make_task(module: nn.Module, data: ClientData) -> Task:
    """The ready-made task for a kind of data."""
    return TASKS[data.kind](module)


def check_labels(task: Task, data: ClientData, batch: tuple[torch.Tensor, ...]) -> None:
    """A ready-made classifier must have an output for every label."""
    if data.classes is None or task.loss is not TASKS["classification"](task.module).loss:
        return
    with torch.no_grad():
        outputs = task.module.eval()(batch[0]).shape[-1]
    if outputs < data.classes:
        raise ConfigError(f"model has {outputs} outputs, but the labels go from 0 to {data.classes - 1}")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device = '{name}': not usable here; allowed: {there}") from error
    return device
