"""Resumable, verified downloads with several mirrors, safe to start in two processes at once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from laconic.core.errors import DataError

ATTEMPTS = 4
"""Attempts per address. Received bytes are kept between attempts."""
FIRST_PAUSE = 0.5
"""Seconds before the second attempt. The pause doubles after each attempt (exponential backoff)."""
TIMEOUTS = (10.0, 30.0)
"""Connect and read timeouts in seconds."""
BLOCK = 1 << 16


class AddressError(Exception):
    """The address does not serve the file, and retrying would not help."""


@dataclass(frozen=True)
class Download:
    """Download one file to `target` from the first address whose file passes `verify`.

    Bytes go to `<target>.part`, which a later attempt or a later run resumes. A complete, verified file is renamed
    to the target atomically. A file of more than `most` bytes is not downloaded any further.
    """

    addresses: tuple[str, ...]
    target: Path
    verify: Callable[[Path], None]
    most: int

    @property
    def part(self) -> Path:
        """The partial file."""
        return self.target.with_name(self.target.name + ".part")

    def run(self) -> None:
        """Download, verify and rename, unless the target exists."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.target):
                if not self.target.exists():
                    self._from_any_address()
        except OSError as error:
            raise DataError(f"cannot write {self.target}: {error.strerror or error}") from error

    def _from_any_address(self) -> None:
        problems: list[str] = []
        for address in self.addresses:
            try:
                self._from_address(address)
            except AddressError as failure:
                problems.append(f"{address}: {failure}")
                continue
            _rename(self.part, self.target)
            return
        raise DataError(f"could not download {self.target.name}: {'; '.join(problems)}")

    def _from_address(self, address: str) -> None:
        resumed = self._size() > 0
        self._transfer(address)
        try:
            self.verify(self.part)
        except DataError as error:
            self.part.unlink()
            if not resumed:
                detail = str(error).removeprefix(f"{self.part} ")
                raise AddressError(f"the downloaded file was deleted: it {detail}") from error
            # The first bytes may come from another mirror or another version of the file: start over.
            self._from_address(address)

    def _transfer(self, address: str) -> None:
        """Complete the partial file. Retry after transient failures."""
        import requests  # late: start-up time

        reason = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
            try:
                self._request(address)
                return
            except requests.HTTPError as error:
                assert error.response is not None
                status = error.response.status_code
                if status == 416 and error.response.headers.get("Content-Range") == f"bytes */{self._size()}":
                    return
                reason = f"status {status}"
                if status == 416:  # the partial file is longer than the file
                    self.part.unlink()
                elif status < 500 and status not in (408, 429):
                    break
            except requests.RequestException as error:
                reason = _reason(error)
        raise AddressError(reason)

    def _request(self, address: str) -> None:
        """Request the missing bytes once."""
        import pooch  # late: start-up time
        import requests  # late: start-up time

        have = self._size()
        # If the server compressed the response, byte ranges would refer to the compressed bytes.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self.part.open("ab") as stream:
            bounded = Bounded(stream, self.most)

            def begin(response: requests.Response, **_: Any) -> None:
                if response.status_code == 200:  # the server ignored the range and sends the whole file
                    stream.truncate(stream.seek(0))
                elif response.status_code == 206:
                    if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                        stream.truncate(0)
                        raise requests.ConnectionError("the server refused to continue a broken transfer")
                else:
                    return
                if address.startswith("https:") and not str(response.url).startswith("https:"):
                    raise AddressError(f"it leads to {response.url}, without https")
                length = response.headers.get("Content-Length", "")
                if length.isdigit():
                    bounded.check(int(length))
                size = f" ({int(length) / 1e6:.1f} MB)" if length.isdigit() else ""
                print(f"downloading {self.target.name}{size} from {address}", file=sys.stderr)

            options: dict[str, Any] = {"timeout": TIMEOUTS, "headers": headers, "hooks": {"response": begin}}
            # requests applies the proxies and certificates of the environment.
            pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=BLOCK, **options)(address, bounded, None)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


@dataclass(frozen=True)
class Bounded:
    """A file that refuses to become longer than `most` bytes."""

    stream: BinaryIO
    most: int

    def write(self, block: bytes) -> None:
        """Append bytes."""
        self.check(len(block))
        self.stream.write(block)

    def flush(self) -> None:
        """Flush the file."""
        self.stream.flush()

    def check(self, more: int) -> None:
        """Raise and empty the file if it would become too long."""
        if self.stream.tell() + more > self.most:
            self.stream.truncate(0)
            raise AddressError(f"the file has more than {self.most} bytes")


def _reason(error: BaseException) -> str:
    """Return the root cause in one line: requests and urllib3 wrap it several times."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [""])[0] or type(error).__name__


def _rename(part: Path, target: Path) -> None:
    """Sync to disk before the rename, so that a crash cannot leave a truncated file."""
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(target)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Let one process at a time download a file. On Windows, the checksum detects a collision."""
    if sys.platform == "win32":
        yield
        return
    import fcntl  # late: Windows does not have it

    with target.with_name(target.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
