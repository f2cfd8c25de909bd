"""Every reader on the real files."""

from __future__ import annotations

import gzip
import shutil
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from laconic.core.errors import ConfigError, DataError
from laconic.data import FederatedData, datasets, files, load
from laconic.data.sources import tinyshakespeare

INFOS = {info.name: info for info in datasets()}


@cache
def whole(name: str, place: Path) -> FederatedData:
    data = load(name, data_dir=place, download=False)
    assert isinstance(data, FederatedData)
    return data


def moments(data: FederatedData) -> tuple[float, float]:
    pixels = data.examples.inputs.numpy()
    return float(pixels.mean() / 255), float(pixels.std() / 255)


def counts(targets: torch.Tensor) -> list[int]:
    return np.bincount(targets.numpy().ravel()).tolist()


def assert_as_described(data: FederatedData, train: int | None = None) -> None:
    info = INFOS[data.name]
    assert len(data.examples) == (train or info.train_size)
    assert data.test is not None and len(data.test) == (info.test_size or len(data.test))
    assert (data.input_shape, data.classes) == (info.shape, info.classes)
    if info.default_partition != "natural":
        assert len(data) == info.default_clients


def test_digits_need_nothing():
    data = load("digits", download=False)
    assert isinstance(data, FederatedData) and data.test is not None
    assert_as_described(data)
    assert sum(map(np.array, (counts(data.examples.targets), counts(data.test.targets)))).tolist() == [
        178, 182, 177, 183, 181, 182, 181, 179, 174, 180,
    ]  # fmt: skip
    assert min(counts(data.test.targets)) >= 35
    assert (data.examples.inputs.min(), data.examples.inputs.max()) == (0, 16)
    inputs, _ = data.examples.batch(torch.arange(len(data.examples)))
    assert inputs.mean().abs() < 1e-5 and (inputs.std() - 1).abs() < 1e-4


def test_digits_can_be_learned_from_the_stored_labels():
    """A wrong pairing of images and labels would leave the nearest neighbor at 10 %."""
    data = load("digits")
    assert isinstance(data, FederatedData) and data.test is not None
    inputs, labels = data.examples.batch(torch.arange(len(data.examples)))
    test_inputs, test_labels = data.test.batch(torch.arange(len(data.test)))
    nearest = torch.cdist(test_inputs.flatten(1), inputs.flatten(1)).argmin(1)
    assert (labels[nearest] == test_labels).double().mean() > 0.97


def test_mnist(real_data):
    data = whole("mnist", real_data("mnist"))
    assert_as_described(data)
    assert counts(data.examples.targets) == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test is not None
    assert counts(data.test.targets) == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert np.allclose(moments(data), (0.1307, 0.3081), atol=5e-5)
    inputs, _ = data.examples.batch(torch.arange(2000))
    assert abs(inputs.mean()) < 0.05 and abs(inputs.std() - 1) < 0.05
    assert data.sizes().tolist() == [600] * 100


def test_mnist_by_writer(real_data):
    data = whole("mnist-by-writer", real_data("mnist"))
    assert_as_described(data)
    sizes = data.sizes()
    assert len(data) == INFOS["mnist-by-writer"].natural_clients == 539
    assert (sizes.min(), np.median(sizes), sizes.max(), sizes.sum()) == (19, 116, 131, 60000)
    assert (data.label_counts() > 0).sum(axis=1).min() >= 8
    some = load("mnist-by-writer", clients=10, data_dir=real_data("mnist"), seed=1)
    assert isinstance(some, FederatedData) and len(some) == 10
    members = {held.tobytes() for held in data.clients}
    assert all(held.tobytes() in members for held in some.clients)


def test_mnist_has_no_natural_clients(real_data):
    with pytest.raises(ConfigError, match="mnist has no natural clients"):
        load("mnist", partition="natural", data_dir=real_data("mnist"))


def test_fashion_mnist(real_data):
    data = whole("fashion-mnist", real_data("fashion-mnist"))
    assert_as_described(data)
    assert data.test is not None
    assert counts(data.examples.targets) == [6000] * 10 and counts(data.test.targets) == [1000] * 10
    assert np.allclose(moments(data), (0.2860, 0.3530), atol=5e-5)


def test_fashion_mnist_with_the_partition_of_fed_amd(real_data):
    data = load("fashion-mnist", partition="pairs", clients=100, data_dir=real_data("fashion-mnist"))
    assert isinstance(data, FederatedData)
    held = np.sort(data.label_counts(), axis=1)
    assert (held[:, -2:] == 300).all() and (held[:, :-2] == 0).all()


def test_a_debian_package_is_found(real_data, monkeypatch, tmp_path):
    """Debian recompresses files, so only the uncompressed bytes are the published ones."""
    place = tmp_path / "fashion-mnist"
    place.mkdir()
    for path in (real_data("fashion-mnist") / "fashion-mnist").glob("*.gz"):
        content = gzip.decompress(path.read_bytes())
        (place / path.name).write_bytes(gzip.compress(content, compresslevel=1, mtime=0))
    monkeypatch.setattr(files, "SYSTEM_FOLDER", tmp_path)
    data = load("fashion-mnist", download=False)
    assert isinstance(data, FederatedData)
    assert data.fingerprint() == whole("fashion-mnist", real_data("fashion-mnist")).fingerprint()


def test_the_wrong_files_in_the_right_place(real_data, tmp_path):
    shutil.copytree(real_data("mnist") / "mnist", tmp_path / "fashion-mnist")
    with pytest.raises(DataError, match=r"fashion-mnist/train-images.* sha256 .* expected c59f468a"):
        load("fashion-mnist", data_dir=tmp_path)


def test_cifar10_sheets(real_data):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = load("cifar10", data_dir=real_data("cifar10"), download=False)
    assert isinstance(data, FederatedData) and data.test is not None
    train = len(data.examples)
    assert_as_described(data, train)
    assert train < 50_000, "a copy with all five sheets needs the counts below changed"
    assert f"only the first {train} of 50000" in str(caught[0].message)
    assert counts(data.test.targets) == [1000] * 10
    assert counts(data.examples.targets) == [1005, 974, 1032, 1016, 999, 937, 1030, 1001, 1025, 981]
    inputs, _ = data.examples.batch(torch.arange(train))
    assert inputs.mean((0, 2, 3)).abs().max() < 0.02, "the channels are in the order of their means"
    assert (inputs.std((0, 2, 3)) - 1).abs().max() < 0.02


def test_femnist_sample(real_data):
    data = whole("femnist", real_data("femnist"))
    assert_as_described(data, train=28_255)
    assert data.test is not None and len(data.test) == 3247
    sizes = data.sizes()
    assert (len(data), sizes.min(), np.median(sizes), sizes.max()) == (207, 2, 150, 320)
    assert int((data.examples.targets < 10).sum()) == 19_731
    mean, _ = moments(data)
    assert mean < 0.2, "ink is light on dark, as in MNIST"


def test_tinyshakespeare(real_data):
    data = whole("tinyshakespeare", real_data("tinyshakespeare"))
    assert_as_described(data)
    assert data.kind == "next_token" and len(data) == INFOS["tinyshakespeare"].natural_clients
    text = (real_data("tinyshakespeare") / "tinyshakespeare" / "input.txt").read_text()
    roles = tinyshakespeare.speeches(text)
    assert len(roles) == 299 and max(roles, key=lambda role: len(roles[role])) == "GLOUCESTER"
    vocabulary = sorted(set(text))
    assert len(vocabulary) == 65
    inputs, targets = data.batch(0, np.arange(2))
    assert inputs.dtype == torch.int64 and torch.equal(inputs[:, 1:], targets[:, :-1])
    said = "".join(vocabulary[token] for token in inputs.flatten().tolist())
    assert said == roles["First Citizen"][:160] and said.startswith("Before we proceed any further, hear me speak.")
    following = "".join(vocabulary[token] for token in targets.flatten().tolist())
    assert following == roles["First Citizen"][1:161]


def test_a_role_is_tested_on_what_it_says_last(real_data):
    data = whole("tinyshakespeare", real_data("tinyshakespeare"))
    text = (real_data("tinyshakespeare") / "tinyshakespeare" / "input.txt").read_text()
    first = tinyshakespeare.speeches(text)["First Citizen"]
    vocabulary = sorted(set(text))
    assert data.test is not None
    said = "".join(vocabulary[token] for token in data.test.inputs[0].tolist())
    assert first[len(first) - len(first) // 10 :].startswith(said)
    train_end = data.size(0) * 80
    assert train_end + 1 <= len(first) - len(first) // 10, "no training target lies in the test part"


def test_tinyshakespeare_cannot_be_divided_by_label(real_data):
    with pytest.raises(ConfigError, match="needs one class label per example"):
        load("tinyshakespeare", partition="dirichlet:0.3", data_dir=real_data("tinyshakespeare"))


def test_heart_disease(real_data):
    data = whole("heart-disease", real_data("heart-disease"))
    assert_as_described(data)
    assert data.test is not None
    assert data.sizes().tolist() == [303 - 59, 294 - 58, 123 - 24, 200 - 39]
    positive = data.label_counts()[:, 1] + np.array([139, 106, 115, 149]) // 5
    assert positive.tolist() == [139, 106, 115, 149]
    inputs, _ = data.examples.batch(torch.arange(len(data.examples)))
    assert torch.isfinite(inputs).all()
    rows = (real_data("heart-disease") / "heart-disease" / "processed.hungarian.data").read_text().split()
    assert rows[0].split(",")[10:13] == ["?", "?", "?"]
    first_hungarian, _ = data.batch(1, np.array([0]))
    assert (first_hungarian[0, 15:] == 0).all(), "slope, ca and thal are missing: 0 after standardizing"
    assert (first_hungarian[0, :15] != 0).all()


def test_heart_disease_is_standardized_by_training_rows_only(real_data, monkeypatch):
    """Recompute one column, the age, by hand from the files."""
    data = whole("heart-disease", real_data("heart-disease"))
    ages, held_out = [], []
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        seen = {0: 0, 1: 0}
        for row in (real_data("heart-disease") / "heart-disease" / f"processed.{hospital}.data").read_text().split():
            cells = row.split(",")
            target = int(float(cells[-1]) > 0)
            seen[target] += 1
            ages.append(float(cells[0]))
            held_out.append(seen[target] % 5 == 0)
    age, test = np.array(ages), np.array(held_out)
    expected = (age - age[~test].mean()) / age[~test].std()
    assert data.test is not None
    assert np.allclose(data.examples.inputs[:, 0].numpy(), expected[~test], atol=1e-5)
    assert np.allclose(data.test.inputs[:, 0].numpy(), expected[test], atol=1e-5)


def test_a_damaged_file_is_named(real_data, tmp_path):
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    (folder / "input.txt").write_bytes(
        (real_data("tinyshakespeare") / "tinyshakespeare" / "input.txt").read_bytes()[:-1]
    )
    with pytest.raises(DataError, match=r"tinyshakespeare/input\.txt is damaged .* expected 86c4e6aa"):
        load("tinyshakespeare", data_dir=tmp_path)
