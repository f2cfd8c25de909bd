"""The Ray engine: clients on many cores and many machines, with the inline engine's results, bit for bit.

Every worker is an actor that owns the clients i with i mod workers = its number: their data and their states
(`engine/shard.py`). Instructions and replies, that is packets and a few numbers, are all that passes. Randomness is named
and sums run in client order, so nothing depends on the number of workers or on who is faster.

A worker that dies is started again on its store, on the machine where that lies if it is still there. Clients whose answers
were lost with it are left out of the round, which costs them nothing (design rule 5), or asked again (`repeat`).
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
from laconic.core.user_code import own_modules
from laconic.data.owned import part_of
from laconic.engine import ray_actors as hosts
from laconic.engine.client_spec import ClientSpec
from laconic.engine.inline import MOST_STACKED
from laconic.engine.settings import RaySettings
from laconic.engine.simulated import SimulatedEngine
from laconic.federation.messages import FaultInjection, Instruction, Reply

LOG = getLogger("laconic")
TOGETHER, BYTES_TOGETHER = 8, 16_000_000
"""Clients that a worker is asked for in one call, unless their packets are large: a call costs a few milliseconds."""
BYTES_UNDER_WAY = 256_000_000
"""Of packets that were handed to workers and not answered yet; two clients of each worker are always allowed."""
DEATHS = 3
"""A worker that dies so often without having answered anything will not live the next time either."""


@dataclass
class _Piece:
    """Clients of one shard that are asked together."""

    shard: int
    instructions: list[Instruction] = field(default_factory=list)
    bytes: int = 0
    life: int = 0
    """Which of the shard's workers was asked."""
    answer: Any = None
    replies: dict[int, Reply] | None = None


@dataclass
class _Worker:
    """The actor of a shard, and those before it."""

    spec: Any
    """What it is given to do, in Ray's store."""
    host: hosts.Host | None = None
    life: int = 0
    idle_deaths: int = 0
    """How often it has died since it last answered."""


class RayEngine(SimulatedEngine):
    """Runs a round's clients on workers."""

    def __init__(self, spec: ClientSpec, settings: RaySettings, *, threads: int, cache: int) -> None:
        assert settings.workers is not None
        self._spec, self._settings, self._threads = spec, settings, threads
        self._shards = min(settings.workers, len(spec.data))
        self._cache = cache // self._shards
        self._operator_threads = torch.get_num_threads()
        numerics = spec.prepared.numerics
        at_once = {"loop": 1, "vmap": numerics.vmap_width}.get(numerics.strategy, MOST_STACKED)
        self._together = max(TOGETHER, threads * (spec.chunk or at_once))
        self._workers: list[_Worker] = []
        self._fresh = True
        self._kept = False
        self._folder = Path(settings.folder or tempfile.gettempdir()) / f"laconic-{uuid4().hex[:12]}"
        self.places: list[str] = []
        """Of each shard, the address of the machine that has its store."""

    def keep_in(self, folder: Path) -> None:
        """Let the stores outlive this engine: below `folder`, unless the settings say where."""
        self._kept = True
        name = f"{folder.name}-shards" if self._settings.folder else "shards"
        self._folder = (Path(self._settings.folder) if self._settings.folder else folder).resolve() / name

    def go_on(self, places: list[str]) -> None:
        """The stores are those of an earlier engine, on these machines."""
        self._fresh, self.places = False, places

    def run(self, instructions: Iterable[Instruction]) -> Iterator[Reply]:
        """Replies in the order of the instructions, with a bounded number of them under way."""
        self.start()
        line: deque[tuple[Instruction, _Piece]] = deque()
        filling: dict[int, _Piece] = {}
        under_way = 0
        for instruction in instructions:
            shard = instruction.client % self._shards
            piece = filling.setdefault(shard, _Piece(shard))
            piece.instructions.append(instruction)
            line.append((instruction, piece))
            under_way += _size(instruction)
            piece.bytes += _size(instruction)
            if len(piece.instructions) == self._together or piece.bytes > BYTES_TOGETHER:
                self._send(filling.pop(shard))
            while under_way > BYTES_UNDER_WAY and len(line) > 2 * self._shards:
                under_way -= _size(line[0][0])
                yield from self._next(line)
        for piece in filling.values():
            self._send(piece)
        while line:
            yield from self._next(line)

    def _next(self, line: deque[tuple[Instruction, _Piece]]) -> Iterator[Reply]:
        instruction, piece = line.popleft()
        replies = self._answers(piece)
        if instruction.client in replies:
            yield replies.pop(instruction.client)

    def _send(self, piece: _Piece) -> None:
        piece.life = self._workers[piece.shard].life
        piece.answer = self._host(piece.shard).actor.run.remote(piece.instructions)

    def _answers(self, piece: _Piece) -> dict[int, Reply]:
        """A piece's replies by client; empty if its worker died and nobody is asked again."""
        while piece.replies is None:
            if piece.answer is None:  # still being filled, or to be asked again
                self._send(piece)
            found = self._got(piece.answer)
            if not isinstance(found, Exception):
                self._workers[piece.shard].idle_deaths = 0
                piece.replies = {reply.client: reply for reply in found}
                break
            if self._workers[piece.shard].life == piece.life:
                self._restart(piece.shard, found)
            if not self._settings.repeat:
                piece.replies = {}
                LOG.warning("going on without %d clients of worker %d", len(piece.instructions), piece.shard)
                break
            piece.instructions = [
                replace(each, injected=each.injected | FaultInjection.ASKED_AGAIN) for each in piece.instructions
            ]
            piece.answer = None
        piece.instructions, piece.answer = [], None
        return piece.replies

    def _got(self, answer: Any) -> Any:
        """What a call returned; the exception if the worker is gone. What its own code raised is raised here."""
        import ray

        try:
            return ray.get(answer)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            return error

    def start(self) -> None:
        """Give every worker its work, all at once, when they are first needed."""
        if self._workers:
            return
        import ray
        from ray import cloudpickle

        for module in own_modules():
            # No other process could import a file that was run by its path.
            cloudpickle.register_pickle_by_value(module)
        hosts.make_room(self._shards, self._threads)
        share = None if self._spec.participants is None else -(-self._spec.participants // self._shards)
        opening = []
        for shard in range(self._shards):
            clients = range(shard, len(self._spec.data), self._shards)
            part = replace(self._spec, data=part_of(self._spec.data, clients), participants=share)
            worker = _Worker(ray.put(part))
            self._workers.append(worker)
            worker.host = hosts.take(self._threads, self.places[shard] if self.places else None)
            opening.append(self._open(shard, self._fresh))
        for shard, answer in enumerate(opening):
            self._opened(shard, answer)
        self.places = [self._host(shard).address for shard in range(self._shards)]
        self._fresh = False

    def _host(self, shard: int) -> hosts.Host:
        host = self._workers[shard].host
        assert host is not None
        return host

    def _open(self, shard: int, fresh: bool) -> Any:
        return self._host(shard).actor.open.remote(
            self._workers[shard].spec,
            self._folder / f"{shard}.sqlite",
            threads=self._threads,
            operator_threads=self._operator_threads,
            cache=self._cache,
            fresh=fresh,
        )

    def _opened(self, shard: int, answer: Any) -> None:
        hosts.locate(self._host(shard))
        found = self._got(answer)
        if isinstance(found, Exception):
            self._restart(shard, found)

    def _restart(self, shard: int, error: Exception) -> None:
        """Another worker on the same store, on the same machine if that is still there."""
        worker, before = self._workers[shard], self._host(shard)
        worker.idle_deaths += 1
        if worker.idle_deaths >= DEATHS:
            line = " ".join(str(error).split())
            raise LaconicError(f"ray: worker {shard} died {DEATHS} times in a row: {line[:300]}") from error
        LOG.warning("worker %d died (%s); another one takes its place", shard, type(error).__name__)
        # It may only be out of reach: two workers on one store must not be.
        hosts.end(before)
        worker.host = hosts.take(self._threads, before.address)
        worker.life += 1
        self._opened(shard, self._open(shard, self._fresh))

    def flush(self) -> None:
        """Let all that workers have answered survive a power cut, too."""
        answers = [self._host(shard).actor.flush.remote() for shard in range(len(self._workers))]
        for shard, answer in enumerate(answers):
            found = self._got(answer)
            while isinstance(found, Exception):
                self._restart(shard, found)
                found = self._got(self._host(shard).actor.flush.remote())

    def close(self) -> None:
        """Let go of the workers; their stores stay if they were given a place."""
        used = [self._host(shard) for shard in range(len(self._workers))]
        self._workers = []
        for host, answer in [(host, host.actor.close.remote(not self._kept)) for host in used]:
            try:
                alive = not isinstance(self._got(answer), Exception)
            except Exception:
                # It has never been opened, or was broken off: not one to use again.
                alive = False
            (hosts.give_back if alive else hosts.end)(host)


def _size(instruction: Instruction) -> int:
    return sum(map(len, instruction.packets))
