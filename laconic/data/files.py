"""Finding data files: on this machine first, else at their official address; checked by their sum."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, cast

import platformdirs

from laconic.core.errors import DataError
from laconic.data.download import Download

SYSTEM_PLACE = Path("/usr/share/datasets")
"""Where Debian's data packages install, such as dataset-fashion-mnist."""
BLOCK = 1 << 20


@dataclass(frozen=True)
class Checksum:
    """A sum of a file's content: of the uncompressed bytes of a .gz, of the bytes as they are otherwise.

    Mirrors and packages compress anew, so the sum of a .gz itself says little; `stored` asks for it all the
    same, where nobody has published another.
    """

    algorithm: Literal["sha256", "md5"]
    value: str
    stored: bool = False


@dataclass(frozen=True)
class DataFile:
    """One published file: the folder and name under which it is looked for, its addresses and its sum."""

    folder: str
    name: str
    addresses: tuple[str, ...] = ()
    checksum: Checksum | None = None

    @property
    def compressed(self) -> bool:
        """A single compressed file; archives of several files are left as they are."""
        return self.name.endswith(".gz") and not self.name.endswith(".tar.gz")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that will do: a .gz may also lie there uncompressed."""
        return (self.name, self.name.removesuffix(".gz")) if self.compressed else (self.name,)


@dataclass(frozen=True)
class Finder:
    """Where to look, and whether to download what is not there."""

    data_dir: Path | None = None
    download: bool = True
    files: tuple[DataFile, ...] = ()
    """All that the data set is made of: a person who must fetch one of them wants to know the others."""

    def __post_init__(self) -> None:
        if self.data_dir is not None and not self.data_dir.is_dir():
            raise DataError(f"data_dir '{self.data_dir}' is not a folder")

    def places(self) -> list[Path]:
        """The folders that are searched, in this order."""
        named = [Path(place) for place in (self.data_dir, os.environ.get("LACONIC_DATA")) if place]
        return list(dict.fromkeys([*named, SYSTEM_PLACE, cache()]))

    def folders(self, folder: str) -> list[Path]:
        """Every folder that may hold a data set's files: `<place>/<folder>`, then the place itself."""
        return [path for place in self.places() for path in (place / folder, place)]

    def look(self, file: DataFile) -> Path | None:
        """The file's path if it is on this machine; its content is not checked yet."""
        for folder in self.folders(file.folder):
            for name in file.names:
                if (folder / name).is_file():
                    return folder / name
        return None

    def find(self, file: DataFile) -> Path:
        """The path of the file, downloaded if need be, its content checked."""
        path = self._obtain(file)
        verify(path, file)
        return path

    def read(self, file: DataFile) -> bytes:
        """The checked content of the file, uncompressed."""
        path = self._obtain(file)
        if file.checksum is not None and file.checksum.stored:
            verify(path, file)
        with opened(path, file) as stream:
            content = b"".join(blocks(path, stream))
        if file.checksum is not None and not file.checksum.stored:
            _compare(path, file.checksum, hashlib.new(file.checksum.algorithm, content).hexdigest())
        return content

    def _obtain(self, file: DataFile) -> Path:
        path = self.look(file)
        if path is not None:
            return path
        looked = f"looked in {', '.join(str(place) for place in self.places())}"
        missing = f"{file.folder}/{file.name} is not on this machine ({looked})"
        if not file.addresses:
            raise DataError(f"{missing}; {self._by_hand(file)}")
        if not self.download or os.environ.get("LACONIC_OFFLINE", "0") not in ("", "0"):
            raise DataError(f"{missing} and downloads are switched off; {self._by_hand(file)}")
        target = cache() / file.folder / file.name
        try:
            Download(file.addresses, target, lambda part: verify(part, file)).run()
        except DataError as error:
            raise DataError(f"{error}; {self._by_hand(file)}") from error
        return target

    def _by_hand(self, file: DataFile) -> str:
        """How a person gives what cannot be downloaded."""
        names = ", ".join(f"{each.folder}/{each.name}" for each in self.files or (file,))
        return f"or copy {names} into a folder and name that one: LACONIC_DATA=FOLDER (or --data-dir FOLDER)"


def cache() -> Path:
    """Where downloads are kept."""
    return Path(platformdirs.user_cache_dir("laconic")) / "datasets"


def verify(path: Path, file: DataFile) -> None:
    """Refuse a file whose content is not the published one."""
    if file.checksum is None:
        return
    digest = hashlib.new(file.checksum.algorithm)
    with path.open("rb") if file.checksum.stored else opened(path, file) as stream:
        for block in blocks(path, stream):
            digest.update(block)
    _compare(path, file.checksum, digest.hexdigest())


def opened(path: Path, file: DataFile) -> BinaryIO:
    """The file's content as a stream; a .gz is uncompressed unless it already lies there uncompressed."""
    with path.open("rb") as stream:
        is_gzip = stream.read(2) == b"\x1f\x8b"
    if file.compressed and is_gzip:
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def blocks(path: Path, stream: BinaryIO) -> Iterator[bytes]:
    """The stream in blocks; damage to its compression is reported with the path."""
    try:
        while block := stream.read(BLOCK):
            yield block
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _compare(path: Path, expected: Checksum, actual: str) -> None:
    if actual != expected.value:
        raise DataError(
            f"{path} is damaged or another file: {expected.algorithm} of its content is {actual}, "
            f"expected {expected.value}"
        )
