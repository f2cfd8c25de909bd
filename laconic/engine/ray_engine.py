"""The Ray engine: runs clients on many cores and machines, with the same results as the inline engine, bit for bit.

Worker w owns the data and states of the clients i with i mod workers = w (`engine/shard.py`). Only instructions and replies
travel between processes. Randomness is named and replies are summed in client order, so results do not depend on the number
or the speed of workers.

A new worker replaces one that dies. It opens the same store, if possible on the same machine. Clients whose replies were
lost are left out of the round without harm, or run again (`repeat`).
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from laconic.core.errors import LaconicError
from laconic.core.user_code import pickle_own_modules
from laconic.data.owned import part_of
from laconic.engine import ray_actors
from laconic.engine.inline import MOST_STACKED, ClientSpec
from laconic.engine.settings import RaySettings
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import FaultInjection, Instruction, Reply

LOG = getLogger("laconic")
CLIENTS_PER_CALL, BYTES_PER_CALL = 8, 16_000_000
"""The least number of clients per call, unless their packets are large. A call takes a few milliseconds."""
BYTES_IN_FLIGHT = 256_000_000
"""The maximum size of instructions without a reply. Two clients per worker are always allowed."""
MAX_DEATHS = 3
"""The run fails if a worker dies this many times in a row without a reply."""


@dataclass
class _Call:
    """One call of a worker: instructions for clients of its shard."""

    shard: int
    instructions: list[Instruction] = field(default_factory=list)
    bytes: int = 0
    generation: int = 0
    """The generation of the worker that was called."""
    future: Any = None
    replies: dict[int, Reply] | None = None


@dataclass
class _Worker:
    """The worker of a shard."""

    spec: Any
    """A reference to its `ClientSpec` in Ray's object store."""
    actor: ray_actors.PooledActor | None = None
    generation: int = 0
    """How often the actor was replaced."""
    idle_deaths: int = 0
    """How often an actor died since the last reply."""


class RayEngine(SimulatedEngine):
    """Runs clients on Ray workers."""

    def __init__(self, spec: ClientSpec, settings: RaySettings, *, threads: int, cache: int) -> None:
        assert settings.workers is not None
        self._spec, self._settings, self._threads = spec, settings, threads
        self._shards = min(settings.workers, len(spec.data))
        self._cache = cache // self._shards
        self._operator_threads = torch.get_num_threads()
        numerics = spec.prepared.numerics
        strategy_width = {"loop": 1, "vmap": numerics.vmap_width}.get(numerics.strategy, MOST_STACKED)
        self._clients_per_call = max(CLIENTS_PER_CALL, threads * (spec.chunk or strategy_width))
        self._workers: list[_Worker] = []
        self._fresh = True
        self._restore: int | None = None
        """The round of the checkpoint to return to when the workers start."""
        self._kept = False
        self._folder = Path(settings.folder or tempfile.gettempdir()) / f"laconic-{uuid4().hex[:12]}"
        self.addresses: list[str] = []
        """The address of the machine that has the store of each shard."""

    def keep_in(self, folder: Path) -> None:
        """Keep the stores after `close`, in `folder` or in the folder of the settings."""
        self._kept = True
        name = f"{folder.name}-shards" if self._settings.folder else "shards"
        self._folder = (Path(self._settings.folder) if self._settings.folder else folder).resolve() / name

    def resume(self, addresses: list[str], round: int) -> None:
        """Continue with the stores of an earlier engine on these machines, from the checkpoint of that round."""
        self._fresh, self.addresses, self._restore = False, addresses, round

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """Replies in the order of the instructions, with a bounded number of bytes in flight."""
        self.start()
        queue: deque[tuple[Instruction, _Call]] = deque()
        filling: dict[int, _Call] = {}
        in_flight = 0
        for instruction in instructions:
            shard = instruction.client % self._shards
            call = filling.setdefault(shard, _Call(shard))
            call.instructions.append(instruction)
            queue.append((instruction, call))
            in_flight += instruction.size
            call.bytes += instruction.size
            if len(call.instructions) == self._clients_per_call or call.bytes > BYTES_PER_CALL:
                self._send(filling.pop(shard))
            while in_flight > BYTES_IN_FLIGHT and len(queue) > 2 * self._shards:
                in_flight -= queue[0][0].size
                yield from self._next(queue)
        for call in filling.values():
            self._send(call)
        while queue:
            yield from self._next(queue)

    def _next(self, queue: deque[tuple[Instruction, _Call]]) -> Iterator[Reply]:
        instruction, call = queue.popleft()
        replies = self._replies(call)
        if instruction.client in replies:
            yield replies.pop(instruction.client)

    def _send(self, call: _Call) -> None:
        call.generation = self._workers[call.shard].generation
        call.future = self._actor(call.shard).handle.run.remote(call.instructions)

    def _replies(self, call: _Call) -> dict[int, Reply]:
        """The replies of a call by client; empty if its worker died and `repeat` is off."""
        while call.replies is None:
            if call.future is None:  # not sent yet, or to be repeated
                self._send(call)
            result = self._result(call.future)
            if not isinstance(result, Exception):
                self._workers[call.shard].idle_deaths = 0
                call.replies = {reply.client: reply for reply in result}
                break
            if self._workers[call.shard].generation == call.generation:
                self._restart(call.shard, result)
            if not self._settings.repeat:
                call.replies = {}
                LOG.warning("the round continues without %d clients of worker %d", len(call.instructions), call.shard)
                break
            call.instructions = [
                replace(instruction, injected=instruction.injected | FaultInjection.ASKED_AGAIN)
                for instruction in call.instructions
            ]
            call.future = None
        call.instructions, call.future = [], None
        return call.replies

    def _result(self, future: Any) -> Any:
        """The result of a call, or the exception if the worker is dead. Exceptions of the worker's code are raised."""
        import ray  # late: an extra

        try:
            return ray.get(future)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            return error

    def start(self) -> None:
        """Start all workers in parallel, unless they are running."""
        if self._workers:
            return
        import ray  # late: an extra
        from ray import cloudpickle

        pickle_own_modules(cloudpickle)
        ray_actors.trim_pool(self._shards, self._threads)
        share = None if self._spec.participants is None else -(-self._spec.participants // self._shards)
        futures = []
        for shard in range(self._shards):
            clients = range(shard, len(self._spec.data), self._shards)
            part = replace(self._spec, data=part_of(self._spec.data, clients), participants=share)
            worker = _Worker(ray.put(part))
            self._workers.append(worker)
            worker.actor = ray_actors.take(self._threads, self.addresses[shard] if self.addresses else None)
            futures.append(self._open(shard))
        for shard, future in enumerate(futures):
            self._opened(shard, future)
        self.addresses = [self._actor(shard).address for shard in range(self._shards)]
        self._fresh, self._restore = False, None

    def _actor(self, shard: int) -> ray_actors.PooledActor:
        actor = self._workers[shard].actor
        assert actor is not None
        return actor

    def _open(self, shard: int) -> Any:
        return self._actor(shard).handle.open.remote(
            self._workers[shard].spec,
            self._folder / f"{shard}.sqlite",
            threads=self._threads,
            operator_threads=self._operator_threads,
            cache=self._cache,
            fresh=self._fresh,
            restore=self._restore,
        )

    def _opened(self, shard: int, future: Any) -> None:
        ray_actors.locate(self._actor(shard))
        result = self._result(future)
        if isinstance(result, Exception):
            self._restart(shard, result)

    def _restart(self, shard: int, error: Exception) -> None:
        """Replace the actor of a shard. The new one uses the same store, if possible on the same machine."""
        worker, before = self._workers[shard], self._actor(shard)
        worker.idle_deaths += 1
        if worker.idle_deaths >= MAX_DEATHS:
            line = " ".join(str(error).split())
            raise LaconicError(f"ray: worker {shard} died {MAX_DEATHS} times in a row: {line[:300]}") from error
        LOG.warning("worker %d died (%s); starting a new one", shard, type(error).__name__)
        # The old actor may only be unreachable, and two actors must not use one store.
        ray_actors.stop(before)
        worker.actor = ray_actors.take(self._threads, before.address)
        worker.generation += 1
        self._opened(shard, self._open(shard))

    def flush(self, round: int) -> None:
        """Make all states of the workers survive a power failure, as part of the checkpoint of that round."""
        futures = [self._actor(shard).handle.flush.remote(round) for shard in range(len(self._workers))]
        for shard, future in enumerate(futures):
            result = self._result(future)
            while isinstance(result, Exception):
                self._restart(shard, result)
                result = self._result(self._actor(shard).handle.flush.remote(round))

    def close(self) -> None:
        """Return the actors to the pool. The stores are deleted unless `keep_in` was called."""
        actors = [self._actor(shard) for shard in range(len(self._workers))]
        self._workers = []
        for actor, future in [(actor, actor.handle.close.remote(not self._kept)) for actor in actors]:
            try:
                alive = not isinstance(self._result(future), Exception)
            except Exception:
                # An actor that was never opened, or was interrupted, cannot be reused.
                alive = False
            (ray_actors.give_back if alive else ray_actors.stop)(actor)
