"""Where files are looked for, and that their content is checked."""

from __future__ import annotations

import gzip
import hashlib

import pytest

from laconic.core.errors import DataError
from laconic.data import files, load
from laconic.data.files import Checksum, DataFile, Finder

CONTENT = b"the content"
FILE = DataFile("some", "thing.gz", checksum=Checksum("sha256", hashlib.sha256(CONTENT).hexdigest()))


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_the_order_of_places(tmp_path, monkeypatch):
    monkeypatch.setenv("LACONIC_DATA", str(tmp_path / "environment"))
    (tmp_path / "argument").mkdir()
    finder = Finder(tmp_path / "argument")
    stored = gzip.compress(CONTENT)
    expected = []
    for place in (files.cache(), files.SYSTEM_FOLDER, tmp_path / "environment", tmp_path / "argument"):
        for path in (place / "thing.gz", place / "some" / "thing.gz"):
            expected.append(put(path, stored))
            assert finder.find(FILE) == path, "a later place must win over all the earlier ones"
    assert len(set(expected)) == 8


def test_a_gzip_file_may_lie_there_uncompressed(tmp_path):
    path = put(tmp_path / "some" / "thing", CONTENT)
    assert Finder(tmp_path).find(FILE) == path
    assert Finder(tmp_path).read(FILE) == CONTENT


@pytest.mark.parametrize("action", [Finder.find, Finder.read])
def test_a_wrong_sum_names_path_expected_and_actual(tmp_path, action):
    path = put(tmp_path / "thing.gz", gzip.compress(b"other"))
    with pytest.raises(DataError) as caught:
        action(Finder(tmp_path), FILE)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), FILE.checksum.value, hashlib.sha256(b"other").hexdigest()):
        assert part in message
    assert path.exists(), "a person's own file is never deleted"


@pytest.mark.parametrize("damage", [lambda stored: stored[:-9], lambda stored: stored[:12] + b"\xff" * 9])
def test_damaged_compression(tmp_path, damage):
    path = put(tmp_path / "thing.gz", damage(gzip.compress(CONTENT)))
    with pytest.raises(DataError, match=r"cannot be read|damaged") as caught:
        Finder(tmp_path).read(FILE)
    assert str(path) in str(caught.value)


def test_the_sum_of_a_file_as_stored(tmp_path):
    stored = gzip.compress(CONTENT, mtime=1)
    file = DataFile("some", "thing.gz", checksum=Checksum("md5", hashlib.md5(stored).hexdigest(), stored=True))
    put(tmp_path / "thing.gz", stored)
    assert Finder(tmp_path).read(file) == CONTENT
    put(tmp_path / "thing.gz", gzip.compress(CONTENT, mtime=2))
    with pytest.raises(DataError, match="md5"):
        Finder(tmp_path).read(file)


def test_a_file_without_address_is_just_missing():
    with pytest.raises(DataError, match=r"some/thing\.gz is not on this machine \(looked in "):
        Finder().find(FILE)


def test_who_has_to_fetch_files_is_told_all_of_them_and_where_to_put_them(monkeypatch):
    monkeypatch.setenv("LACONIC_OFFLINE", "1")
    for name, wanted in (
        ("mnist", ["mnist/train-labels-idx1-ubyte.gz", "mnist/t10k-labels-idx1-ubyte.gz"]),
        ("mnist-by-writer", ["mnist/t10k-labels-idx1-ubyte.gz", "mnist/qmnist-train-labels-idx2-int.gz"]),
        ("heart-disease", ["heart-disease/processed.cleveland.data", "heart-disease/processed.va.data"]),
        ("cifar10", ["cifar10/cifar-10-binary.tar.gz"]),
    ):
        with pytest.raises(DataError) as caught:
            load(name)
        hint = str(caught.value).partition("or copy ")[2]
        assert [file for file in wanted if file not in hint] == [] and "LACONIC_DATA=FOLDER" in hint, caught.value


def test_data_dir_must_exist(tmp_path):
    with pytest.raises(DataError, match="is not a folder"):
        Finder(tmp_path / "typing-error")
