"""The page while runs go on: a small server on this machine that reads run directories, and nothing else."""

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
    """The runs below a folder, read again only when their files have changed."""

    folder: Path
    _read: dict[Path, tuple[str, Table]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def data(self) -> Table:
        """What the page shows now, and the version by which it is known."""
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
    """Changes whenever a file that is shown does."""
    files = (run.config, run.metrics, run.model, run.diverged, run.label_counts, run.path / "gradient_similarity.csv")
    stats = [path.stat() for path in files if path.exists()]
    return repr([(stat.st_mtime_ns, stat.st_size) for stat in stats])


def _asked_for_here(asked: str, host: str) -> bool:
    """Whether a browser means this server: a name that somebody else points at this machine is not one of its own."""
    return host not in LOOPBACK or urlsplit(f"//{asked}").hostname in LOOPBACK


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(folder: Path, host: str, port: int) -> ThreadingHTTPServer:
    """A server of the live page, bound and ready; whoever calls runs it."""
    watched = Watched(folder)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not _asked_for_here(self.headers.get("Host", ""), host):
                self.send_error(HTTPStatus.FORBIDDEN, "this page answers to the address that it was started with")
                return
            url = urlsplit(self.path)
            if url.path == "/":
                self._answer("text/html; charset=utf-8", html(watched.data()).encode())
            elif url.path == "/data":
                data = watched.data()
                if parse_qs(url.query).get("version") == [data["version"]]:
                    self.send_response(HTTPStatus.NO_CONTENT)
                    self.end_headers()
                else:
                    self._answer("application/json", json.dumps(plain(data), allow_nan=False).encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """A page that asks every two seconds is not worth a line each."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}") from None
