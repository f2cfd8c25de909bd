"""Find data files on this machine or download them from their official address, and verify their checksums."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import platformdirs

from laconic.core.errors import DataError
from laconic.data.download import Download

SYSTEM_FOLDER = Path("/usr/share/datasets")
"""Install location of Debian's data packages, such as dataset-fashion-mnist."""
BLOCK = 1 << 20
Stream = BinaryIO | gzip.GzipFile


@dataclass(frozen=True)
class Checksum:
    """A checksum of a file's content. For a .gz file it covers the uncompressed bytes, since mirrors recompress.

    Args:
        stored: The checksum covers the .gz file itself, because no other checksum is published.
    """

    algorithm: Literal["sha256", "md5"]
    value: str
    stored: bool = False


@dataclass(frozen=True)
class DataFile:
    """One published file: its local folder and name, its addresses and its checksum."""

    folder: str
    name: str
    addresses: tuple[str, ...] = ()
    checksum: Checksum | None = None
    size: int | None = None
    """The most bytes that the file may have, uncompressed. A file that is downloaded needs one."""

    @property
    def compressed(self) -> bool:
        """Whether this is a single compressed file, as opposed to an archive of several files."""
        return self.name.endswith(".gz") and not self.name.endswith(".tar.gz")

    @property
    def most(self) -> int:
        """The most bytes of the stored file. Compression adds very little to what cannot be compressed."""
        return (self.size or 0) + ((self.size or 0) // 1000 + 1000 if self.compressed else 0)

    @property
    def names(self) -> tuple[str, ...]:
        """Accepted local names: a .gz file may also exist uncompressed."""
        return (self.name, self.name.removesuffix(".gz")) if self.compressed else (self.name,)


@dataclass(frozen=True)
class Finder:
    """Searches folders for data files and downloads missing ones."""

    data_dir: Path | None = None
    download: bool = True
    files: tuple[DataFile, ...] = ()
    """All files of the data set, listed in the error message if one is missing."""

    def __post_init__(self) -> None:
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise DataError(f"data_dir '{self.data_dir}' is not a folder")

    def roots(self) -> list[Path]:
        """The root folders to search, in order."""
        specified = [Path(root) for root in (self.data_dir, os.environ.get("LACONIC_DATA")) if root]
        return list(dict.fromkeys([*specified, SYSTEM_FOLDER, cache()]))

    def folders(self, folder: str) -> list[Path]:
        """The folders that may contain a data set's files: `<root>/<folder>`, then `<root>`, for each root."""
        return [path for root in self.roots() for path in (root / folder, root)]

    def look(self, file: DataFile) -> Path | None:
        """Return the file's local path, if it exists, without verifying its content."""
        for folder in self.folders(file.folder):
            for name in file.names:
                if (folder / name).is_file():
                    return folder / name
        return None

    def find(self, file: DataFile) -> Path:
        """Return the path of the verified file. Download it if it is missing."""
        path = self._obtain(file)
        verify(path, file)
        return path

    def read(self, file: DataFile) -> bytes:
        """Return the verified, uncompressed content of the file."""
        path = self._obtain(file)
        if file.checksum is not None and file.checksum.stored:
            verify(path, file)
        with opened(path, file) as stream:
            content = b"".join(blocks(path, stream, file.size))
        if file.checksum is not None and not file.checksum.stored:
            _compare(path, file.checksum, hashlib.new(file.checksum.algorithm, content).hexdigest())
        return content

    def _obtain(self, file: DataFile) -> Path:
        path = self.look(file)
        if path is not None:
            return path
        missing = f"{file.folder}/{file.name} is not on this machine (looked in {', '.join(map(str, self.roots()))})"
        if not file.addresses:
            raise DataError(f"{missing}; {self._manual_copy(file)}")
        if not self.download or os.environ.get("LACONIC_OFFLINE", "0") not in ("", "0"):
            raise DataError(f"{missing} and downloads are switched off; {self._manual_copy(file)}")
        target = cache() / file.folder / file.name
        try:
            Download(file.addresses, target, lambda part: verify(part, file), file.most).run()
        except DataError as error:
            raise DataError(f"{error}; {self._manual_copy(file)}") from error
        return target

    def _manual_copy(self, file: DataFile) -> str:
        names = ", ".join(f"{needed.folder}/{needed.name}" for needed in self.files or (file,))
        return f"or copy {names} into a folder and set LACONIC_DATA=FOLDER (or --data-dir FOLDER)"


def cache() -> Path:
    """The folder of downloaded files."""
    return Path(platformdirs.user_cache_dir("laconic")) / "datasets"


def verify(path: Path, file: DataFile) -> None:
    """Raise DataError if the file's content does not have the published checksum."""
    if file.checksum is None:
        return
    digest = hashlib.new(file.checksum.algorithm)
    with path.open("rb") if file.checksum.stored else opened(path, file) as stream:
        for block in blocks(path, stream, None if file.checksum.stored else file.size):
            digest.update(block)
    _compare(path, file.checksum, digest.hexdigest())


def opened(path: Path, file: DataFile) -> Stream:
    """Open the file's content as a stream, decompressed if it is gzip."""
    with path.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    if file.compressed and is_gzip:
        return gzip.open(path, "rb")
    return path.open("rb")


def blocks(path: Path, stream: Stream, most: int | None) -> Iterator[bytes]:
    """Iterate over the stream in blocks. Report corrupt compression, and content of more than `most` bytes."""
    total = 0
    try:
        while block := stream.read(BLOCK):
            total += len(block)
            if most is not None and total > most:
                raise DataError(f"{path} has more than the expected {most} bytes")
            yield block
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _compare(path: Path, expected: Checksum, actual: str) -> None:
    if actual != expected.value:
        raise DataError(
            f"{path} is damaged or a different file: {expected.algorithm} of its content is {actual}, "
            f"expected {expected.value}"
        )
