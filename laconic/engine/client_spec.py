"""The specification of clients that an engine runs: in this process, in a Ray worker or on a node."""

from __future__ import annotations

from dataclasses import dataclass

from laconic.algorithms.algorithm import Algorithm
from laconic.core.randomness import Randomness
from laconic.data.federated import ClientData
from laconic.engine.inline import InlineEngine
from laconic.engine.prepared import PreparedTask
from laconic.federation.client import ClientRuntime
from laconic.federation.store import ClientStore


@dataclass(frozen=True)
class ClientSpec:
    """Everything that an engine needs to run clients, except the store of their states."""

    algorithm: Algorithm
    prepared: PreparedTask
    data: ClientData
    seed: int
    frozen_buffers: bool = False
    probing: bool = False
    chunk: int | None = None
    participants: int | None = None
    """The number of participants per round that this engine runs."""

    def engine(self, store: ClientStore, threads: int | None) -> InlineEngine:
        """An inline engine for these clients."""
        prepared = self.prepared
        runtime = ClientRuntime(
            self.algorithm,
            prepared.task,
            prepared.layout,
            prepared.initial_model.cpu(),
            prepared.initial_buffers.cpu(),
            self.data,
            Randomness(self.seed),
            store,
            prepared.device,
            probing=self.probing,
        )
        return InlineEngine(
            runtime,
            prepared.numerics,
            prepared.stochastic,
            frozen_buffers=self.frozen_buffers,
            threads=threads,
            chunk=self.chunk,
            participants=self.participants,
        )
