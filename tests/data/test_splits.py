"""Splits of data sets and files in folders by name: what is trained on, and what is the test set."""

from __future__ import annotations

import pytest

from laconic.core.errors import DataError, LaconicWarning
from laconic.data import from_hugging_face, from_table

datasets = pytest.importorskip("datasets")

COLUMNS = {"x": [0.1, 0.2, 0.3, 0.4] * 5, "z": [1.0, 2.0, 3.0, 4.0] * 5, "label": [0, 1] * 10}
TRAIN = datasets.Dataset.from_dict(COLUMNS)
TEST = TRAIN.select(range(8))
SECRET = datasets.Dataset.from_dict({"x": [0.1, 0.2], "z": [1.0, 2.0], "label": [-1, -1]})


@pytest.mark.parametrize("train", ["train", "Train", "training"])
@pytest.mark.parametrize("test", ["test", "Test", "dev", "eval", "evaluation"])
def test_names_of_splits(train, test):
    data = from_hugging_face(datasets.DatasetDict({train: TRAIN, test: TEST}), clients=2)
    assert (data.sizes().sum(), len(data.test)) == (20, 8)


def test_splits_that_are_not_used_are_named():
    splits = datasets.DatasetDict({"train": TRAIN, "validation_matched": TEST, "test_matched": SECRET})
    said = r"only the split 'train' is used, not 'validation_matched', 'test_matched', .* test=data\['validation_matched'\]"
    with pytest.warns(LaconicWarning, match=said):
        assert from_hugging_face(splits, clients=2).test is None
    assert len(from_hugging_face(splits, clients=2, test=TEST).test) == 8


def test_parts_of_the_data_are_no_clients():
    assert from_hugging_face(datasets.DatasetDict(ann=TRAIN, tester=TEST)).client_names == ("ann", "tester")
    with pytest.raises(
        DataError, match=r"splits: 'train_a' looks like training data, .* Name the splits train and test, "
    ):
        from_hugging_face(datasets.DatasetDict(train_a=TRAIN, dev_a=TEST))


class Partitions:
    num_partitions = 2

    def load_partition(self, number, split=None):
        return TRAIN.shard(2, number)


class Federated(Partitions):
    """As Flower's FederatedDataset."""

    def __init__(self, **splits):
        self.partitioners, self.splits = {"train": Partitions()}, splits

    def load_split(self, name):
        return self.splits[name]


def test_a_federated_data_set_finds_its_test_as_a_dict_does():
    for splits in ({"validation": TEST}, {"dev": TEST}):
        assert len(from_hugging_face(Federated(**splits)).test) == 8
    with pytest.warns(LaconicWarning, match="all labels of the split 'test' are -1, so the split 'validation' is"):
        assert len(from_hugging_face(Federated(test=SECRET, validation=TEST)).test) == 8
    assert from_hugging_face(Federated()).test is None


def test_files_of_a_folder(tmp_path):
    pytest.importorskip("pandas")
    TRAIN.to_csv(tmp_path / "train.csv")
    TEST.to_csv(tmp_path / "dev.csv")
    data = from_table(tmp_path, "label", clients=2)
    assert (data.sizes().sum(), len(data.test)) == (20, 8)
    TEST.to_csv(tmp_path / "more.csv")
    with pytest.raises(
        DataError, match=r"'train' looks like training data, .* Name the files .* or pass client=COLUMN"
    ):
        from_table(tmp_path, "label")


CLIENTS = ("Val-de-Marne", "dev1", "dev2", "test_subject_3")


def test_names_that_begin_as_those_of_test_data_are_clients(tmp_path):
    splits = datasets.DatasetDict(dict.fromkeys(CLIENTS, TRAIN) | {"Dev": TEST})
    by_split = from_hugging_face(splits)
    assert (by_split.client_names, len(by_split.test)) == (CLIENTS, 8)
    pytest.importorskip("pandas")
    for name, part in splits.items():
        part.to_csv(tmp_path / f"{name}.csv")
    by_file = from_table(tmp_path, "label")
    assert (sorted(by_file.client_names), len(by_file.test)) == (list(CLIENTS), 8)
