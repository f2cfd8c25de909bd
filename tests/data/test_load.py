"""`load` and `datasets`: names, defaults, seeds."""

from __future__ import annotations

import pytest

from laconic.core.errors import ConfigError, DataError
from laconic.data import FederatedData, datasets, load
from laconic.data.sources import SOURCES, mnist


def digits(**options) -> FederatedData:
    data = load("digits", **options)
    assert isinstance(data, FederatedData)
    return data


def test_every_data_set_is_described():
    infos = datasets()
    assert [info.name for info in infos] == list(SOURCES) and len(infos) == 10
    natural = {"mnist-by-writer", "femnist", "tinyshakespeare", "heart-disease"}
    assert {info.name for info in infos if info.default_partition == "natural"} == natural
    assert {info.name for info in infos if info.natural_clients} == natural
    for info in infos:
        assert info.description and info.license and info.citation and info.address.startswith("http")


def test_every_file_that_can_be_downloaded_has_a_sum():
    files = [*mnist.MNIST_FILES, *mnist.FASHION_FILES, mnist.WRITERS_FILE, mnist.EMNIST_ARCHIVE]
    assert all(file.checksum is not None and file.addresses for file in files)


def test_a_file_of_data_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"data set 'patients.csv': .*write a Python file .* --dataset clients.py"):
        load("patients.csv")


def test_unknown_names():
    with pytest.raises(ConfigError, match="unknown data set 'fasion-mnist': did you mean 'fashion-mnist'"):
        load("fasion-mnist")
    with pytest.raises(ConfigError, match="partition 'idd': unknown name 'idd': did you mean 'iid'"):
        load("digits", partition="idd")


def test_a_wrong_partition_fails_before_any_file_is_read():
    with pytest.raises(ConfigError, match="concentration = '0': must be greater than 0"):
        load("cifar100", partition="dirichlet:0")
    with pytest.raises(ConfigError, match="emnist-digits has no natural clients"):
        load("emnist-digits", partition="natural")


def test_the_seed_decides_the_split_and_nothing_else():
    assert len(digits()) == 20
    assert digits(seed=1).fingerprint() == digits(seed=1, partition="iid").fingerprint()
    assert digits(seed=1).fingerprint() != digits(seed=2).fingerprint()
    first, second = digits(seed=1, partition="dirichlet:0.3"), digits(seed=2, partition="dirichlet:0.3")
    assert first.examples.inputs.equal(second.examples.inputs)
    assert first.label_counts().sum() == second.label_counts().sum() == 1438


def test_a_split_stays_what_it_is():
    """Results are compared across versions: a change of these sums is a change of everybody's experiments."""
    assert digits().fingerprint()[:16] == "24ce1205990cc044"
    assert digits(partition="dirichlet:0.3").fingerprint()[:16] == "4dfbfcd3ba28820a"
    assert digits(partition="shards:2").fingerprint()[:16] == "77f7309dcb005754"
    assert digits(partition="pairs").fingerprint()[:16] == "81b49db5e88a5d31"


def test_pairs_need_a_fitting_number_of_clients():
    with pytest.raises(ConfigError, match="18 is not: use 15 or 20"):
        load("digits", partition="pairs", clients=18)


def test_offline_and_missing():
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte\.gz is not on this machine") as caught:
        load("mnist", download=False)
    assert "\n" not in str(caught.value)
