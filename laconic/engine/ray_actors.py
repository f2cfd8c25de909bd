"""Connecting to Ray, and a pool of its actors.

A new actor takes seconds to start and to import torch, so the actors of a finished run stay in the pool for the next run of
this process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from laconic.core.errors import ConfigError, LaconicError, missing_extra
from laconic.engine.settings import RaySettings
from laconic.engine.shard import Shard
from laconic.federation.messages import Instruction, Reply

CONNECT_SECONDS, START_SECONDS = 5.0, 300.0


@dataclass(eq=False)
class PooledActor:
    """A Ray actor and the address of its machine."""

    handle: Any
    threads: int
    address: str = ""
    """Empty until `locate` has asked the actor."""


_IDLE: list[PooledActor] = []


def connect(settings: RaySettings, threads: int) -> RaySettings:
    """Connect to Ray or start it, once per process. Returns the settings with the number of workers resolved."""
    if find_spec("ray") is None:
        raise missing_extra("engine = 'ray': Ray is not installed", "ray")
    import ray  # late: an extra

    # Silences Ray's warning that actors without GPUs keep CUDA_VISIBLE_DEVICES: the run's `device` decides about GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not ray.is_initialized():
        _IDLE.clear()
        _check(settings.address)
        options: dict[str, Any] = {"address": settings.address}
        if settings.address is None:
            cores = max(os.cpu_count() or 1, (settings.workers or 1) * threads)
            options = {"address": "local", "num_cpus": cores, "include_dashboard": False}
            # By default Ray gives its workers a low scheduling priority.
            os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            ray.init(**options, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            line = " ".join(str(error).split())
            raise ConfigError(f"ray.address = '{settings.address}': cannot connect to Ray: {line[:200]}") from None
    capacity = int(ray.cluster_resources().get("CPU", 0)) // threads
    workers = settings.workers or max(1, capacity)
    if workers > capacity:
        size = f" of {threads} threads" if threads > 1 else ""
        raise ConfigError(f"ray.workers = {workers}: the Ray cluster has capacity for {capacity} workers{size}")
    return settings.model_copy(update={"workers": workers})


def _check(address: str | None) -> None:
    """Refuse an address host:port that does not accept connections. Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "://" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"ray.address = '{address}': no connection: {error}") from None


def trim_pool(count: int, threads: int) -> None:
    """Stop idle actors with another number of threads, and those beyond `count`, to free their cores."""
    usable = [actor for actor in _IDLE if actor.threads == threads][:count]
    for actor in [actor for actor in _IDLE if actor not in usable]:
        _IDLE.remove(actor)
        stop(actor)


def take(threads: int, address: str | None) -> PooledActor:
    """An idle or new actor with `threads` cores, if possible on the machine at `address`."""
    for actor in _IDLE:
        if actor.threads == threads and address in (None, actor.address):
            _IDLE.remove(actor)
            return actor
    return _new(threads, address)


def give_back(actor: PooledActor) -> None:
    """Return an actor to the pool."""
    _IDLE.append(actor)


def stop(actor: PooledActor) -> None:
    """Kill an actor. It may be dead already."""
    import ray  # late: an extra

    if ray.is_initialized():
        ray.kill(actor.handle)


def _new(threads: int, address: str | None) -> PooledActor:
    import ray  # late: an extra

    options: dict[str, Any] = {"num_cpus": threads, "scheduling_strategy": "SPREAD"}
    if address in {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}:
        # Ray gives every machine a resource that is named after its address.
        options = {"num_cpus": threads, "resources": {f"node:{address}": 0.001}}
    return PooledActor(ray.remote(**options)(_ShardActor).remote(), threads)


def locate(actor: PooledActor) -> None:
    """Wait until an actor has started, and note its address. If it has died, its next call will fail."""
    import ray  # late: an extra

    try:
        actor.address = actor.address or ray.get(actor.handle.address.remote(), timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise LaconicError(
            f"ray: a worker has not started within {START_SECONDS:.0f} s: are all cores of the cluster in use?"
        ) from None
    except ray.exceptions.RayError:
        return


class _ShardActor:
    """Serves the shards of one run after the other. Between runs it has no shard, and its calls fail."""

    def __init__(self) -> None:
        self._shard: Shard | None = None

    def address(self) -> str:
        import ray  # late: an extra

        return str(ray.util.get_node_ip_address())

    def open(self, *arguments: Any, **options: Any) -> None:
        self._shard = Shard(*arguments, **options)

    def run(self, instructions: Sequence[Instruction]) -> list[Reply]:
        return self._opened().run(instructions)

    def flush(self, round: int) -> None:
        self._opened().flush(round)

    def close(self, remove: bool) -> None:
        self._opened().close(remove)
        self._shard = None

    def _opened(self) -> Shard:
        assert self._shard is not None
        return self._shard
