"""Data that is valid but probably not what the user meant: one line, once. And pandas objects as data."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from laconic.cli.view import LiveView
from laconic.core.errors import ConfigError, DataError, LaconicWarning, suggestion
from laconic.data import FederatedData, from_arrays, from_datasets, load
from laconic.report.reading import read_run

RANDOM = np.random.default_rng(3)
INPUTS = RANDOM.normal(size=(60, 3))


def warned(make: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    ours = [each for each in caught if issubclass(each.category, LaconicWarning)]
    assert all(each.filename == __file__ for each in ours), "the line of the user's code"
    return [str(each.message) for each in ours]


@pytest.mark.parametrize(
    ("targets", "kind", "expected"),
    [
        (
            1 + np.arange(60) * 5,
            "regression",
            "classification, with 297 classes, most of them with fewer than 5 examples",
        ),
        (np.arange(60) % 2.0, "classification", "all targets are 0.0 or 1.0; they are floating-point, so this is regr"),
        (
            np.arange(60) % 3.0,
            "classification",
            r"one of 3 whole numbers, 0\.\.2; they are floating-point.*otherwise kind=",
        ),
        (np.eye(3)[np.arange(60) % 3], "regression", "look one-hot.* for 3 classes pass .*targets.argmax"),
    ],
)
def test_a_doubtful_kind_is_said_and_silenced_by_kind(targets, kind, expected):
    (line,) = warned(lambda: from_arrays([(INPUTS, targets)]))
    assert re.search(expected, line) and "\n" not in line
    data = from_arrays([(INPUTS, targets)], kind=kind)
    assert warned(lambda: from_arrays([(INPUTS, targets)], kind=kind)) == [] and data.kind == kind


def test_labels_with_gaps_are_renumbered():
    (line,) = warned(lambda: from_arrays([(INPUTS, np.array([0, 5, 1000000] * 20))]))
    assert "needs 1000001 outputs, but only 3 labels occur; renumber" in line
    assert "np.unique(labels, return_inverse=True)" in line


def test_ordinary_data_is_not_doubted():
    many = RANDOM.permutation(np.repeat(np.arange(62), 6))
    ordinary = [np.arange(60) % 2, RANDOM.normal(size=60), np.arange(60.0), np.array(["a", "b", "c"] * 20)]
    assert warned(lambda: from_arrays([(RANDOM.normal(size=(372, 3)), many)])) == []
    for targets in ordinary:
        assert warned(lambda targets=targets: from_arrays([(INPUTS, targets)], test=(INPUTS[:3], targets[:3]))) == []


def test_kind_classification_needs_whole_numbers():
    with pytest.raises(DataError, match=r"needs whole numbers as targets, not 0\.5; for regression leave kind out"):
        from_arrays([(INPUTS, np.full(60, 0.5))], kind="classification")


def test_labels_from_1_are_said_and_a_model_with_too_few_outputs_is_explained():
    clients = [(INPUTS.astype(np.float32), 1 + np.arange(60) % 2)]
    (line,) = warned(lambda: from_arrays(clients))
    assert "the labels are 1..2; class 0 has no examples, and the model needs 3 outputs; subtract 1" in line
    assert warned(lambda: from_arrays(clients, classes=3)) == []
    with pytest.raises(ConfigError, match="model has 2 outputs, but the labels go from 0 to 2"):
        laconic.simulate("fed_avg", nn.Linear(3, 2), from_arrays(clients, classes=3), rounds=1)


def test_labels_of_the_test_that_training_lacks_are_said():
    train, test = np.array(["cat", "dog"] * 30), np.array(["cat", "emu"] * 30)
    (line,) = warned(lambda: from_arrays([(INPUTS, train)], test=(INPUTS, test)))
    assert "the test has examples of class 'emu', but training has none" in line
    given = ["cat", "dog", "emu"]
    assert warned(lambda: from_arrays([(INPUTS, train)], test=(INPUTS, test), labels=given)) == []


def test_unscaled_inputs_are_said():
    wide = INPUTS * [1, 1, 500]
    (line,) = warned(lambda: from_arrays([(wide, np.arange(60) % 2)]))
    assert "the inputs are not scaled: column 2 has mean" in line and "normalize=(means, deviations)" in line
    (line,) = warned(lambda: from_arrays([(INPUTS * [1e-3, 1, 50], np.arange(60) % 2)]))
    assert "column 2" in line, "very different scales"
    scales = (tuple(wide.mean(0)), tuple(wide.std(0)))
    made = from_arrays([(wide, np.arange(60) % 2)], normalize=scales)
    batch, _ = made.batch(0, np.arange(60))
    assert torch.allclose(batch.mean(0), torch.zeros(3), atol=1e-5)
    assert torch.allclose(batch.std(0, correction=0), torch.ones(3), atol=1e-5)


def test_text_labels_for_a_model_that_was_trained_on_numbers_are_refused():
    data = from_arrays([(INPUTS, np.arange(60) % 2)])
    result = laconic.simulate("fed_avg", "logistic", data, rounds=1)
    with pytest.raises(DataError, match="targets are text, but the model was trained on numbers"):
        result.evaluate((INPUTS, np.array(["well", "ill"] * 30)))


def test_the_kind_is_in_the_repr_and_in_the_header():
    class Lazy(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, position):
            return torch.zeros(2), position % 2

    data = from_datasets([Lazy()])
    assert "classification, 2 classes" in repr(data)
    shown = Console(file=io.StringIO(), width=200)
    laconic.simulate("fed_avg", "logistic", data, rounds=1, callbacks=[LiveView(shown)])
    assert "on datasets (own): 1 of 1 client per round, classification, 2 classes, logistic" in shown.file.getvalue()


def frame() -> Any:
    pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    values = {"age": 50 + 10 * INPUTS[:, 0], "area": 700 + 300 * INPUTS[:, 1], "ill": np.arange(60) % 2}
    return pandas.DataFrame(values | {"hospital": [f"H{row % 3}" for row in range(60)]})


@pytest.mark.filterwarnings("ignore::laconic.LaconicWarning")
def test_frames_and_series_are_data():
    table = frame()
    inputs, targets = table[["age", "area"]], table["ill"]
    numbers = laconic.data.from_arrays([(inputs.to_numpy(np.float32), targets.to_numpy())], kind="classification")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not writable.*")
        for given in (targets, table[["ill"]]):
            assert from_arrays([(inputs, given)]).fingerprint() == numbers.fingerprint()
    result = laconic.simulate("fed_avg", "logistic", [(inputs, targets)], rounds=1)
    assert torch.equal(result.predict(inputs), result.predict(inputs.to_numpy(np.float32)))
    assert result.evaluate((inputs, targets)) == result.evaluate(numbers.examples)
    with pytest.raises(DataError, match="column 'hospital' has no numbers, such as 'H0'"):
        from_arrays([(table, targets)])
    with pytest.raises(DataError, match=r"one .inputs, targets. pair; give a list"):
        from_arrays((inputs, targets))


@pytest.mark.filterwarnings("ignore::laconic.LaconicWarning")
def test_a_frame_is_a_table_and_its_scale_is_that_of_all_clients(tmp_path):
    table = frame()
    table.to_csv(tmp_path / "people.csv", index=False)
    name = f"{tmp_path / 'people.csv'}:target=ill,client=hospital"
    (line,) = warned(lambda: load(name))
    assert "people: the inputs are not scaled: column 'area' has mean" in line and "scale=true" in line
    plain, scaled = load(name), load(f"{name},scale=true")
    assert isinstance(plain, FederatedData) and isinstance(scaled, FederatedData)
    assert warned(lambda: load(f"{name},scale=true")) == []
    assert laconic.data.from_table(table, "ill", client="hospital").fingerprint() == plain.fingerprint()
    rows = torch.cat([scaled.batch(client, np.arange(scaled.size(client)))[0] for client in range(3)])
    assert torch.allclose(rows.mean(0), torch.zeros(2), atol=1e-4)
    assert torch.allclose(rows.std(0, correction=0), torch.ones(2), atol=1e-4)
    result = laconic.simulate("fed_avg", "logistic", scaled, rounds=1)
    assert torch.equal(result.predict(scaled.test.inputs), result.predict(scaled.test.inputs.numpy()))
    assert plain.client_names == ("H0", "H1", "H2")


def test_an_index_column_of_a_file_is_said(tmp_path):
    frame()[["age", "ill"]].to_csv(tmp_path / "people.csv")
    (line,) = warned(lambda: load(f"{tmp_path / 'people.csv'}:target=ill", clients=3))
    assert "an input has no name ('Unnamed: 0'); is it the index of a DataFrame?" in line


def test_faults_of_tables(tmp_path):
    table, file = frame(), tmp_path / "people.csv"
    table.to_csv(file, index=False)
    with pytest.raises(DataError, match=r"there is no column 'Ill'; did you mean 'ill'\?$"):
        load(f"{file}:target=Ill,client=hospital")
    table.to_csv(file, index=False, sep=";")
    with pytest.raises(DataError, match=r"people\.csv: the columns are separated by ';'; .*sep=';'"):
        load(f"{file}:target=ill,client=hospital")
    table.loc[7, "age"] = np.nan
    with pytest.raises(DataError, match="column 'age' has no value in row 7; fill it in"):
        laconic.data.from_table(table, "ill", client="hospital")
    table.loc[8:9, "age"] = np.nan
    with pytest.raises(DataError, match="column 'age' has no value in row 7 and 2 more rows; fill it in"):
        laconic.data.from_table(table, "ill", client="hospital")
    for clients in ([table], {"Ulm": table}):
        with pytest.raises(DataError, match=r"a client is a DataFrame; pass .*, or use laconic.data.from_table"):
            laconic.data.from_arrays(clients)


def test_messages_for_wrong_forms_of_data():
    targets = np.arange(60) % 2
    loader = DataLoader(TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(DataError, match=r"pass its data set: loader\.dataset"):
        laconic.data.as_data([loader])
    with pytest.raises(DataError, match=r"pair them: list\(zip\(inputs, targets\)\)"):
        laconic.data.as_data(([INPUTS, INPUTS[:9]], [targets, targets[:9]]))
    with pytest.raises(DataError, match=r"^data, client 1: input 0 contains nan"):
        laconic.data.as_data([(INPUTS, targets), (np.full((2, 3), np.nan), targets[:2])])


def test_a_metric_of_another_kind_says_why():
    data = from_arrays([(INPUTS, np.arange(60) / 7)], test=(INPUTS, np.arange(60) / 7))
    reason = "'f1' needs classification, but the data is regression: the targets are floating-point; pass kind=class"
    with pytest.raises(ConfigError, match=reason):
        laconic.simulate("fed_avg", "logistic", data, rounds=1, metrics="f1")


def test_a_callback_without_a_list_and_an_optimizer_of_torch_are_explained():
    with pytest.raises(ConfigError, match=r"^callbacks: a list is needed, as in callbacks=\[EarlyStopping\(…\)\]$"):
        laconic.simulate("fed_avg", "logistic", "digits", callbacks=laconic.EarlyStopping())  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters())
    with pytest.raises(ConfigError, match=r"^method\.local_optimizer = AdamW object: "):
        laconic.fed_avg(local_optimizer=optimizer)  # type: ignore[arg-type]


def test_a_comparison_warns_once_and_names_its_own_argument(tmp_path):
    clients = [(INPUTS * 500, np.arange(60) % 2)]
    algorithms = ["fed_avg", "fed_prox"]
    assert len(warned(lambda: laconic.compare(algorithms, "logistic", clients, rounds=1, local_lr=1e-9))) == 1
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"resume=True"):
        laconic.simulate("fed_avg", "logistic", "digits", rounds=1, out=tmp_path)


def test_the_run_directory_has_the_names_of_clients(tmp_path):
    data = laconic.data.from_table(frame(), "ill", client="hospital", scale=True)
    laconic.simulate("fed_avg", "logistic", data, rounds=1, client_eval=0.2, out=tmp_path / "run")
    shown = read_run(tmp_path / "run")["client_metrics"]
    assert shown["clients"] == ["H0", "H1", "H2"] and shown["values"].keys() == {"client_loss", "client_accuracy"}
    header, *rows = (tmp_path / "run" / "client_metrics.csv").read_text().splitlines()
    assert header == "client,name,client_loss,client_accuracy"
    assert [row.split(",")[:2] for row in rows] == [["0", "H0"], ["1", "H1"], ["2", "H2"]]


def test_columns_of_a_frame_are_found_by_name():
    pd = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    wide = pd.DataFrame({"a": INPUTS[:, 0], "b": 3 * INPUTS[:, 1], "ill": np.arange(60) % 2})
    swapped = wide[["ill", "b", "a"]]
    for data in (
        laconic.data.from_table(wide, "ill", clients=2),
        from_arrays([(wide[["a", "b"]], wide["ill"])], test=(wide[["a", "b"]][:9], wide["ill"][:9])),
    ):
        assert data.columns == ("a", "b")
        result = laconic.simulate("fed_avg", "logistic", data, rounds=1)
        expected = result.predict(wide[["a", "b"]].to_numpy())
        assert torch.equal(result.predict(swapped), expected), "columns in another order, and more of them"
        values = wide[["a", "b"]].to_numpy(), wide["ill"]
        assert result.evaluate((swapped, wide["ill"])) == result.evaluate(values)
        with pytest.raises(DataError, match=r"no column 'b', .*did you mean 'B'"):
            result.predict(wide.rename(columns={"b": "B"}))
    with pytest.raises(DataError, match="client 1 has the columns b, a, but client 0 has a, b; select"):
        from_arrays([(wide[["a", "b"]], wide["ill"]), (wide[["b", "a"]], wide["ill"])])


def test_a_name_in_another_case_is_suggested():
    assert suggestion("AdamW", ["adam", "adamw"]) == "did you mean 'adamw'?"
