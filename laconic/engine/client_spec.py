"""What clients do in a run, settled and checked, wherever they do it: in this process, in a worker, on a node."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from laconic.algorithms.algorithm import Algorithm
from laconic.core.layout import Layout
from laconic.core.randomness import Randomness
from laconic.core.task import Task
from laconic.data.federated import ClientData
from laconic.engine.inline import InlineEngine
from laconic.federation.client import ClientRuntime
from laconic.federation.store import ClientStore
from laconic.gradients.named_rng import Stochastic
from laconic.gradients.numerics import Numerics


@dataclass(frozen=True)
class ClientSpec:
    """Everything that clients need, but for a place to keep their states."""

    algorithm: Algorithm
    task: Task
    """With the initial weights, on its device and of its type."""
    data: ClientData
    seed: int
    numerics: Numerics
    draws: Stochastic
    device: torch.device
    frozen_buffers: bool = False
    probing: bool = False
    chunk: int | None = None
    participants: int | None = None
    """Of a round, as far as they are this engine's."""

    def engine(self, store: ClientStore, threads: int | None) -> InlineEngine:
        """An engine in this process."""
        layout = Layout.of(self.task.module)
        runtime = ClientRuntime(
            self.algorithm,
            self.task,
            layout,
            layout.flatten(self.task.module).cpu(),
            layout.flatten_buffers(self.task.module).cpu(),
            self.data,
            Randomness(self.seed),
            store,
            self.device,
            probing=self.probing,
        )
        return InlineEngine(
            runtime,
            self.numerics,
            self.draws,
            frozen_buffers=self.frozen_buffers,
            threads=threads,
            chunk=self.chunk,
            participants=self.participants,
        )
