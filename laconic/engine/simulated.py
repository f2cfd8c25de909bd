"""Engines whose clients are simulated: every reply is well formed."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from laconic.federation.engine import Engine
from laconic.federation.messages import Instruction, Reply

LARGE_BYTES = 16_000_000
"""Chunks with larger instructions are not queued: encoding the next one takes little time, but storing it much memory."""


class SimulatedEngine(Engine):
    """Base of the engines of simulations, and of the engines that add faults or a network to another engine."""

    @abstractmethod
    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """The replies, in the order of the instructions."""


class ChunkedEngine(SimulatedEngine):
    """Runs chunks of clients on the threads of a pool. Replies are in order, whichever thread is faster."""

    threads: int
    """The number of chunks that run at the same time."""
    chunk: int
    """The number of clients in a chunk."""
    _pool: ThreadPoolExecutor

    @abstractmethod
    def _run_chunk(self, instructions: Sequence[Instruction]) -> list[Reply]: ...

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """Replies in the order of the instructions, with a bounded number of chunks in flight."""
        in_flight: deque[Future[list[Reply]]] = deque()
        remaining = iter(instructions)
        try:
            while chunk := list(islice(remaining, self.chunk)):
                large = sum(instruction.size for instruction in chunk) > LARGE_BYTES
                in_flight.append(self._pool.submit(self._run_chunk, chunk))
                del chunk
                while len(in_flight) > (self.threads - 1 if large else 2 * self.threads):
                    yield from in_flight.popleft().result()
            while in_flight:
                yield from in_flight.popleft().result()
        finally:
            for future in in_flight:
                future.cancel()
