"""A door to the SuperLink for a trial: it counts the bytes that pass at the socket, and can be shut."""

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
        """Bytes towards the target, and back."""
        self._shut = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        self._listener.close()

    def cut(self) -> None:
        """Nothing passes any more: what is open is broken off, and what comes is turned away."""
        with self._lock:
            self._shut = True
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def heal(self) -> None:
        """Let connections pass again."""
        with self._lock:
            self._shut = False

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                if self._shut:
                    near.close()
                    far.close()
                    continue
                self._open |= {near, far}
            for source, sink, up in ((near, far, True), (far, near, False)):
                threading.Thread(target=self._pump, args=(source, sink, up), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    self.up += len(piece) if up else 0
                    self.down += 0 if up else len(piece)
                sink.sendall(piece)
        for connection in (source, sink):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            # The other direction closes it once it is over, too.
            if source in self._open:
                self._open.discard(source)
