"""Readers on small files in the official formats, for data sets too large to keep at hand."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from laconic.core.errors import DataError
from laconic.data import FederatedData, load
from laconic.data.files import Checksum, DataFile
from laconic.data.sources import cifar, idx, mnist

RANDOM = np.random.default_rng(5)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def with_sum(file: DataFile, content: bytes) -> DataFile:
    """The same file, expected to have this content: the check itself stays on."""
    assert file.checksum is not None
    return replace(
        file, checksum=replace(file.checksum, value=hashlib.new(file.checksum.algorithm, content).hexdigest())
    )


def tar(path: Path, members: dict[str, bytes]) -> bytes:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path.read_bytes()


def loaded(name: str, folder: Path) -> FederatedData:
    data = load(name, clients=2, data_dir=folder, download=False, partition="iid")
    assert isinstance(data, FederatedData)
    return data


@pytest.fixture
def small_cifar10(monkeypatch) -> dict[str, bytes]:
    batches = {name: RANDOM.integers(0, 10, (4, 3073), dtype=np.uint8).tobytes() for name in cifar.CIFAR10_SUMS}
    monkeypatch.setattr(cifar, "BATCH_SIZE", 4)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in batches.items()}
    monkeypatch.setattr(cifar, "CIFAR10_SUMS", sums)
    return batches


def assert_cifar10(data: FederatedData, batches: dict[str, bytes]) -> None:
    assert len(data.examples) == 20 and data.test is not None and len(data.test) == 4
    record = np.frombuffer(batches["data_batch_2"], np.uint8)[:3073]
    assert data.examples.targets[4] == record[0]
    green = data.examples.inputs[4, 1].numpy()
    assert np.array_equal(green.ravel(), record[1 + 1024 : 1 + 2048])


def test_cifar10_archive(tmp_path, monkeypatch, small_cifar10):
    members = {f"cifar-10-batches-bin/{name}.bin": content for name, content in small_cifar10.items()}
    stored = tar(tmp_path / "cifar-10-binary.tar.gz", members)
    monkeypatch.setattr(cifar, "CIFAR10_ARCHIVE", with_sum(cifar.CIFAR10_ARCHIVE, stored))
    assert_cifar10(loaded("cifar10", tmp_path), small_cifar10)


def test_cifar10_unpacked(tmp_path, small_cifar10):
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for name, content in small_cifar10.items():
        (folder / f"{name}.bin").write_bytes(content)
    assert_cifar10(loaded("cifar10", tmp_path), small_cifar10)
    (folder / "data_batch_3.bin").write_bytes(b"\0" * 4 * 3073)
    with pytest.raises(DataError, match=r"data_batch_3\.bin is damaged"):
        loaded("cifar10", tmp_path)


def test_cifar10_archive_with_another_sum_is_refused(tmp_path, small_cifar10):
    tar(tmp_path / "cifar-10-binary.tar.gz", {"a": b"b"})
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz is damaged.*expected c32a1d4a"):
        loaded("cifar10", tmp_path)


def test_cifar10_archive_without_a_member(tmp_path, monkeypatch, small_cifar10):
    stored = tar(tmp_path / "cifar-10-binary.tar.gz", {"a": b"b"})
    monkeypatch.setattr(cifar, "CIFAR10_ARCHIVE", with_sum(cifar.CIFAR10_ARCHIVE, stored))
    with pytest.raises(DataError, match=r"no readable member cifar-10-batches-bin/data_batch_1\.bin"):
        loaded("cifar10", tmp_path)


def test_cifar100(tmp_path, monkeypatch):
    records = {
        name: np.concatenate(
            [
                RANDOM.integers(0, 20, (count, 1), dtype=np.uint8),
                RANDOM.integers(20, 100, (count, 1), dtype=np.uint8),
                RANDOM.integers(0, 256, (count, 3072), dtype=np.uint8),
            ],
            axis=1,
        )
        for name, count in (("train", 5), ("test", 3))
    }
    members = {f"cifar-100-binary/{name}.bin": array.tobytes() for name, array in records.items()}
    stored = tar(tmp_path / "cifar-100-binary.tar.gz", members)
    monkeypatch.setattr(cifar, "CIFAR100_ARCHIVE", with_sum(cifar.CIFAR100_ARCHIVE, stored))
    with pytest.raises(DataError, match=r"train\.bin has 15370 bytes, expected 153700000"):
        loaded("cifar100", tmp_path)
    monkeypatch.setattr(cifar, "CIFAR100_COUNTS", {"train": 5, "test": 3})
    data = loaded("cifar100", tmp_path)
    assert data.classes == 100 and data.test is not None
    assert data.examples.targets.tolist() == records["train"][:, 1].tolist(), "the fine labels"
    assert np.array_equal(data.test.inputs.numpy().reshape(3, -1), records["test"][:, 2:])


@pytest.fixture
def small_emnist(monkeypatch) -> dict[str, bytes]:
    arrays = [
        RANDOM.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        RANDOM.integers(0, 10, 6, dtype=np.uint8),
        RANDOM.integers(0, 256, (2, 28, 28), dtype=np.uint8),
        RANDOM.integers(0, 10, 2, dtype=np.uint8),
    ]
    arrays[0][0, 3, 7] = 201
    arrays[0][0, 7, 3] = 7
    contents = {file.name: gzip.compress(idx_bytes(a)) for file, a in zip(mnist.EMNIST_FILES, arrays, strict=True)}
    monkeypatch.setattr(mnist, "EMNIST_COUNTS", (6, 2))
    monkeypatch.setattr(
        mnist,
        "EMNIST_FILES",
        tuple(with_sum(f, contents[f.name]) if f.checksum else f for f in mnist.EMNIST_FILES),
    )
    return contents


def assert_emnist(data: FederatedData) -> None:
    assert len(data.examples) == 6 and data.test is not None and len(data.test) == 2
    assert data.examples.inputs[0, 0, 7, 3] == 201 and data.examples.inputs[0, 0, 3, 7] == 7, "transposed"
    (mean,), (deviation,) = data.examples.normalize or ((), ())
    pixels = data.examples.inputs.numpy() / 255
    assert np.allclose((mean, deviation), (pixels.mean(), pixels.std()))


def test_emnist_archive(tmp_path, monkeypatch, small_emnist):
    path = tmp_path / "gzip.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in small_emnist.items():
            archive.writestr(f"gzip/{name}", content)
    with pytest.raises(DataError, match=r"gzip\.zip is damaged.*expected 58c8d27c"):
        loaded("emnist-digits", tmp_path)
    monkeypatch.setattr(mnist, "EMNIST_ARCHIVE", with_sum(mnist.EMNIST_ARCHIVE, path.read_bytes()))
    assert_emnist(loaded("emnist-digits", tmp_path))
    wrong = replace(mnist.EMNIST_FILES[2], checksum=Checksum("sha256", "00", stored=True))
    monkeypatch.setattr(mnist, "EMNIST_FILES", (*mnist.EMNIST_FILES[:2], wrong, mnist.EMNIST_FILES[3]))
    with pytest.raises(DataError, match=r"member emnist-digits-test-images.* is damaged"):
        loaded("emnist-digits", tmp_path)


def test_emnist_loose_files(tmp_path, small_emnist):
    (tmp_path / "emnist").mkdir()
    for name, content in small_emnist.items():
        (tmp_path / "emnist" / name).write_bytes(content)
    assert_emnist(loaded("emnist-digits", tmp_path))
    labels = tmp_path / "emnist" / mnist.EMNIST_FILES[1].name
    labels.write_bytes(gzip.compress(idx_bytes(np.zeros(5, np.uint8))))
    with pytest.raises(DataError, match=r"contains an array of shape \(5,\), expected \(6,\)"):
        loaded("emnist-digits", tmp_path)


def leaf(path: Path, users: dict[str, list[tuple[np.ndarray, int]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "num_samples": [len(samples) for samples in users.values()],
        "user_data": {
            user: {"x": [(x / 255).ravel().tolist() for x, _ in samples], "y": [y for _, y in samples]}
            for user, samples in users.items()
        },
    }
    path.write_text(json.dumps(content))


def sample(label: int) -> tuple[np.ndarray, int]:
    return RANDOM.integers(0, 256, (28, 28)), label


@pytest.mark.parametrize("home", ["femnist", "femnist/data", "."])
def test_femnist_from_leaf(tmp_path, home):
    first, second = [sample(3), sample(61)], [sample(0)]
    leaf(tmp_path / home / "train" / "all_data_0.json", {"f1": first, "empty": []})
    leaf(tmp_path / home / "train" / "all_data_1.json", {"f2": second})
    leaf(tmp_path / home / "test" / "all_data_0.json", {"f1": [sample(7)]})
    data = load("femnist", data_dir=tmp_path, download=False)
    assert isinstance(data, FederatedData) and data.test is not None
    assert data.sizes().tolist() == [2, 1], "a writer without images is no client"
    assert data.client_names == ("f1", "f2")
    assert load("femnist", data_dir=tmp_path, download=False, partition="iid", clients=2).client_names is None
    assert load("femnist", data_dir=tmp_path, download=False, clients=1).client_names in {("f1",), ("f2",)}
    assert data.examples.targets.tolist() == [3, 61, 0] and data.test.targets.tolist() == [7]
    expected = 255 - np.stack([x for x, _ in [*first, *second]])
    assert np.array_equal(data.examples.inputs[:, 0].numpy(), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "JSONDecodeError"),
        ("{}", "KeyError: 'users'"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}', "ValueError"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[2.0] * 784], "y": [1]}}}), "between 0 and 1"),
        (json.dumps({"users": ["a"], "user_data": {"a": {"x": [[0] * 784], "y": [1, 2]}}}), "2 labels for 1"),
    ],
)
def test_femnist_from_something_else(tmp_path, content, message):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "all.json").write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        load("femnist", data_dir=tmp_path)
    assert "all.json" in str(caught.value) and "\n" not in str(caught.value)


def test_femnist_without_its_test_part(tmp_path):
    leaf(tmp_path / "train" / "a.json", {"f1": [sample(3)]})
    with pytest.raises(DataError, match=r"test has no \*\.json files"):
        load("femnist", data_dir=tmp_path)


def test_femnist_says_how_it_is_made():
    with pytest.raises(DataError, match=r"not on this machine .*preprocess\.sh -s niid") as caught:
        load("femnist")
    assert "\n" not in str(caught.value)


def test_a_damaged_femnist_sample(tmp_path):
    (tmp_path / "femnist_leaf_sample.npz").write_bytes(b"PK not really")
    with pytest.raises(DataError, match=r"femnist_leaf_sample\.npz cannot be read"):
        load("femnist", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x09\1\0\0\0\0", "not an idx file"),
        (b"\0\0\x08\2\0\0", "ends within its header"),
        (b"\0\0\x08\1\0\0\0\3ab", "has 10 bytes, expected 11"),
        (b"\0\0\x08\1\0\0\0\3abcd", "has 12 bytes, expected 11"),
        (b"\0\0\x08\1\0\0\0\4abcd", r"shape \(4,\), expected \(3,\)"),
    ],
)
def test_bytes_that_are_no_idx_file(content, message):
    with pytest.raises(DataError, match=message):
        idx.parse(content, "thing", (3,))


def test_idx_of_integers():
    content = b"\0\0\x0c\2" + struct.pack(">2I4i", 2, 2, 1, -2, 3, 70000)
    assert idx.parse(content, "thing", (2, 2)).tolist() == [[1, -2], [3, 70000]]
