"""Downloads against a real HTTP server that misbehaves in the ways that servers do."""

from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from laconic.core.errors import DataError
from laconic.data import files
from laconic.data.download import BLOCK
from laconic.data.files import Checksum, DataFile, Finder
from laconic.data.sources import cifar, heart_disease, mnist, tinyshakespeare

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, dtype=np.uint8).tobytes()
ARRIVED = 150_000 // BLOCK * BLOCK
"""Bytes that are kept of a transfer that breaks off in the middle: whole blocks."""
SUM = Checksum("sha256", hashlib.sha256(CONTENT).hexdigest())


def wanted(site, *paths: str, name: str = "thing.bin") -> DataFile:
    return DataFile("some", name, tuple(site.url(path) for path in paths), SUM, len(CONTENT))


def target() -> Path:
    return files.cache() / "some" / "thing.bin"


def test_a_file_arrives_once_and_is_kept(site, capsys):
    site.contents["/a"] = CONTENT
    file = wanted(site, "/a")
    assert Finder().find(file).read_bytes() == CONTENT
    assert Finder().read(file) == CONTENT
    assert site.requests == [("/a", None)]
    assert [path.name for path in target().parent.iterdir() if path.suffix != ".lock"] == ["thing.bin"]
    assert capsys.readouterr().err == f"downloading thing.bin (0.3 MB) from {site.url('/a')}\n"


def test_a_person_at_a_terminal_sees_a_bar(site, capsys, monkeypatch):
    site.contents["/a"] = CONTENT
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    Finder().find(wanted(site, "/a"))
    captured = capsys.readouterr()
    assert "thing.bin" in captured.err and "300k/300k" in captured.err
    assert captured.out == ""


def test_only_the_rest_is_requested_after_a_broken_transfer(site):
    site.contents["/a"] = CONTENT
    site.faults["/a"] = ["break off"]
    assert Finder().read(wanted(site, "/a")) == CONTENT
    assert site.requests == [("/a", None), ("/a", f"bytes={ARRIVED}-")]
    assert site.sent == [150_000, 300_000 - ARRIVED]


def test_a_transfer_is_resumed_by_a_later_run(site):
    site.contents["/a"] = CONTENT
    site.faults["/a"] = ["break off", "503", "503", "503"]
    with pytest.raises(DataError, match=r"could not download thing\.bin: .*status 503"):
        Finder().read(wanted(site, "/a"))
    assert target().with_name("thing.bin.part").stat().st_size == ARRIVED
    assert not target().exists()
    site.requests.clear()
    assert Finder().read(wanted(site, "/a")) == CONTENT
    assert site.requests == [("/a", f"bytes={ARRIVED}-")]


@pytest.mark.parametrize("fault", ["ignore range", "wrong range"])
def test_servers_that_do_not_continue_properly(site, fault):
    site.contents["/a"] = CONTENT
    site.faults["/a"] = ["break off", fault]
    assert Finder().read(wanted(site, "/a")) == CONTENT


def test_a_complete_part_is_recognized(site):
    site.contents["/a"] = CONTENT
    target().parent.mkdir(parents=True)
    target().with_name("thing.bin.part").write_bytes(CONTENT)
    assert Finder().read(wanted(site, "/a")) == CONTENT
    assert site.sent == []


def test_a_part_longer_than_the_file_is_thrown_away(site):
    site.contents["/a"] = CONTENT
    target().parent.mkdir(parents=True)
    target().with_name("thing.bin.part").write_bytes(CONTENT + b"more")
    assert Finder().read(wanted(site, "/a")) == CONTENT
    assert site.requests == [("/a", "bytes=300004-"), ("/a", None)]


def test_a_part_of_something_else_leads_to_one_fresh_start(site):
    site.contents["/a"] = CONTENT
    target().parent.mkdir(parents=True)
    target().with_name("thing.bin.part").write_bytes(b"from another file")
    assert Finder().read(wanted(site, "/a")) == CONTENT
    assert site.requests == [("/a", "bytes=17-"), ("/a", None)]


def test_wrong_bytes_are_deleted_and_named(site):
    site.contents["/a"] = b"not it"
    with pytest.raises(DataError) as caught:
        Finder().read(wanted(site, "/a"))
    message = str(caught.value)
    assert "\n" not in message and "deleted" in message
    assert SUM.value in message and hashlib.sha256(b"not it").hexdigest() in message
    assert not target().exists() and not target().with_name("thing.bin.part").exists()


def test_the_next_mirror_is_asked(site):
    site.contents |= {"/good": CONTENT, "/bad": b"bad"}
    assert Finder().read(wanted(site, "/missing", "/bad", "/good")) == CONTENT
    assert [path for path, _ in site.requests] == ["/missing", "/bad", "/good"]


def test_every_address_is_named_when_all_fail(site):
    with pytest.raises(DataError) as caught:
        Finder().find(wanted(site, "/x", "/y"))
    message = str(caught.value)
    assert "\n" not in message
    assert f"{site.url('/x')}: status 404; {site.url('/y')}: status 404" in message
    assert len(site.requests) == 2, "a 404 is not worth another try"


def test_nobody_listening(unused_port):
    file = DataFile("some", "thing.bin", (f"http://127.0.0.1:{unused_port}/a",), SUM, len(CONTENT))
    with pytest.raises(DataError, match=r"could not download thing\.bin: http://127.*; or copy some/thing\.bin into a"):
        Finder().find(file)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_sum_of_a_gzip_file_is_of_its_content(site):
    site.contents["/a.gz"] = gzip.compress(CONTENT, compresslevel=1, mtime=12345)
    assert Finder().read(wanted(site, "/a.gz", name="thing.gz")) == CONTENT


def test_downloads_can_be_forbidden(site, monkeypatch, tmp_path):
    site.contents["/a"] = CONTENT
    with pytest.raises(DataError) as caught:
        Finder(tmp_path, download=False).find(wanted(site, "/a"))
    message = str(caught.value)
    assert "switched off" in message and "\n" not in message
    for place in (tmp_path, files.SYSTEM_FOLDER, files.cache()):
        assert str(place) in message
    monkeypatch.setenv("LACONIC_OFFLINE", "1")
    with pytest.raises(DataError, match="switched off"):
        Finder().find(wanted(site, "/a"))
    assert site.requests == []


def test_two_at_once_download_once(site):
    site.contents["/a"] = CONTENT
    results: list[bytes] = []
    threads = [threading.Thread(target=lambda: results.append(Finder().read(wanted(site, "/a")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 4
    assert len(site.requests) == 1


def test_a_cache_that_cannot_be_written(site, monkeypatch, tmp_path):
    site.contents["/a"] = CONTENT
    (tmp_path / "taken").write_text("a file where a folder should be")
    monkeypatch.setattr(files, "cache", lambda: tmp_path / "taken")
    with pytest.raises(DataError, match="cannot write"):
        Finder().find(wanted(site, "/a"))


@pytest.mark.parametrize("fault", ["", "no length"])
def test_a_file_that_is_too_long_is_not_received(site, fault):
    """A server, or whoever stands between, could otherwise fill the disk."""
    site.contents |= {"/long": CONTENT * 100, "/good": CONTENT}
    site.faults["/long"] = [fault]
    with pytest.raises(DataError, match=r"the file has more than 300000 bytes; or copy"):
        Finder().find(wanted(site, "/long"))
    assert len(site.requests) == 1, "another attempt would not help"
    assert not target().exists() and target().with_name("thing.bin.part").stat().st_size == 0
    site.faults["/long"] = [fault]
    assert Finder().read(wanted(site, "/long", "/good")) == CONTENT


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(site):
    """A gzip file of 300 kB may have 300 MB of zeros in it."""
    bomb = gzip.compress(bytes(300_000_000), compresslevel=9)
    assert len(bomb) < len(CONTENT)
    site.contents["/a.gz"] = bomb
    file = wanted(site, "/a.gz", name="thing.gz")
    with pytest.raises(DataError, match="has more than the expected 300000 bytes"):
        Finder().find(file)
    local = files.cache() / "some" / "thing.gz"
    assert not local.exists()
    local.write_bytes(bomb)
    with pytest.raises(DataError, match="has more than the expected 300000 bytes"):
        Finder().read(file)


def test_addresses_are_https_and_sizes_are_known():
    for module in (cifar, heart_disease, mnist, tinyshakespeare):
        values = [value for value in vars(module).values() if isinstance(value, DataFile | tuple)]
        found = [file for value in values for file in (value if isinstance(value, tuple) else [value])]
        for file in (file for file in found if isinstance(file, DataFile) and file.addresses):
            assert file.size and file.checksum, file.name
            assert all(address.startswith("https://") for address in file.addresses), file.addresses


def test_a_member_that_is_too_long_is_refused(tmp_path):
    """The sum of EMNIST's archive covers it; an archive of somebody's own is read within bounds all the same."""
    (file,) = (file for file in mnist.EMNIST_FILES if file.name.startswith("emnist-digits-test-labels"))
    for content, message in (
        (gzip.compress(bytes(20_000_000)), "has more than the expected 40008 bytes"),
        (bytes(50_000_000), "at most 41048 are expected"),
    ):
        with zipfile.ZipFile(tmp_path / "gzip.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"gzip/{file.name}", content)
        with pytest.raises(DataError, match=message):
            mnist._member(tmp_path / "gzip.zip", file)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("a.bin")
        member.size = 200_000_000
        with Path("/dev/zero").open("rb") as zeros:
            archive.addfile(member, zeros)
    assert len(cifar._member(tmp_path / "cifar.tar.gz", "a.bin")) == 50_000 * 3074 + 1
