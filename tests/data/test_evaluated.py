"""`Result.evaluate` reads further data as the training data was read: the same columns, the same normalization."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import laconic
from laconic.data import Examples, from_arrays, from_datasets, from_hugging_face, from_table

datasets = pytest.importorskip("datasets")

ROUNDS = {"rounds": 3, "threads": 1, "local_lr": 0.3}


def table(seed: int = 0, rows: int = 60) -> dict[str, np.ndarray]:
    """Two columns of numbers, and two that could be the target: "stars" depends on y, "label" on x."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(2, rows)).astype("float32")
    return {"x": x, "y": y, "label": (x > 0).astype(int), "stars": (y > 0.5).astype(int) + (y > -0.5)}


def test_the_target_and_inputs_are_those_of_training():
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict(table()), test=datasets.Dataset.from_dict(table(1)))
    data = from_hugging_face(splits, inputs=["x", "y"], target="stars", clients=3)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUNDS)
    assert result.evaluate(splits["test"]) == result.metrics
    assert result.evaluate(splits["test"].select_columns(["y", "stars", "x"])) == result.metrics
    pair = (np.stack([table(1)["x"], table(1)["y"]], 1), table(1)["stars"])
    assert result.evaluate(pair) == result.metrics


def test_a_target_whose_name_is_not_a_default():
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict(table()), test=datasets.Dataset.from_dict(table(1)))
    splits = splits.rename_columns({"label": "fine_label", "stars": "coarse_label"})
    data = from_hugging_face(splits, inputs=["x", "y"], target="fine_label", clients=3)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUNDS)
    assert result.evaluate(splits["test"]) == result.metrics


def test_a_default_target_that_another_data_set_spells_otherwise():
    train, test = (datasets.Dataset.from_dict(table(seed)).remove_columns("stars") for seed in (0, 1))
    data = from_hugging_face(datasets.DatasetDict(train=train, test=test), clients=3)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUNDS)
    assert result.evaluate(test.rename_column("label", "labels")) == result.metrics


class Samples(Dataset):
    """Samples that are dicts, computed when they are read."""

    def __init__(self, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.x = torch.randn(12, 4, generator=draw)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, object]:
        return {"x": self.x[index], "y": int(self.x[index, 0] > 0), "index": index}


@pytest.mark.parametrize("in_memory", [False, True])
def test_samples_that_are_dicts(in_memory):
    options = {"target": "y", "inputs": "x", "in_memory": in_memory}
    data = from_datasets([Samples(0), Samples(1)], Samples(2), **options)
    result = laconic.simulate("fed_avg", nn.Linear(4, 2), data, **ROUNDS)
    assert result.evaluate(Samples(2)) == result.metrics


def test_images_with_a_column_of_clients():
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    features = {"image": datasets.Image(), "label": datasets.Value("int64"), "client": datasets.Value("int64")}
    images = [image.fromarray(draw.integers(0, 255, (8, 8)).astype("uint8")) for _ in range(20)]
    columns = {"image": images, "label": [0, 1] * 10, "client": [row // 10 for row in range(20)]}
    dataset = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    result = laconic.simulate("fed_avg", "logistic", datasets.DatasetDict(train=dataset, test=dataset), **ROUNDS)
    assert result.evaluate(dataset) == result.metrics


def frame(shift: float, seed: int):
    """Columns of different scales."""
    pandas = pytest.importorskip("pandas")
    draw = np.random.default_rng(seed)
    age, pressure = draw.normal(50 + shift, 10, 200), draw.normal(130, 15, 200)
    return pandas.DataFrame({"age": age, "pressure": pressure, "ill": (age / 10 + pressure / 15 > 13.7).astype(int)})


def test_a_model_of_a_table_is_evaluated_on_a_data_set():
    result = laconic.simulate("fed_avg", "logistic", from_table(frame(0, 0), "ill", scale=True, clients=5), **ROUNDS)
    other = frame(8, 1)
    pair = (other[["age", "pressure"]], other["ill"].to_numpy())
    assert result.evaluate(datasets.Dataset.from_pandas(other)) == result.evaluate(pair)


@pytest.mark.filterwarnings("ignore:table. the inputs are not scaled")
@pytest.mark.parametrize("scale", [True, False])
def test_other_data_is_normalized_as_in_training(scale):
    result = laconic.simulate("fed_avg", "logistic", from_table(frame(0, 0), "ill", scale=True, clients=5), **ROUNDS)
    other = frame(8, 1)
    data = from_table(other, "ill", test=0.5, scale=scale, clients=1)
    truth = result.evaluate((data.test.inputs, data.test.targets))
    assert result.evaluate(data) == truth
    assert result.evaluate(data.test) == truth


def test_pixels_of_other_data_are_normalized_as_in_training():
    draw = np.random.default_rng(0)
    pair = (draw.integers(0, 256, (20, 1, 8, 8)).astype("uint8"), np.arange(20) % 2)
    data = from_arrays([pair], test=pair, normalize=((0.5,), (0.5,)))
    result = laconic.simulate("fed_avg", "logistic", data, **ROUNDS)
    assert result.evaluate(from_arrays([pair], test=pair, normalize=((0.1,), (0.2,)))) == result.metrics


class Own:
    """A `ClientData` that normalizes its batches itself."""

    kind, classes, input_shape = "classification", 2, (2,)

    def __init__(self, test: bool) -> None:
        self.examples_of_client = Examples(torch.arange(16.0).view(8, 2), torch.arange(8) % 2, ((3.0, 3.0), (2.0, 2.0)))
        self.test = self.examples_of_client if test else None

    def __len__(self) -> int:
        return 1

    def size(self, client: int) -> int:
        return 8

    def batch(self, client: int, positions: np.ndarray, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        return self.examples_of_client.batch(torch.from_numpy(positions), dtype)


def test_data_that_does_not_tell_its_normalization_keeps_it():
    with_test, without = (laconic.simulate("fed_avg", "logistic", Own(test), **ROUNDS) for test in (True, False))
    examples = Own(True).test
    assert with_test.evaluate(examples) == with_test.metrics
    done = Examples((examples.inputs - 3) / 2, examples.targets)
    assert without.evaluate(examples) == pytest.approx(without.evaluate(done))
