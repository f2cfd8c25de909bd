"""The engine `processes`: runs clients in worker processes of this machine, with the same results as inline, bit for bit.

Threads of one process share the interpreter lock; processes do not. Data, models and updates are in shared memory
(`shared_memory.py`). The parent has the only store of client states. It lends a worker the states of the clients that it
runs, and stores the changes that come back with the replies. So any worker can run any client, and a worker that dies has
changed nothing. A new one takes its place and runs the same clients again.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from laconic.core.errors import ConfigError, LaconicError
from laconic.core.user_code import one_line, pickle_own_modules
from laconic.data.owned import part_of
from laconic.engine.inline import ClientSpec, InlineEngine
from laconic.engine.process_worker import Place, Setup
from laconic.engine.shared_memory import Channel, File, written
from laconic.engine.simulated import ChunkedEngine
from laconic.federation.messages import Instruction, Reply
from laconic.federation.store import Change, ClientStore

LOG = getLogger("laconic")
MAX_DEATHS = 3
"""The run fails if this many workers in a row die with the same clients."""
_CLOSE_SECONDS = 5.0
_SERVER = "from laconic.engine.process_worker import serve_forks; serve_forks({}, {})"


class ForkServer:
    """The process that forks workers, one for all runs of this process."""

    def __init__(self) -> None:
        self.parent = os.getpid()
        ours, theirs = socket.socketpair()
        self._control = ours
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVER.format(theirs.fileno(), self.parent)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the parent, which then closes its workers
            )
        atexit.register(self.close)

    def connect(self) -> socket.socket:
        """A connection to a new worker."""
        # Packets keep their boundaries.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [b"1"], [theirs.fileno()])
        return ours

    @property
    def alive(self) -> bool:
        """Whether the server runs, and is this process's own, not that of the process that forked this one."""
        return self.parent == os.getpid() and self._process.poll() is None

    def close(self) -> None:
        """End the server, and with it all workers."""
        self._control.close()
        if self.alive:
            self._process.kill()
            self._process.wait()


_SERVERS: list[ForkServer] = []


def fork_server(*, new: bool = False) -> ForkServer:
    """The server of this process; starts one if there is none, or if a new one is wanted."""
    if new or not _SERVERS or not _SERVERS[0].alive:
        _SERVERS[:] = [ForkServer()]
    return _SERVERS[0]


class WorkerProcess:
    """A connection to a worker."""

    def __init__(self, setup: File) -> None:
        try:
            self._connection = fork_server().connect()
        except OSError:  # the server has just ended
            self._connection = fork_server(new=True).connect()
        self._channel = Channel(self._connection, shares_bodies=True)
        with suppress(EOFError):  # a worker that dies at once: `result` raises it again
            self._channel.send_file(setup)
            self._channel.send((Place(sys.path, str(Path.cwd())),))

    def call(self, *arguments: object) -> Any:
        """The result of a call. `EOFError` if the worker is dead; exceptions of the worker's code are raised."""
        self._channel.send(arguments)
        return self.result()

    def result(self) -> Any:
        """Wait for the result of the last call, or of the start."""
        result, error = self._channel.receive()
        if error is not None:
            raise error
        return result

    def hang_up(self) -> None:
        """Tell the worker to end at once. A thread that waits for a result gets an `EOFError`."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Wait until the worker has ended."""
        self.hang_up()
        self._connection.settimeout(_CLOSE_SECONDS)
        with suppress(OSError):
            while self._connection.recv(1):
                pass
        self._channel.close()


class ProcessEngine(ChunkedEngine):
    """Runs clients on worker processes. The number of workers changes the speed, not the results."""

    def __init__(self, spec: ClientSpec, local: InlineEngine, store: ClientStore, workers: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise ConfigError("engine = 'processes': runs on Linux only; use engine = 'inline' or 'ray'")
        self.threads, self.chunk = workers, local.chunk
        self._spec, self._store = spec, store
        self._operator_threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="laconic")
        self._idle: SimpleQueue[WorkerProcess] = SimpleQueue()
        self._workers: list[WorkerProcess] = []
        self._setup: File | None = None
        self._closing = False

    def start(self) -> None:
        """Start all workers, unless they are running."""
        if self._workers:
            return
        spec = replace(self._spec, data=part_of(self._spec.data, range(len(self._spec.data))))
        self._setup = _written(Setup(spec, self._operator_threads))
        self._workers = [WorkerProcess(self._setup) for _ in range(self.threads)]
        for worker in self._workers:
            try:
                worker.result()
            except EOFError:
                raise LaconicError("processes: a worker has ended before its first client") from None
            self._idle.put(worker)

    def _run_chunk(self, instructions: Sequence[Instruction]) -> list[Reply]:
        lent = {sent.client: self._store.lend(sent.client, sent.last_update) for sent in instructions}
        for _ in range(MAX_DEATHS):
            worker = self._idle.get()
            try:
                replies, changes = worker.call(instructions, lent)
            except EOFError:
                worker = self._replace(worker)
                continue
            finally:
                self._idle.put(worker)
            self._store.apply({client: _owned(change) for client, change in changes.items()})
            return replies  # type: ignore[no-any-return]
        clients = ", ".join(str(instruction.client) for instruction in instructions)
        raise LaconicError(f"processes: {MAX_DEATHS} workers in a row died while they ran client {clients}")

    def _replace(self, dead: WorkerProcess) -> WorkerProcess:
        """A new worker in place of a dead one."""
        if self._closing:
            raise CancelledError
        LOG.warning("a worker process died; starting a new one")
        dead.close()
        assert self._setup is not None
        worker = WorkerProcess(self._setup)
        self._workers[self._workers.index(dead)] = worker
        with suppress(EOFError):  # then the next call fails
            worker.result()
        return worker

    def close(self) -> None:
        """End the workers."""
        self._closing = True
        for worker in self._workers:
            worker.hang_up()
        self._pool.shutdown(cancel_futures=True)
        for worker in self._workers:
            worker.close()
        if self._setup is not None:
            self._setup.close()
        self._workers, self._setup = [], None


def _owned(change: Change) -> Change:
    """The change with states in memory of this process: a small view would keep a whole message in memory."""
    added = {number: {name: value.clone() for name, value in state.items()} for number, state in change.added.items()}
    return replace(change, added=added)


def _written(setup: Setup) -> File:
    import cloudpickle  # only where processes are used: it takes time to import

    pickle_own_modules(cloudpickle)
    try:
        return written(setup)
    except Exception as error:
        raise ConfigError(
            f"engine = 'processes': the model or the data cannot be sent to another process: {one_line(error)}"
        ) from error
