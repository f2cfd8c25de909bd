"""The inline engine: all clients in this process, chunk by chunk, on Python threads.

Torch lets go of the interpreter inside its operators, so two threads with one operator thread each use two cores better
than one call with two. Chunks come back in order, so nothing depends on which thread was faster.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

import torch

from laconic.core.task import Batch
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.client import ClientRuntime
from laconic.federation.messages import Instruction, Reply
from laconic.gradients.named_rng import Stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.strategies import Gradients, check_numerics, make_gradients

Item = TypeVar("Item")
CACHED = 3_500_000
"""Bytes of the models in one call of the strategy `stacked`: what stays in a core's caches from step to step."""
MOST_STACKED = 25
"""Clients in one call of it, however small they are: more gain nothing."""
Result = TypeVar("Result")


SWITCHING = 0.0005
"""Seconds after which a waiting thread gets the interpreter; 4 to 7 % of a round faster than Python's 0.005."""
LARGE = 16_000_000
"""Bytes of a chunk's instructions above which none waits for a thread: making the next one takes less than it weighs."""


class InlineEngine(SimulatedEngine):
    """Runs a round's clients; `threads` and `chunk` change the speed and nothing else."""

    def __init__(
        self,
        runtime: ClientRuntime,
        numerics: Numerics,
        stochastic: Stochastic,
        *,
        frozen_buffers: bool = False,
        threads: int | None = None,
        chunk: int | None = None,
        participants: int | None = None,
    ) -> None:
        check_numerics(runtime.task.module, numerics, stochastic, frozen_buffers)
        self.runtime = runtime
        self.threads = 1 if runtime.algorithm.method.one_at_a_time else threads or os.cpu_count() or 1
        self.chunk = chunk or {"loop": 1, "vmap": numerics.vmap_width}.get(numerics.strategy, self._share(participants))
        if runtime.algorithm.method.one_at_a_time:
            self.chunk = 1
        self._how = (runtime.task, runtime.layout, numerics, stochastic, frozen_buffers)
        self._local = threading.local()
        self._operator_threads = torch.get_num_threads()
        # How long a thread that comes out of an operator waits for the interpreter while another computes in Python.
        self._switching = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCHING, self._switching))
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="laconic", initializer=self._start_thread)

    def _share(self, participants: int | None) -> int:
        """How many of a round's clients make a chunk: few enough that every thread has as many chunks."""
        model = self.runtime.layout.size * self.runtime.layout.dtype.itemsize
        most = min(max(1, CACHED // model), MOST_STACKED)
        turns = -(-(participants or most) // (self.threads * most))
        return -(-(participants or most) // (self.threads * turns))

    def _start_thread(self) -> None:
        alone = self.runtime.algorithm.method.one_at_a_time
        torch.set_num_threads(self._operator_threads if alone else 1)
        self._local.gradients = make_gradients(*self._how)

    @property
    def gradients(self) -> Gradients:
        """The gradient function of the present thread, one of the engine's own."""
        found: Gradients = self._local.gradients
        return found

    def _run_chunk(self, instructions: Sequence[Instruction]) -> list[Reply]:
        return self.runtime.run(instructions, self.gradients)

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """Replies in the order of the instructions, with a bounded number of chunks under way."""
        under_way: deque[Future[list[Reply]]] = deque()
        waiting = iter(instructions)
        try:
            while piece := list(islice(waiting, self.chunk)):
                large = sum(len(packet) for each in piece for packet in each.packets) > LARGE
                under_way.append(self._pool.submit(self._run_chunk, piece))
                del piece
                while len(under_way) > (self.threads - 1 if large else 2 * self.threads):
                    yield from under_way.popleft().result()
            while under_way:
                yield from under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()

    def warm_up(self, batch: Batch) -> None:
        """One gradient call on every thread, so that no round pays for what torch does once."""
        if self.runtime.algorithm.method.one_at_a_time:
            return
        together = threading.Barrier(self.threads)

        def call() -> None:
            together.wait()
            model, buffers = self.runtime.initial_model.to(self.runtime.device), self.runtime.initial_buffers
            self.gradients(model[None], buffers.to(self.runtime.device)[None].clone(), [batch], lambda row: 0)

        for future in [self._pool.submit(call) for _ in range(self.threads)]:
            future.result()

    def close(self) -> None:
        """Stop the threads, and give the caller's operators their cores back."""
        self._pool.shutdown(cancel_futures=True)
        torch.set_num_threads(self._operator_threads)
        # Another engine that is there still has its own, and the later of the two restores what was there first.
        if math.isclose(sys.getswitchinterval(), SWITCHING):
            sys.setswitchinterval(self._switching)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Other work, such as evaluation, on the same threads; results in order."""
        return self._pool.map(function, items)
