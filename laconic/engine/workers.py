"""The Ray engine: clients on many cores and many machines, with the inline engine's results, bit for bit.

Every worker is an actor that owns the clients i with i mod workers = its number: their data and their states
(`engine/shard.py`). Instructions and replies, that is packets and a few numbers, are all that passes. Randomness is named
and sums run in client order, so nothing depends on the number of workers or on who is faster.

A worker that dies is started again on its store, on the machine where that lies if it is still there. Clients whose answers
were lost with it are left out of the round, which costs them nothing (design rule 5), or asked again (`repeat`).
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import torch
from pydantic import BaseModel, ConfigDict, Field

from laconic.client.messages import Fate, Instruction, Reply
from laconic.data.owned import part_of
from laconic.engine.shard import Shard
from laconic.engine.work import Work
from laconic.errors import ConfigError, LaconicError
from laconic.own_code import own_modules

LOG = getLogger("laconic")
BYTES_UNDER_WAY = 256_000_000
"""Of packets that were handed to workers and not answered yet; two pieces for each worker are always allowed."""
START_SECONDS = 300.0
DEATHS = 3
"""A worker that dies so often without having answered anything will not live the next time either."""


class RaySettings(BaseModel):
    """How many workers, and where. Nothing here changes the result, unless a worker dies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Annotated[int, Field(ge=1)] | None = None
    """Processes over clients, each with a shard of them; one per core when not given."""
    address: str | None = None
    """Of a cluster that runs already, as `ray start` prints it, or "auto"; without one, Ray is started on this machine."""
    repeat: bool = False
    """Whether clients whose worker died are asked again; if not, the round goes on without them."""
    folder: str | None = None
    """Where each worker's machine keeps the states of its clients; below the run's directory when not given."""


def connect(settings: RaySettings, threads: int) -> RaySettings:
    """Join or start a Ray, once per process; the settings with the number of workers settled."""
    if find_spec("ray") is None:
        raise ConfigError("engine = 'ray': Ray is not installed; pip install 'laconic[ray]'")
    import ray

    # Ray would say so, and that it will do otherwise one day; here a worker has no GPU but what the run's device says.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not ray.is_initialized():
        own: dict[str, Any] = {"address": settings.address}
        if settings.address is None:
            cores = max(os.cpu_count() or 1, (settings.workers or 1) * threads)
            own = {"address": "local", "num_cpus": cores, "include_dashboard": False}
        try:
            ray.init(**own, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"ray.address = '{settings.address}': no Ray there: {line[:200]}") from None
    there = int(ray.cluster_resources().get("CPU", 0)) // threads
    workers = settings.workers or max(1, there)
    if workers > there:
        each = f" of {threads} threads" if threads > 1 else ""
        raise ConfigError(f"ray.workers = {workers}: the Ray that runs has room for {there} workers{each}")
    return settings.model_copy(update={"workers": workers})


@dataclass
class _Piece:
    """Clients of one shard that are asked together."""

    shard: int
    instructions: list[Instruction] = field(default_factory=list)
    life: int = 0
    """Which of the shard's workers was asked."""
    answer: Any = None
    replies: dict[int, Reply] | None = None


@dataclass
class _Worker:
    """The actor of a shard, and those before it."""

    work: Any
    """What it is made from, in Ray's store."""
    actor: Any
    life: int = 0
    idle_deaths: int = 0
    """How often it has died since it last answered."""
    place: tuple[str, str] = ("", "")


class RayEngine:
    """Runs a round's clients on workers; see `Engine`."""

    def __init__(self, work: Work, settings: RaySettings, *, threads: int, cache: int) -> None:
        assert settings.workers is not None
        self._work, self._settings, self._threads = work, settings, threads
        self._shards = min(settings.workers, len(work.data))
        self._cache = cache // self._shards
        vmap = work.numerics.strategy == "vmap"
        self._together = threads * (work.chunk or (work.numerics.vmap_width if vmap else 1))
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
        self._start()
        line: deque[tuple[Instruction, _Piece]] = deque()
        filling: dict[int, _Piece] = {}
        under_way = 0
        for instruction in instructions:
            shard = instruction.client % self._shards
            piece = filling.setdefault(shard, _Piece(shard))
            piece.instructions.append(instruction)
            line.append((instruction, piece))
            under_way += _size(instruction)
            if len(piece.instructions) == self._together:
                self._send(filling.pop(shard))
            while under_way > BYTES_UNDER_WAY and len(line) > 2 * self._shards * self._together:
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
        worker = self._workers[piece.shard]
        piece.life, piece.answer = worker.life, worker.actor.run.remote(piece.instructions)

    def _answers(self, piece: _Piece) -> dict[int, Reply]:
        """A piece's replies by client; empty if its worker died and nobody is asked again."""
        while piece.replies is None:
            if piece.answer is None:
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
            piece.instructions = [replace(each, fate=each.fate | Fate.ASKED_AGAIN) for each in piece.instructions]
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

    def _start(self) -> None:
        """Make the workers, all at once, when they are first needed."""
        if self._workers:
            return
        import ray
        from ray import cloudpickle

        for module in own_modules():
            # No other process could import a file that was run by its path.
            cloudpickle.register_pickle_by_value(module)
        for shard in range(self._shards):
            clients = range(shard, len(self._work.data), self._shards)
            work = ray.put(replace(self._work, data=part_of(self._work.data, clients)))
            where = self._node(self.places[shard]) if shard < len(self.places) else None
            self._workers.append(_Worker(work, self._actor(shard, work, where, self._fresh)))
        for shard in range(self._shards):
            self._greet(shard)
        self.places = [worker.place[1] for worker in self._workers]
        self._fresh = False

    def _actor(self, shard: int, work: Any, node: str | None, fresh: bool) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = "SPREAD" if node is None else NodeAffinitySchedulingStrategy(node, soft=True)
        actor = ray.remote(num_cpus=self._threads, scheduling_strategy=strategy)(Shard)
        made: Any = actor.remote(
            work,
            shard,
            self._folder / f"{shard}.sqlite",
            threads=self._threads,
            operator_threads=torch.get_num_threads(),
            cache=self._cache,
            fresh=fresh,
        )
        return made

    def _greet(self, shard: int) -> None:
        """Wait until a worker is there; what kept it from starting is raised."""
        import ray

        worker = self._workers[shard]
        try:
            worker.place = ray.get(worker.actor.place.remote(), timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise LaconicError(
                f"ray: worker {shard} has not started within {START_SECONDS:.0f} s: are the cluster's cores taken?"
            ) from None
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or _first_cause(error)
            if isinstance(cause, LaconicError):
                raise cause from None
            self._restart(shard, error)

    def _restart(self, shard: int, error: Exception) -> None:
        """Another worker on the same store, on the same machine if that is still there."""
        import ray

        worker = self._workers[shard]
        worker.idle_deaths += 1
        if worker.idle_deaths >= DEATHS:
            line = " ".join(str(error).split())
            raise LaconicError(f"ray: worker {shard} died {DEATHS} times in a row: {line[:300]}") from error
        LOG.warning("worker %d died (%s); it is started again", shard, type(error).__name__)
        # It may only be out of reach: two workers on one store must not be.
        ray.kill(worker.actor)
        fresh = self._fresh and not worker.place[0]
        worker.actor = self._actor(shard, worker.work, worker.place[0] or None, fresh)
        worker.life += 1
        self._greet(shard)

    def _node(self, address: str) -> str | None:
        """Ray's name of a machine that has that address, if it is there."""
        import ray

        alive = (node for node in ray.nodes() if node["Alive"])
        return next((node["NodeID"] for node in alive if node["NodeManagerAddress"] == address), None)

    def flush(self) -> None:
        """Let all that workers have answered survive a power cut, too."""
        answers = [worker.actor.flush.remote() for worker in self._workers]
        for shard, answer in enumerate(answers):
            found = self._got(answer)
            while isinstance(found, Exception):
                self._restart(shard, found)
                found = self._got(self._workers[shard].actor.flush.remote())

    def close(self) -> None:
        """Stop the workers; their stores stay if they were given a place."""
        import ray

        if not ray.is_initialized():
            return
        closing = [worker.actor.close.remote(not self._kept) for worker in self._workers]
        ray.wait(closing, num_returns=len(closing), timeout=10) if closing else None
        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []


def _size(instruction: Instruction) -> int:
    return sum(map(len, instruction.packets))


def _first_cause(error: BaseException) -> BaseException | None:
    """What an actor's constructor raised, which Ray tells as the cause of its death."""
    cause = error.__cause__
    return getattr(cause, "cause", cause)
