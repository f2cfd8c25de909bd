"""A download that survives broken connections and bad mirrors, and that two processes may start at once."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laconic.core.errors import DataError

ATTEMPTS = 4
"""Tries per address; what has arrived is kept between them."""
FIRST_PAUSE = 0.5
"""Seconds before the second try; each further pause is twice as long."""
TIMEOUTS = (10.0, 30.0)
"""Seconds to connect, and to wait for bytes."""
BLOCK = 1 << 16


class AddressError(Exception):
    """This address will not serve the file, however often it is asked."""


@dataclass(frozen=True)
class Download:
    """Download one file to `target` from the first address whose file passes `verify`.

    Bytes go to `<target>.part`, which a later try or a later run continues. Only a complete, verified file
    gets the target's name, in one step.
    """

    addresses: tuple[str, ...]
    target: Path
    verify: Callable[[Path], None]

    @property
    def part(self) -> Path:
        """The file that holds the bytes until it is complete and verified."""
        return self.target.with_name(self.target.name + ".part")

    def run(self) -> None:
        """Download, verify, rename."""
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            with _alone(self.target):
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
                raise AddressError(f"deleted what it sent, {detail}") from error
            # The first bytes may come from another mirror or another version of the file: download all of it.
            self._from_address(address)

    def _transfer(self, address: str) -> None:
        """Complete the part file; try again after failures that may pass."""
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
                if status == 416:  # more bytes than the file has
                    self.part.unlink()
                elif status < 500 and status not in (408, 429):
                    break
            except requests.RequestException as error:
                reason = _reason(error)
        raise AddressError(reason)

    def _request(self, address: str) -> None:
        """One request for the bytes that are missing."""
        import pooch  # late: start-up time
        import requests

        have = self._size()
        # Without the first header a server may compress, and byte ranges would count other bytes than ours.
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with self.part.open("ab") as stream:

            def begin(response: requests.Response, **_: Any) -> None:
                if response.status_code == 200:  # the whole file, whatever was asked for
                    stream.truncate(0)
                elif response.status_code == 206:
                    if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                        stream.truncate(0)
                        raise requests.ConnectionError("the server refused to continue a broken transfer")
                else:
                    return
                length = response.headers.get("Content-Length", "")
                size = f" ({int(length) / 1e6:.1f} MB)" if length.isdigit() else ""
                print(f"downloading {self.target.name}{size} from {address}", file=sys.stderr)

            options: dict[str, Any] = {"timeout": TIMEOUTS, "headers": headers, "hooks": {"response": begin}}
            # The proxies and certificates of the environment apply.
            fetch = pooch.HTTPDownloader(progressbar=sys.stderr.isatty(), chunk_size=BLOCK, **options)
            fetch(address, stream, None)

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0


def _reason(error: BaseException) -> str:
    """The first cause, in one line: requests and urllib3 wrap it several times."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__ or error
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [""])[0] or type(error).__name__


def _rename(part: Path, target: Path) -> None:
    """Give the file its name only when its bytes are on the disk: a crash cannot leave half a file."""
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(target)


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
