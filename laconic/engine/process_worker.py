"""The worker side of the engine `processes`, and the process that forks workers.

The fork server imports torch and Laconic once and starts no thread, so that it may fork. A worker then starts within
milliseconds. It ends with its connection: when the parent closes it, or is killed.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from laconic.core.errors import LaconicError
from laconic.core.processes import end_with
from laconic.core.user_code import one_line
from laconic.engine.inline import ClientSpec
from laconic.engine.shard import Worker
from laconic.engine.shared_memory import Channel, Message
from laconic.federation.lent_store import LentStore
from laconic.federation.messages import Instruction, Reply
from laconic.federation.store import Change, Lent


@dataclass(frozen=True)
class Place:
    """Where a worker finds modules and files: as the parent does."""

    import_paths: list[str]
    folder: str


@dataclass(frozen=True)
class Setup:
    """The clients of a worker. Tensors are views of memory that all workers share."""

    spec: ClientSpec
    operator_threads: int


class LentWorker(Worker):
    """Runs clients whose states the parent lends for each call."""

    def __init__(self, setup: Setup) -> None:
        self._store = LentStore()
        super().__init__(setup.spec, self._store, threads=1, operator_threads=setup.operator_threads)

    def answer(
        self, instructions: Sequence[Instruction], clients: Mapping[int, Lent]
    ) -> tuple[list[Reply], dict[int, Change]]:
        """Run instructions. Returns the replies, and the changes of the clients' states."""
        self._store.load(clients)
        return self.run(instructions), self._store.changes


def serve_forks(descriptor: int, parent: int) -> None:
    """Fork a worker for every connection that arrives at a socket, until the parent ends."""
    control = socket.socket(fileno=descriptor)
    end_with(parent)
    # Late: Numba is slow to load, and all workers share what is loaded before the fork.
    from laconic.compression import kernels  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that no worker stays a zombie
    gc.freeze()
    own = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            end_with(own)
            with suppress(EOFError, OSError):
                _serve(socket.socket(fileno=descriptors[0]))
            os._exit(0)
        os.close(descriptors[0])


def _serve(connection: socket.socket) -> None:
    """Answer calls until the parent closes the connection."""
    threading.Thread(target=_exit_with, args=(connection.fileno(),), daemon=True).start()
    channel, workers = Channel(connection), list[LentWorker]()
    setup = channel.receive_file()

    def open_worker(place: Place) -> None:
        sys.path[:] = place.import_paths
        os.chdir(place.folder)
        workers.append(LentWorker(Message.read(setup.bytes)))

    _attempt(channel, open_worker)
    while True:
        _attempt(channel, workers[0].answer)


def _attempt(channel: Channel, function: Callable[..., Any]) -> None:
    """Receive the arguments of a function, call it, and send the result or the exception."""
    arguments = channel.receive()
    try:
        channel.send((function(*arguments), None))
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            error = LaconicError(one_line(error))
        channel.send((None, error))


def _exit_with(descriptor: int) -> None:
    """End this process as soon as the other side of the connection is closed, also in the middle of a call."""
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    poll.poll()
    os._exit(0)
