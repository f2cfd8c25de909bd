"""The inline engine: runs all clients in this process, chunk by chunk, on Python threads.

Torch releases the GIL inside its operators, so two Python threads with one torch thread each use two cores better than one
call with two torch threads. Replies are returned in order, so results do not depend on the speed of a thread.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from laconic.algorithms.algorithm import Algorithm
from laconic.core.errors import ConfigError
from laconic.core.randomness import Randomness
from laconic.core.task import Batch
from laconic.data.federated import ClientData
from laconic.engine.prepared import PreparedTask
from laconic.engine.simulated import ChunkedEngine
from laconic.federation.client import ClientRuntime
from laconic.federation.messages import Instruction, Reply
from laconic.federation.store import ClientStore
from laconic.gradients.base import Gradients
from laconic.gradients.strategies import check_numerics, make_gradients

Item = TypeVar("Item")
Result = TypeVar("Result")
CACHE_BYTES = 3_500_000
"""The total size of the models in a chunk of the strategy `stacked`, so that they fit in a core's cache."""
COMPILED_BYTES = 8_000_000
"""The same for the strategy `compiled`. Only one client's model at a time needs to be in the cache. With larger chunks,
Python's own code and data stay there, too (docs/performance.md, "Compiled kernels")."""
MOST_STACKED = 25
"""The maximum number of clients in a chunk of these strategies. More clients are not faster."""
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval. Rounds of small models are up to 7 % faster than with Python's default of 0.005."""


@dataclass(frozen=True)
class ClientSpec:
    """Everything that an engine needs to run clients, in this process, in a Ray worker or on a node, except their states."""

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
        return InlineEngine(self, store, threads)


class InlineEngine(ChunkedEngine):
    """Runs clients on threads. `threads` and the spec's `chunk` change the speed, not the results."""

    def __init__(self, spec: ClientSpec, store: ClientStore, threads: int | None) -> None:
        prepared, method = spec.prepared, spec.algorithm.method
        numerics = prepared.numerics
        check_numerics(prepared.task, numerics, prepared.stochastic, spec.frozen_buffers)
        if method.one_at_a_time and numerics.dtype == "bfloat16":
            raise ConfigError(
                "dtype = 'bfloat16': method.function computes its own gradients; use torch.autocast there"
            )
        self.runtime = ClientRuntime(
            spec.algorithm,
            prepared.task,
            prepared.layout,
            prepared.initial_model.cpu(),
            prepared.initial_buffers.cpu(),
            spec.data,
            Randomness(spec.seed),
            store,
            prepared.device,
            probing=spec.probing,
        )
        self.threads = 1 if method.one_at_a_time else threads or os.cpu_count() or 1
        widths = {"loop": 1, "vmap": numerics.vmap_width}
        most_bytes = COMPILED_BYTES if numerics.strategy == "compiled" else CACHE_BYTES
        self.chunk = spec.chunk or widths.get(numerics.strategy, self._share(spec.participants, most_bytes))
        if method.one_at_a_time:
            self.chunk = 1
        gradient_arguments = prepared.task, prepared.layout, numerics, prepared.stochastic, spec.frozen_buffers
        self._local = threading.local()
        self._operator_threads = torch.get_num_threads()
        # A thread that returns from an operator waits up to this interval for the GIL.
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_SECONDS, self._switch_interval))
        # The pool must not refer to the engine: such a cycle would keep the states of all clients after the run.
        operator_threads = self._operator_threads if method.one_at_a_time else 1
        start = partial(_start_thread, self._local, operator_threads, gradient_arguments)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="laconic", initializer=start)

    def _share(self, participants: int | None, most_bytes: int) -> int:
        """The size of a chunk: the largest whose models fit, and that gives every thread the same number of chunks."""
        model_bytes = self.runtime.layout.full.size * self.runtime.layout.dtype.itemsize
        most = min(max(1, most_bytes // model_bytes), MOST_STACKED)
        chunks_per_thread = -(-(participants or most) // (self.threads * most))
        return -(-(participants or most) // (self.threads * chunks_per_thread))

    @property
    def gradients(self) -> Gradients:
        """The gradient function of the current thread, which must be one of the engine's threads."""
        gradients: Gradients = self._local.gradients
        return gradients

    def _run_chunk(self, instructions: Sequence[Instruction]) -> list[Reply]:
        return self.runtime.answer(instructions, self.gradients)

    def warm_up(self, batch: Batch) -> None:
        """Compute one gradient on every thread, so that torch's one-time initialization is not part of a round."""
        if self.runtime.algorithm.method.one_at_a_time:
            return
        # The barrier keeps one thread from taking two calls.
        barrier = threading.Barrier(self.threads)

        def call() -> None:
            barrier.wait()
            model, buffers = self.runtime.initial_model.to(self.runtime.device), self.runtime.initial_buffers
            self.gradients(model[None], buffers.to(self.runtime.device)[None].clone(), [batch], lambda row: 0)

        for future in [self._pool.submit(call) for _ in range(self.threads)]:
            future.result()

    def close(self) -> None:
        """Stop the threads, and restore torch's thread count and the interpreter's switch interval."""
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._operator_threads)
        # If several engines are open, the first one that was opened restores the original interval.
        if math.isclose(sys.getswitchinterval(), SWITCH_SECONDS):
            sys.setswitchinterval(self._switch_interval)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Apply a function, such as evaluation, on the engine's threads. Results are in order."""
        return self._pool.map(function, items)


def _start_thread(local: threading.local, operator_threads: int, gradient_arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(operator_threads)
    local.gradients = make_gradients(*gradient_arguments)
