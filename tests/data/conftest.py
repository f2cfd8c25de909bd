"""Fixtures: no test sees this machine's own caches or packages, and the real data sets where they are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from laconic.data import download, files

PROJECT = Path(__file__).parents[2]
REAL_DATA = Path(os.environ.get("LACONIC_DATA") or PROJECT.parent / "shared" / "data")


@pytest.fixture(autouse=True)
def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.delenv("LACONIC_DATA", raising=False)
    monkeypatch.delenv("LACONIC_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "*")
    empty = tmp_path_factory.mktemp("isolated")
    monkeypatch.setattr(files, "SYSTEM_FOLDER", empty / "system")
    monkeypatch.setattr(files, "cache", lambda: empty / "cache")
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.01)


@pytest.fixture
def real_data() -> Callable[[str], Path]:
    """The folder of the real data sets, once it is clear that it holds the one that a test needs."""

    def place(name: str) -> Path:
        if not (REAL_DATA / name).is_dir():
            pytest.skip(f"the real {name} is not here: set LACONIC_DATA to a folder with {name}/")
        return REAL_DATA

    return place


@dataclass
class Site:
    """What the test server serves, and the faults it commits once each, in order, per path."""

    address: str = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, list[str]] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)

    def url(self, path: str) -> str:
        return self.address + path


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            site.requests.append((self.path, asked))
            waiting = site.faults.get(self.path, [])
            fault = waiting.pop(0) if waiting else ""
            content = site.contents.get(self.path)
            if content is None or fault.isdigit():
                self.send_error(int(fault or 404))
                return
            start = 0
            if asked and fault != "ignore range":
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(content)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
            self.send_response(206 if start else 200)
            if start:
                told = start + 1 if fault == "wrong range" else start
                self.send_header("Content-Range", f"bytes {told}-{len(content) - 1}/{len(content)}")
            body = content[start:]
            if fault != "no length":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if fault == "break off":
                body = body[: len(body) // 2]
                self.close_connection = True
            self.wfile.write(body)
            site.sent.append(len(body))

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    site.address = f"http://127.0.0.1:{server.server_address[1]}"
    yield site
    server.shutdown()
    server.server_close()
