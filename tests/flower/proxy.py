"""A TCP proxy before the SuperLink that counts bytes at the socket and can cut the connection."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_PIECE = 1 << 16


class Proxy:
    """Forwards TCP connections to a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = self.down = 0
        """Bytes toward the target, and back."""
        self._passing = threading.Event()
        self._passing.set()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._passing.set()

    def cut(self) -> None:
        """Nothing passes any more, as if every packet were lost: connections neither break nor answer."""
        self._passing.clear()

    def heal(self) -> None:
        """What was held up goes on its way."""
        self._passing.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._passing.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        with self._lock:
            self._open |= {near, far}
        back = threading.Thread(target=self._pump, args=(far, near, "down"), daemon=True)
        back.start()
        self._pump(near, far, "up")
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()

    def _pump(self, source: socket.socket, sink: socket.socket, way: str) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._passing.wait()
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(piece))
                sink.sendall(piece)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
