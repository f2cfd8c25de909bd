"""Columns of data sets: which are inputs if nobody names them, and what is said of the others."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import laconic
from laconic.core.errors import DataError, LaconicWarning
from laconic.data import as_data, from_hugging_face

datasets = pytest.importorskip("datasets")

ROWS = 12
TABLE = {"x": np.arange(ROWS) / 10, "y": np.ones(ROWS), "label": np.arange(ROWS) % 2, "stars": np.arange(ROWS) % 3}


def table(**more):
    return datasets.Dataset.from_dict(TABLE | more)


def test_another_column_with_the_name_of_a_target_is_no_input():
    said = r"does not get 'label', which may give the target away; .*: inputs=\['x', '…', 'label'\]"
    with pytest.warns(LaconicWarning, match=said):
        assert from_hugging_face(table(), target="stars", clients=2).columns == ("x", "y")
    with pytest.warns(LaconicWarning, match="does not get 'labels'"):
        assert from_hugging_face(table().rename_column("stars", "labels"), clients=2).columns == ("x", "y")
    said = "does not get 'label' and 'labels', which may give the target away; to pass them, "
    with pytest.warns(LaconicWarning, match=said):
        from_hugging_face(table(labels=np.zeros(ROWS)), target="stars", clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = from_hugging_face(table(), inputs=["x", "label"], target="stars", clients=2)
    assert named.columns == ("x", "label")


@pytest.mark.parametrize("named", [False, True])
def test_a_column_of_clients_is_no_input_of_data_sets_by_client(named):
    parts = [table(client=[number] * ROWS).remove_columns("stars") for number in range(2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the data was divided on purpose
        data = as_data(datasets.DatasetDict(ann=parts[0], bob=parts[1]) if named else parts)
    assert (data.columns, len(data)) == (("x", "y"), 2)


def test_columns_of_numbers_beside_tokens_are_named():
    tokens = {"input_ids": [[1, 2, 3]] * ROWS, "text": ["words"] * ROWS, "idx": range(ROWS)}
    more = {"position_ids": [[2, 1, 0]] * ROWS}
    labels = {"label": np.arange(ROWS) % 2}
    with pytest.warns(LaconicWarning, match=r"does not get 'position_ids'; to pass it, .* inputs=\['input_ids', "):
        from_hugging_face(datasets.Dataset.from_dict(tokens | more | labels), clients=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_hugging_face(datasets.Dataset.from_dict(tokens | labels), clients=2)


def test_columns_that_with_format_selects():
    data = from_hugging_face(table().with_format("torch", columns=["x", "label"]), clients=2)
    assert (data.columns, data.classes) == (("x",), 2)
    also = table().remove_columns("stars").with_format("torch", columns=["x"], output_all_columns=True)
    assert from_hugging_face(also, clients=2).columns == ("x", "y")


def images():
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    pixels = [image.fromarray(draw.integers(0, 255, (8, 8)).astype("uint8")) for _ in range(ROWS)]
    rows = {"image": pixels, "label": [0, 1] * (ROWS // 2)}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def test_a_list_of_data_sets_has_a_client_each():
    whole = images()
    parts = [whole.shard(2, number) for number in range(2)]
    data = from_hugging_face(parts, test=whole)
    assert (len(data), data.normalize) == (2, ((0.5,), (0.5,)))
    for given in ({"clients": parts, "test": whole}, {"clients": dict(zip("ab", parts, strict=True)), "test": whole}):
        result = laconic.simulate("fed_avg", "logistic", given, rounds=1, threads=1)
        assert result.metrics == laconic.simulate("fed_avg", "logistic", data, rounds=1, threads=1).metrics
    texts = [part.remove_columns("label").add_column("label", ["cat", "dog"] * 3) for part in parts]
    labeled = as_data({"clients": texts, "labels": ["dog", "cat"]})
    assert (labeled.normalize, labeled.labels) == (data.normalize, ("dog", "cat"))
    assert len(as_data([table(client=range(ROWS)).remove_columns("stars")])) == 1


def test_iterable_splits_say_why_they_are_refused():
    splits = datasets.IterableDatasetDict({"train": table().to_iterable_dataset()})
    with pytest.raises(DataError, match="split 'train': IterableDataset has no length and numbered samples"):
        as_data(splits)
