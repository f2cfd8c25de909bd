"""A whole federated training in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.core.errors import ConfigError
from laconic.core.layout import Layout
from laconic.core.part import State
from laconic.core.randomness import Draw, Randomness
from laconic.core.task import TASKS, Task
from laconic.data.federated import ClientData, FederatedData, GeneratedData, sizes_of
from laconic.engine.client_spec import ClientSpec
from laconic.engine.faults import FaultyEngine
from laconic.engine.network import NetworkEngine
from laconic.engine.ray_actors import connect
from laconic.engine.ray_engine import RayEngine
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.blocklist import Blocklist
from laconic.federation.client_links import DiskClientLinkState
from laconic.federation.database import Database
from laconic.federation.disk_store import DiskStore
from laconic.federation.ledger import Ledger
from laconic.federation.policy import ExchangeReport, Outcome, ReplyPolicy
from laconic.federation.round import Round
from laconic.federation.server import Server
from laconic.federation.store import MemoryStore
from laconic.gradients.choose import settle
from laconic.gradients.named_rng import stochastic
from laconic.run.diagnostics import Diagnostics
from laconic.run.full_gradient import FullGradient
from laconic.run.settings import Settings
from laconic.run.training import SMALLER, Diverged, Record, Training


class Simulation(Training):
    """The server, its clients and an engine, ready to run; everything is checked here, before any work."""

    def __init__(self, algorithm: Algorithm, task: Task, data: ClientData, settings: Settings) -> None:
        device = usable_device(settings.device)
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
        numerics = settle(settings.numerics, self.task, self.layout, draws, batch)
        update: dict[str, Any] = {"numerics": numerics, "participants": participants}
        if settings.engine == "ray":
            update["ray"] = connect(settings.ray, settings.threads or 1)
        self.settings = settings = settings.model_copy(update=update)
        self.randomness = Randomness(settings.seed)
        self.database = Database(settings.store_cache) if settings.store == "disk" else None
        self.store = MemoryStore() if self.database is None else DiskStore(self.database)
        frozen = settings.buffers == "frozen"
        buffers = self.layout.flatten_buffers(self.task.module)
        self.policy = SimulationPolicy(Blocklist(settings.max_violations))
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
            defenses=settings.defense,
            send_buffers=not frozen,
            links=None if self.database is None else DiskClientLinkState(self.database),
            policy=self.policy,
        )
        self.privacy = self._account()
        spec = ClientSpec(
            algorithm,
            self.task,
            data,
            settings.seed,
            numerics,
            draws,
            device,
            frozen_buffers=frozen,
            probing=settings.diagnostics,
            chunk=settings.chunk,
            participants=participants,
        )
        # With workers, too: this process evaluates, and measures the full gradient.
        self.engine = spec.engine(self.store, settings.threads)
        self.mapper = self.engine.map
        self._warm_up(batch)
        self.transport: SimulatedEngine = self.engine
        self.workers: RayEngine | None = None
        if settings.engine == "ray":
            threads = settings.threads or 1
            self.transport = self.workers = RayEngine(spec, settings.ray, threads=threads, cache=settings.store_cache)
        self.faulty: FaultyEngine | None = None
        if settings.faults.any():
            self.transport = self.faulty = FaultyEngine(
                self.transport, settings.faults, self.randomness, clients=len(data), layout=self.layout
            )
            self.policy.attackers = frozenset(self.faulty.attacks.factors)
        self.network: NetworkEngine | None = None
        if settings.network.any():
            self.transport = self.network = NetworkEngine(self.transport, settings.network, self.randomness)
        self.diagnostics: Diagnostics | None = None
        if settings.diagnostics:
            self.diagnostics = Diagnostics(algorithm.uplink.effective)
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
        """See `Training`; that workers take a while to start is not the first round's fault."""
        if self.workers is not None and self.server.round < self.settings.rounds:
            self.workers.start()
        yield from super().rounds()

    def _round(self) -> Round:
        finished = super()._round()
        if self.policy.diverged:
            raise Diverged(f"the update of a client is not finite in round {self.server.round}: {SMALLER}")
        if self.policy.blocklist.blocked_count() == len(self.data):
            raise Diverged(f"all clients are blocked after round {self.server.round}: their updates had to be refused")
        return finished

    def _measured(self, evaluated: bool) -> Record:
        record: Record = {}
        if evaluated and self.full_gradient is not None:
            record |= self.full_gradient.measure(self.server)
        if self.diagnostics is not None:
            assert self.last_round is not None
            context = RoundContext(self.layout, self.randomness, self.server.round)
            record |= self.diagnostics.measure(self.last_round.probes, context)
            record |= self._rates(self.last_round.costs)
        if self.network is not None:
            record["simulated_seconds"] = self.network.seconds
            record |= {"cut_off": self.network.cut_off} if self.network.cut_off else {}
        return record

    def _rates(self, costs: Ledger) -> dict[str, float]:
        """How often nothing was sent, and the length of the server's own error memory."""
        state = self.server.downlink_state
        found = {
            "skip_rate": costs.skipped / max(1, costs.updates),
            "skip_rate_down": costs.skipped_down / max(1, costs.invited),
            "acceleration_rate": costs.accelerated / max(1, costs.updates),
        }
        if "phi" in state:
            found["server_memory_norm"] = float(torch.linalg.vector_norm(state["phi"]))
        return found

    def keep_in(self, folder: Path) -> None:
        """Workers have clients' states there, and commit them only when a checkpoint that needs them is durable."""
        if self.workers is not None:
            self.workers.keep_in(folder)
            self.server.rounds_are_durable = False

    @property
    def incarnations(self) -> bool:
        """Workers' stores know of rounds that a crash of this process undid."""
        return self.workers is not None

    def snapshot(self) -> tuple[State, dict[str, Any]]:
        """All that is needed to continue, as tensors and as plain numbers; what is in a database stays there."""
        if self.workers is not None:
            # What the checkpoint relies on must be as durable as itself.
            self.workers.flush()
        tensors = {f"server/{name}": value for name, value in self.server.state_dict().items()}
        numbers: dict[str, dict[str, Any]] = {}
        if isinstance(self.store, MemoryStore):
            clients, numbers = self.store.snapshot()
            tensors |= {f"clients/{name}": value for name, value in clients.items()}
        held: list[dict[str, Any]] = []
        if self.faulty is not None:
            packets, held = self.faulty.snapshot()
            tensors |= {f"held/{name}": value for name, value in packets.items()}
        return tensors, {
            "held": held,
            "forgetful": [] if self.faulty is None else [*self.faulty.forgetful.items()],
            "incarnation": self.server.incarnation,
            "places": [] if self.workers is None else self.workers.places,
            "ledger": self.ledger.table(),
            "clients": numbers,
            "blocklist": self.policy.blocklist.state_dict(),
            "seconds": self.seconds,
            "simulated_seconds": self.network and self.network.seconds,
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
        self.server.load_state_dict(sections["server"])
        if isinstance(self.store, MemoryStore):
            self.store.restore(sections["clients"], numbers["clients"])
        if self.faulty is not None:
            self.faulty.restore(sections["held"], numbers["held"])
            self.faulty.forgetful = dict(numbers["forgetful"])
        if self.workers is not None:
            self.server.incarnation = (numbers["incarnation"] + 1) % 2**16
            self.workers.go_on(numbers["places"])
        if self.network is not None:
            self.network.seconds = numbers["simulated_seconds"]
        self.policy.blocklist.load_state_dict(numbers["blocklist"])
        self.ledger = Ledger.from_table(numbers["ledger"])
        self.seconds = numbers["seconds"]

    def close(self) -> None:
        """Stop the engines, and let go of the database."""
        self.engine.close()
        if self.workers is not None:
            self.workers.close()
        if self.database is not None:
            self.database.close()


class SimulationPolicy(ReplyPolicy):
    """Notices divergence: an honest client whose update is not finite."""

    attackers: frozenset[int] = frozenset()
    diverged = False

    def judge(self, report: ExchangeReport) -> Outcome:
        """Block attackers; an honest client that sends NaN has diverged, and the others will."""
        self.diverged |= any(
            refusal.error.reason == "not finite" and refusal.client not in self.attackers for refusal in report.refusals
        )
        return super().judge(report)


def initial_module(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a module whose initial weights follow from the seed, so that every side can make them for itself."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Randomness(seed).integer(Draw.INITIAL_MODEL))
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


def usable_device(name: str) -> torch.device:
    """The device of that name, if it works here."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        there = "cpu, cuda" if torch.cuda.is_available() else "cpu"
        raise ConfigError(f"device = '{name}': not usable here; allowed: {there}") from error
    return device
