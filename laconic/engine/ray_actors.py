"""Ray itself: joining or starting it, and processes that serve as workers, one run after another.

A process takes seconds to start and to import torch, so those that a run has done with are kept for the next one, for as
long as this process lives.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from laconic.core.errors import ConfigError, LaconicError
from laconic.engine.settings import RaySettings
from laconic.engine.shard import Shard

CONNECT_SECONDS, START_SECONDS = 5.0, 300.0


@dataclass(eq=False)
class Host:
    """An actor, and where it is."""

    actor: Any
    threads: int
    address: str = ""
    """Of its machine, once it is known."""


_IDLE: list[Host] = []


def connect(settings: RaySettings, threads: int) -> RaySettings:
    """Join or start a Ray, once per process; the settings with the number of workers settled."""
    if find_spec("ray") is None:
        raise ConfigError("engine = 'ray': Ray is not installed; in the folder of the clone, pip install -e '.[ray]'")
    import ray

    # Ray would say so, and that it will do otherwise one day; here a worker has no GPU but what the run's device says.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if not ray.is_initialized():
        _IDLE.clear()
        _check(settings.address)
        own: dict[str, Any] = {"address": settings.address}
        if settings.address is None:
            cores = max(os.cpu_count() or 1, (settings.workers or 1) * threads)
            own = {"address": "local", "num_cpus": cores, "include_dashboard": False}
            # Ray lets its workers stand back behind everything else on a machine; here they are what the machine is for.
            os.environ.setdefault("RAY_worker_niceness", "0")
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


def _check(address: str | None) -> None:
    """Whether anybody listens at host:port; Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if not colon or "://" in host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"ray.address = '{address}': nobody answers there: {error}") from None


def make_room(count: int, threads: int) -> None:
    """End idle workers of another size, and those beyond `count`: they hold cores that may be needed."""
    usable = [host for host in _IDLE if host.threads == threads][:count]
    for host in [host for host in _IDLE if host not in usable]:
        _IDLE.remove(host)
        end(host)


def take(threads: int, address: str | None) -> Host:
    """A worker with so many cores: an idle one or a new one, on the machine of that address if it is there."""
    for host in _IDLE:
        if host.threads == threads and address in (None, host.address):
            _IDLE.remove(host)
            return host
    return _new(threads, address)


def give_back(host: Host) -> None:
    """Keep a worker for another run."""
    _IDLE.append(host)


def end(host: Host) -> None:
    """Be rid of a worker, dead or alive."""
    import ray

    if ray.is_initialized():
        ray.kill(host.actor)


def _new(threads: int, address: str | None) -> Host:
    import ray

    options: dict[str, Any] = {"num_cpus": threads, "scheduling_strategy": "SPREAD"}
    if address in {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}:
        # Every machine has a little of a resource that is named after its address.
        options = {"num_cpus": threads, "resources": {f"node:{address}": 0.001}}
    return Host(ray.remote(**options)(_Actor).remote(), threads)


def locate(host: Host) -> None:
    """Wait until a worker is there; one that has died on the way is left for its next call to notice."""
    import ray

    try:
        host.address = host.address or ray.get(host.actor.address.remote(), timeout=START_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise LaconicError(
            f"ray: a worker has not started within {START_SECONDS:.0f} s: are all cores of the cluster taken?"
        ) from None
    except ray.exceptions.RayError:
        return


class _Actor(Shard):
    """A shard that can say where it is."""

    def address(self) -> str:
        """As Ray lists its machines."""
        import ray

        return str(ray.util.get_node_ip_address())
