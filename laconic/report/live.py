"""The live page: a small local server that shows run directories while runs are in progress."""

from __future__ import annotations

import ipaddress
import json
import secrets
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from laconic.core.errors import ConfigError
from laconic.report.gather import find_runs, read_runs
from laconic.report.page import html, policy
from laconic.report.reading import Table, read_run
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
            runs, unreadable = read_runs(paths, self._cached)
            version = sha256(repr([(path, _stamp(path)) for path in paths]).encode()).hexdigest()[:16]
            page = {"target": None, "live": True, "folder": str(self.folder), "version": version}
            return {"runs": runs, "unreadable": unreadable, **page}

    def _cached(self, path: Path, points: int) -> Table:
        before, stamp = self._read.pop(path, ("", {})), _stamp(path)
        run = before[1] if before[0] == stamp else read_run(path, points=points)
        self._read[path] = stamp, run
        return run


def _stamp(path: Path) -> str:
    """Return a string that changes whenever a displayed file changes."""
    run = RunDirectory(path)
    shown = (run.label_counts, run.names, run.client_values, path / "gradient_similarity.csv")
    files = (run.config, run.metrics, run.model, run.diverged, *shown)
    stamps = []
    for file in files:
        with suppress(OSError):
            stamps.append((file.name, file.stat().st_mtime_ns, file.stat().st_size))
    return repr(stamps)


LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _host_is_allowed(requested: str, host: str) -> bool:
    """Check the Host header, against DNS rebinding: a foreign name that resolves to this machine is rejected."""
    try:
        name = urlsplit(f"//{requested}").hostname or ""
        if host in LOOPBACK or name in LOOPBACK:
            return name in LOOPBACK
        return name in (host.lower(), socket.gethostname().lower()) or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


class LiveServer(ThreadingHTTPServer):
    """A server of the live page. Beyond this machine it answers only to those who know the token of its address."""

    daemon_threads = True
    token = ""

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        host, port = str(self.server_address[0]), self.server_address[1]
        name = socket.gethostname() if host == "0.0.0.0" else host
        return f"http://{name}:{port}/{f'?token={self.token}' if self.token else ''}"

    def knows(self, token: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return secrets.compare_digest(token.encode(), self.token.encode())


def serve(folder: Path, host: str, port: int) -> LiveServer:
    """Return a server of the live page, bound to its port. The caller runs it."""
    watched = Watched(folder)

    class Handler(BaseHTTPRequestHandler):
        timeout = 60
        server: LiveServer

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if not _host_is_allowed(self.headers.get("Host", ""), host):
                self.send_error(HTTPStatus.FORBIDDEN, "use the address that laconic watch was started with")
            elif not self.server.knows(self._cookie()):
                self._sign_in(parse_qs(url.query).get("token", [""])[0])
            elif url.path == "/":
                page = html(watched.data())
                self._respond("text/html; charset=utf-8", page.encode(), f"{policy()}; frame-ancestors 'none'")
            elif url.path == "/data":
                data = watched.data()
                if parse_qs(url.query).get("version") == [data["version"]]:
                    self.send_response(HTTPStatus.NO_CONTENT)
                    self.end_headers()
                else:
                    self._respond("application/json", json.dumps(plain(data), allow_nan=False).encode())
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def _cookie(self) -> str:
            try:
                found = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie_name())
            except CookieError:
                found = None
            return found.value if found else ""

        def _cookie_name(self) -> str:
            # Browsers send cookies to all ports of a host.
            return f"laconic_{self.server.server_address[1]}"

        def _sign_in(self, token: str) -> None:
            """Exchange the token of the address for a cookie, so that it leaves the address bar."""
            if not self.server.knows(token):
                self.send_error(HTTPStatus.FORBIDDEN, "use the whole address that laconic watch has printed")
                return
            self.send_response(HTTPStatus.SEE_OTHER)
            self.send_header("Location", "/")
            self.send_header("Set-Cookie", f"{self._cookie_name()}={token}; HttpOnly; SameSite=Strict; Path=/")
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()

        def _respond(self, content_type: str, content: bytes, content_policy: str = "default-src 'none'") -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", content_policy)
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Cache-Control", "no-store")
            # The browser may be gone.
            with suppress(ConnectionError):
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Log nothing: the page polls every two seconds."""

    try:
        server = LiveServer((host, port), Handler)
        server.token = "" if host in LOOPBACK else secrets.token_urlsafe(32)
        return server
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: {error.strerror}") from None
