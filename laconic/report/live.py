"""The live page: a small local server that shows run directories while runs are in progress."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from laconic.core.errors import ConfigError
from laconic.report.gather import UNREADABLE, Table, entitle, find_runs, points_of, read_run
from laconic.report.page import html
from laconic.run.directory import RunDirectory, plain


@dataclass
class Watched:
    """The runs below a folder. A run is read again only if its files have changed."""

    folder: Path
    _read: dict[Path, tuple[str, Table]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def data(self) -> Table:
        """Return the current data of the page and its version."""
        with self._lock:
            try:
                paths = find_runs([self.folder])
            except ConfigError:
                paths = []
            stamps = {path: _stamp(RunDirectory(path)) for path in paths}
            unreadable = {}
            for path, stamp in stamps.items():
                try:
                    if self._read.get(path, ("", {}))[0] != stamp:
                        self._read[path] = (stamp, read_run(path, points=points_of(len(paths))))
                except UNREADABLE as error:
                    self._read.pop(path, None)
                    unreadable[str(path)] = " ".join(str(error).split())
            version = sha256(repr(sorted(stamps.items())).encode()).hexdigest()[:16]
            runs = entitle([dict(self._read[path][1]) for path in paths if path in self._read])
            page = {"target": None, "live": True, "folder": str(self.folder), "version": version}
            return {"runs": runs, "unreadable": unreadable, **page}


def _stamp(run: RunDirectory) -> str:
    """Return a string that changes whenever a displayed file changes."""
    files = (run.config, run.metrics, run.model, run.diverged, run.label_counts, run.path / "gradient_similarity.csv")
    stats = [path.stat() for path in files if path.exists()]
    return repr([(stat.st_mtime_ns, stat.st_size) for stat in stats])


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _host_is_allowed(requested: str, host: str) -> bool:
    """Check the Host header, against DNS rebinding: a foreign name that resolves to this machine is rejected."""
    return host not in LOOPBACK or urlsplit(f"//{requested}").hostname in LOOPBACK


def serve(folder: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server of the live page, bound to its port. The caller runs it."""
    watched = Watched(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not _host_is_allowed(self.headers.get("Host", ""), host):
                self.send_error(HTTPStatus.FORBIDDEN, "use the address that laconic watch was started with")
                return
            url = urlsplit(self.path)
            if url.path == "/":
                self._respond("text/html; charset=utf-8", html(watched.data()).encode())
            elif url.path == "/data":
                data = watched.data()
                if parse_qs(url.query).get("version") == [data["version"]]:
                    self.send_response(HTTPStatus.NO_CONTENT)
                    self.end_headers()
                else:
                    self._respond("application/json", json.dumps(plain(data), allow_nan=False).encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _respond(self, content_type: str, content: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: the page polls every two seconds."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}") from None
