"""One download that survives broken connections, bad mirrors and a second process with the same wish."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from laconic.core.errors import DataError

ATTEMPTS = 4
"""Tries per address; what has arrived is kept between them."""
FIRST_PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""
TIMEOUT = httpx.Timeout(30.0, connect=10.0)


class AddressError(Exception):
    """This address will not serve the file, however often it is asked."""


@dataclass(frozen=True)
class Download:
    """Fetch one file to `target` from the first address that delivers what `verify` accepts.

    Bytes go to `<target>.part`, which a later try or a later run continues. Only a complete, verified file
    gets the target's name, in one step.
    """

    addresses: tuple[str, ...]
    target: Path
    verify: Callable[[Path], None]

    @property
    def part(self) -> Path:
        """Where the bytes gather until the file is complete and verified."""
        return self.target.with_name(self.target.name + ".part")

    def run(self) -> None:
        """Download, verify, put in place."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.target):
                if not self.target.exists():
                    self._from_any_address()
        except OSError as error:
            raise DataError(f"cannot write {self.target}: {error.strerror or error}") from error

    def _from_any_address(self) -> None:
        problems: list[str] = []
        # The proxies and certificates of the environment apply, as to any other program.
        with httpx.Client(timeout=TIMEOUT, follow_redirects=True) as client:
            for address in self.addresses:
                try:
                    self._from_address(client, address)
                except AddressError as failure:
                    problems.append(f"{address}: {failure}")
                    continue
                _into_place(self.part, self.target)
                return
        raise DataError(f"could not download {self.target.name}: {'; '.join(problems)}")

    def _from_address(self, client: httpx.Client, address: str) -> None:
        resumed = self._size() > 0
        self._transfer(client, address)
        try:
            self.verify(self.part)
        except DataError as error:
            self.part.unlink()
            if not resumed:
                raise AddressError(f"deleted what it sent, {_detail(error, self.part)}") from error
            # The first half may have come from another mirror or another day: a whole file is the fair test.
            self._from_address(client, address)

    def _transfer(self, client: httpx.Client, address: str) -> None:
        """Complete the part file, trying again after failures that may pass."""
        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                if self._request(client, address):
                    return
                reason = "the server refused to continue a broken transfer"
            except httpx.HTTPStatusError as error:
                reason = f"status {error.response.status_code}"
                if error.response.status_code < 500 and error.response.status_code not in (408, 429):
                    break
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise AddressError(reason)

    def _request(self, client: httpx.Client, address: str) -> bool:
        """One request for what is missing; False if the part file had to be thrown away."""
        have = self._size()
        # Without this, a server may compress on the way, and byte ranges would count other bytes than ours.
        headers = {"Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        with client.stream("GET", address, headers=headers) as response:
            if response.status_code == 416:
                if response.headers.get("Content-Range") == f"bytes */{have}":
                    return True
                self.part.unlink()
                return False
            response.raise_for_status()
            continues = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            if response.status_code == 206 and not continues:
                self.part.unlink(missing_ok=True)
                return False
            start = have if response.status_code == 206 else 0
            with self.part.open("ab" if start else "wb") as stream:
                self._receive(response, stream, start, address)
        return True

    def _receive(self, response: httpx.Response, stream: BinaryIO, start: int, address: str) -> None:
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdigit() else None
        with _progress(self.target.name, address, start, total) as advance:
            for block in response.iter_raw():
                stream.write(block)
                advance(len(block))

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _detail(error: DataError, part: Path) -> str:
    """What was wrong, without the name of a file that is no more."""
    return str(error).removeprefix(f"{part} ")


def _into_place(part: Path, target: Path) -> None:
    """Give the file its name only when its bytes are on the disk: a crash cannot leave half a file."""
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(target)


@contextmanager
def _progress(name: str, address: str, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar for a person at a terminal, one line for a log."""
    if not sys.stderr.isatty():
        size = "" if total is None else f" ({total / 1e6:.1f} MB)"
        print(f"downloading {name}{size} from {address}", file=sys.stderr)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total, completed=start)
        yield lambda received: progress.advance(task, received)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process at a time download a file (POSIX; elsewhere the checksum catches two that collide)."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
