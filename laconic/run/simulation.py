"""A whole federated training in one process."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from laconic import models
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.context import RoundContext
from laconic.core.errors import ConfigError
from laconic.core.layout import UNSHAPED, is_unshaped
from laconic.core.randomness import Draw, Randomness
from laconic.core.state_dict import StateDict, joined, section
from laconic.core.task import TASKS, Batch, Task, called_by_name, output_of, own_loss
from laconic.data.columns import TOKENS
from laconic.data.divide import hold_out
from laconic.data.federated import ClientData, Described, Indices, NamedInputs, fingerprint_of, sizes_of
from laconic.engine.choose import engine_for
from laconic.engine.doubts import doubt_outputs
from laconic.engine.faults import FaultyEngine, attack_factors
from laconic.engine.inline import ClientSpec
from laconic.engine.network import NetworkEngine
from laconic.engine.prepared import client_example, prepare, usable_device
from laconic.engine.process_engine import ProcessEngine
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
from laconic.federation.store import MemoryStore
from laconic.run.client_evaluation import ClientEvaluation
from laconic.run.diagnostics import Diagnostics
from laconic.run.evaluate import Measured, try_metrics
from laconic.run.full_gradient import FullGradient
from laconic.run.metrics import check_metrics
from laconic.run.records import Record
from laconic.run.settings import Settings
from laconic.run.training import DIVERGENCE_HINT, Diverged, Training, weighting_of

Built = TypeVar("Built", nn.Module, nn.Module | Task)
Model = str | nn.Module | Task | Callable[[], nn.Module | Task]
"""A model's name, the model itself, or a function that builds it."""
LISTED = 1000
"""The largest number of clients of a round whose ids are in its record without diagnostics."""


class Simulation(Training):
    """A server, an engine and all clients in one process. The constructor checks everything before any training."""

    client_evaluation: ClientEvaluation | None = None

    def __init__(self, algorithm: Algorithm, task: Task, data: ClientData, settings: Settings) -> None:
        if settings.engine == "ray":
            settings = settings.model_copy(update={"ray": connect(settings.ray, settings.threads or 1)})
        check_metrics(settings, task, data)
        whole = data
        held_out: list[Indices] | None = None
        if settings.client_eval is not None:
            data, held_out = hold_out(whole, settings.client_eval)
        self.database = Database(settings.store_cache) if settings.store == "disk" else None
        self.store = MemoryStore() if self.database is None else DiskStore(self.database)
        attackers = frozenset(attack_factors(settings.faults, len(data), Randomness(settings.seed)))
        self.policy = SimulationPolicy(Blocklist(settings.max_violations), attackers)
        algorithm.method.check(sizes_of(data), weighting_of(algorithm, settings, len(data)))
        device = usable_device(settings.device)
        example = client_example(data, 0)
        task = _with_shapes(task, example(torch.float32), settings.seed) if is_unshaped(task.module) else task
        space = (settings.subspace, settings.seed, settings.subspace_every)
        prepared = prepare(task, settings.numerics, device, example, data.classes, *space)
        if prepared.batch is not None:
            doubt_outputs(prepared.task, data.classes, prepared.batch)
        if settings.engine == "auto":
            length = (settings.rounds, settings.participants or len(data))
            chosen = engine_for(algorithm, prepared.numerics, device.type, *length)
            settings = settings.model_copy(update={"engine": chosen})
        links = None if self.database is None else DiskClientLinkState(self.database)
        super().__init__(algorithm, prepared, data, settings, policy=self.policy, links=links)
        settings = self.settings
        spec = ClientSpec(
            self.algorithm,
            prepared,
            data,
            settings.seed,
            frozen_buffers=settings.buffers == "frozen",
            probing=settings.diagnostics,
            chunk=settings.chunk,
            participants=settings.participants,
        )
        # Also needed with Ray workers: this process evaluates and measures the full gradient.
        self.local_engine = spec.engine(self.store, settings.threads)
        assert prepared.batch is not None
        self._warm_up(prepared.batch)
        self.engine: SimulatedEngine = self.local_engine
        self.processes: ProcessEngine | None = None
        self.workers: RayEngine | None = None
        self.faulty: FaultyEngine | None = None
        self.network: NetworkEngine | None = None
        self._choose_engine(spec, settings)
        self.diagnostics = Diagnostics(self.algorithm.uplink.effective) if settings.diagnostics else None
        self.full_gradient = FullGradient(self.local_engine, self.server.weighting) if settings.full_gradient else None
        if held_out is not None:
            steps = settings.personalize
            self.client_evaluation = ClientEvaluation(self.local_engine, self.task, whole, held_out, steps)

    def _choose_engine(self, spec: ClientSpec, settings: Settings) -> None:
        """Put the engine of the settings in place of the local one, and faults and the network around it."""
        if settings.engine == "processes":
            count = settings.threads or os.cpu_count() or 1
            self.engine = self.processes = ProcessEngine(spec, self.local_engine, self.store, count)
        if settings.engine == "ray":
            threads = settings.threads or 1
            self.engine = self.workers = RayEngine(spec, settings.ray, threads=threads, cache=settings.store_cache)
        if settings.faults.any():
            self.engine = self.faulty = FaultyEngine(
                self.engine, settings.faults, self.server.randomness, clients=len(spec.data), layout=self.layout
            )
        if settings.network.any():
            self.engine = self.network = NetworkEngine(self.engine, settings.network, self.server.randomness)

    def map(self, function: Callable[[int], Measured], batches: Iterable[int]) -> Iterable[Measured]:
        return self.local_engine.map(function, batches)

    def _warm_up(self, batch: tuple[torch.Tensor, ...]) -> None:
        try:
            self.local_engine.warm_up(batch)
        except BaseException:
            self.local_engine.close()
            raise

    def start(self) -> None:
        """Start the workers, unless they are running."""
        for engine in (self.workers, self.processes):
            if engine is not None:
                engine.start()

    def rounds(self) -> Generator[Record, None, None]:
        """Start the workers first, so that their start-up time does not count for the first round."""
        if self.server.round < self.settings.rounds:
            self.start()
        yield from super().rounds()

    def _round(self) -> Round:
        finished = super()._round()
        if isinstance(self.store, MemoryStore):
            for client in {client for clients in finished.clients_by_phase.values() for client in clients}:
                self.store.commit(client, int(self.server.clients.sequences[client]))
        if self.policy.diverged:
            raise Diverged(f"the update of a client is not finite in round {self.server.round}: {DIVERGENCE_HINT}")
        if self.policy.blocklist.blocked_count() == len(self.data):
            raise Diverged(f"all clients are blocked after round {self.server.round}: their updates were refused")
        return finished

    def _measured(self, evaluated: bool) -> Record:
        record: Record = {}
        if evaluated and self.full_gradient is not None:
            record |= self.full_gradient.measure(self.server)
        if evaluated and self.client_evaluation is not None:
            record |= self.client_evaluation.measure(self.server)
        assert self.last_round is not None
        by_phase = self.last_round.clients_by_phase
        if self.diagnostics is not None or sum(map(len, by_phase.values())) <= LISTED:
            record["clients"] = {phase: sorted(clients) for phase, clients in by_phase.items()}
        if self.diagnostics is not None:
            server = self.server
            context = RoundContext(self.layout, server.randomness, server.round, invited=server.count)
            record |= self.diagnostics.measure(self.last_round.probes, context)
            record |= self._rates(self.last_round.costs)
        if self.network is not None:
            record["simulated_seconds"] = self.network.seconds
            record |= {"cut_off": self.network.cut_off} if self.network.cut_off else {}
        return record

    def _rates(self, costs: Ledger) -> dict[str, float]:
        """The share of skipped messages and accelerated updates, and the norm of the server's error memory."""
        state = self.server.downlink_state
        rates = {
            "skip_rate": costs.skipped / max(1, costs.updates),
            "skip_rate_down": costs.skipped_down / max(1, costs.invited),
            "acceleration_rate": costs.accelerated / max(1, costs.updates),
        }
        if "phi" in state:
            rates["server_memory_norm"] = float(torch.linalg.vector_norm(state["phi"]))
        return rates

    def keep_in(self, folder: Path) -> None:
        """Let workers store client states in `folder`. They commit a round only after its checkpoint is durable."""
        if self.workers is not None:
            self.workers.keep_in(folder)
            self.server.rounds_are_durable = False

    @property
    def clients_keep_state(self) -> bool:
        return self.workers is not None

    def figures(self) -> dict[str, np.ndarray]:
        similarity = None if self.full_gradient is None else self.full_gradient.similarity
        return {} if similarity is None else {"gradient_similarity": similarity}

    def client_values(self) -> dict[str, list[float]]:
        measured = self.client_evaluation
        if measured is None or not measured.values:
            return {}
        return {"client": [*map(float, measured.clients)]} | measured.values

    def metric_names(self) -> set[str]:
        names = super().metric_names()
        if self.client_evaluation is not None and self._example is not None:
            names |= self.client_evaluation.names(try_metrics(self.task, self._example))
        return names

    def fingerprints(self) -> dict[str, Any]:
        return self._fingerprints

    @cached_property
    def _fingerprints(self) -> dict[str, Any]:
        # Computed once: every checkpoint has them, and frozen parameters may be large.
        return super().fingerprints() | {
            "task": self.task.fingerprint(),
            "data": fingerprint_of(self.data),
            "numerics": self.settings.numerics.model_dump_json(),
        }

    def state_dict(self) -> StateDict:
        """The state needed to resume, without client states that are in a database."""
        if self.workers is not None:
            # The checkpoint refers to the workers' files, so they must be durable first.
            self.workers.flush(self.server.round)
        state = super().state_dict() | {"blocklist": self.policy.blocklist.state_dict()}
        if isinstance(self.store, MemoryStore):
            state |= joined({"clients": self.store.state_dict()})
        if self.faulty is not None:
            state |= joined({"faults": self.faulty.state_dict()})
        if self.workers is not None:
            state["places"] = self.workers.addresses
        if self.network is not None:
            state["simulated_seconds"] = self.network.seconds
        return state

    def load_state_dict(self, state: StateDict) -> None:
        super().load_state_dict(state)
        self.policy.blocklist.load_state_dict(state["blocklist"])
        if isinstance(self.store, MemoryStore):
            self.store.load_state_dict(section(state, "clients"))
        if self.faulty is not None:
            self.faulty.load_state_dict(section(state, "faults"))
        if self.workers is not None:
            self.workers.resume(state["places"], self.server.round)
        if self.network is not None:
            self.network.seconds = state["simulated_seconds"]

    def close(self) -> None:
        self.local_engine.close()
        for engine in (self.workers, self.processes):
            if engine is not None:
                engine.close()
        if self.database is not None:
            self.database.close()


class SimulationPolicy(ReplyPolicy):
    """Detects divergence: an honest client whose update is not finite."""

    def __init__(self, blocklist: Blocklist, attackers: frozenset[int]) -> None:
        super().__init__(blocklist)
        self.attackers = attackers
        self.diverged = False

    def judge(self, report: ExchangeReport) -> Outcome:
        """Block attackers. If an honest client's update is not finite, training has diverged."""
        self.diverged |= any(
            refusal.error.reason == "not finite" and refusal.client not in self.attackers for refusal in report.refusals
        )
        return super().judge(report)


def initial_module(build: Callable[[], Built], seed: int) -> Built:
    """Build a module, or a task with one. Its initial weights depend only on the seed: server and clients build the same."""
    _refuse_required(build)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Randomness(seed).integer(Draw.INITIAL_MODEL))
        return build()


def _refuse_required(build: Callable[[], object]) -> None:
    """Refuse a class or function that needs arguments, such as `nn.Linear`."""
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        name = getattr(build, "__name__", type(build).__name__)
        how = f"pass a module, as in model={name}(…), or a function without arguments, as in model=lambda: {name}(…)"
        raise ConfigError(f"model: {name} needs arguments ({error}); {how}") from None


def _with_shapes(task: Task, batch: Batch, seed: int) -> Task:
    """The task with shapes and initial weights for lazy layers, such as nn.LazyLinear, which depend only on the seed."""
    try:
        module = copy.deepcopy(task.module)
    except ValueError:  # lazy buffers, as those of LazyBatchNorm1d, cannot be copied
        raise ConfigError(UNSHAPED) from None
    task.check(batch)

    def build() -> nn.Module:
        with torch.no_grad():
            module.eval()(*batch[:-1])
        return module.train(task.module.training)

    return replace(task, module=initial_module(build, seed))


def task_of(model: Model, data: Described, seed: int) -> Task:
    """The task of a model. A model that is built here has initial weights that depend only on the seed."""
    if isinstance(model, str):
        name = model
        return make_task(initial_module(lambda: models.build(name, data.input_shape, data.classes or 1), seed), data)
    if callable(model) and not isinstance(model, nn.Module):
        model = initial_module(model, seed)
    return make_task(model, data)


def make_task(model: nn.Module | Task, data: Described) -> Task:
    """The built-in task for this kind of data. A given task keeps its loss; the module's own loss gets inputs by name."""
    if isinstance(model, Task):
        return _own_loss_by_name(model, data) if model.loss is own_loss else _outputs_by_name(model, data)
    if not isinstance(model, nn.Module):
        raise _no_module(model)
    return TASKS[data.kind](_by_name(model, data))


def _own_loss_by_name(task: Task, data: Described) -> Task:
    if data.kind == "next_token":
        raise ConfigError(
            "Task: the targets of next_token data are already shifted, and a module's own loss shifts its labels once more; "
            "pass the module without a Task"
        )
    task = replace(task, module=_by_name(task.module, data))
    if data.kind != "per_position":
        return task
    # Padding is no part of a metric, either.
    built_in = TASKS[data.kind](task.module)
    return replace(task, counted=task.counted or built_in.counted, predict=task.predict or built_in.predict)


def _outputs_by_name(task: Task, data: Described) -> Task:
    """The task, which gets outputs for its metrics by name. Its loss calls the module as it likes."""
    names = data.input_names if isinstance(data, NamedInputs) else ()
    parameters = inspect.signature(task.module.forward).parameters
    needed = [name for name in names if name in parameters or name not in TOKENS]
    if task.predict is not None or not needed or not all(name in parameters for name in needed):
        return task
    return replace(task, predict=partial(_named_outputs, {name: names.index(name) for name in needed}))


def _named_outputs(positions: Mapping[str, int], module: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    called: Any = partial(module, **{name: batch[position] for name, position in positions.items()})
    return output_of(called, batch[-1:]), batch[-1]


def _by_name(module: nn.Module, data: Described) -> nn.Module:
    names = data.input_names if isinstance(data, NamedInputs) else ()
    return called_by_name(module, names, TOKENS) if names else module


def _no_module(given: object) -> ConfigError:
    hint = "; load a state dict into a module first: module.load_state_dict(…)" if isinstance(given, Mapping) else ""
    return ConfigError(f"model: a torch.nn.Module or a Task is needed, not {type(given).__name__}{hint}")
