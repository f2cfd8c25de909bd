"""`load` and `datasets`: names, defaults, seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from laconic.core.errors import ConfigError
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


def test_a_file_of_data_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text("age,ill\n40,1\n")
    with pytest.raises(ConfigError, match=r"data set 'patients.xlsx': .*write a Python file .* --dataset clients.py"):
        load("patients.xlsx")
    with pytest.raises(ConfigError, match=r"name the column to predict, as in patients.csv:target=COLUMN"):
        load("patients.csv")
