"""Mistakes of newcomers that used to give a wrong result, or an error that did not say what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import laconic
from laconic.core.errors import ConfigError, DataError
from laconic.data import from_arrays
from tests.practice.things import arrays, net

ROUND = {"rounds": 1, "threads": 1}


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy, F.mse_loss])
def test_a_loss_of_outputs_and_targets_says_what_to_write(loss):
    with pytest.raises(ConfigError, match=r"loss = \w+.*: a function of module and batch .* lambda module, batch: F\."):
        laconic.Task(net(), loss)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"loss": F.cross_entropy}, r"loss is part of the model; pass laconic.Task\(module, loss\)"),
        ({"partition": "iid"}, r"laconic\.data\.divide\(data, clients=10, partition='iid'\)"),
        ({"clients": 5}, r"laconic\.data\.divide\(data, clients=10, partition='iid'\)"),
        ({"test": None}, r"test: the data has .*from_arrays\(clients, test=\(inputs, targets\)\)$"),
        ({"skip_empty": True}, r"laconic.data.from_arrays\(clients, skip_empty=True\)$"),
        ({"normalize": None}, r"it belongs to the data, as in laconic.data.from_arrays\(clients, normalize=…\)$"),
        ({"callback": None}, r"callback: pass a list, as in callbacks=\["),
        ({"betas": (0.9, 0.9)}, "local_optimizer='adam:beta1=0.9,beta2=0.99'"),
        ({"clients": 10}, r"laconic.data.load\('digits', clients=10\)"),
        ({"local_optimizer": "adam:0.001"}, "the rate is local_lr"),
        ({"dtype": "bfloat16"}, r"dtype: it is a part of numerics, as in numerics=\{'dtype': …\}"),
    ],
)
def test_settings_that_belong_elsewhere(settings, said):
    with pytest.raises(ConfigError, match=said):
        laconic.simulate("fed_avg", net, arrays(), **ROUND, **settings)


@pytest.mark.parametrize("model", [nn.Linear(4, 3), nn.Linear, laconic.Task(net(), lambda module, batch: None)])
def test_a_model_in_place_of_the_algorithm(model):
    with pytest.raises(ConfigError, match=r"is a model; write simulate\('fed_avg', model, data\), in this order"):
        laconic.simulate(model, "fed_avg", arrays(), **ROUND)


def test_other_data_for_a_result_is_a_pair():
    result = laconic.simulate("fed_avg", net, arrays(), **ROUND)
    for clients in (arrays(), arrays()[:2], arrays()[:1]):
        with pytest.raises(DataError, match=rf"a list of {len(clients)} clients; pass a pair \(inputs, targets\)$"):
            result.evaluate(clients)
    with pytest.raises(DataError, match=r"an array without targets; pass a pair \(inputs, targets\)$"):
        result.evaluate(arrays()[0][0])
    assert result.predict(arrays()[0][0][:0]).shape == (0, result.predict(arrays()[0][0]).shape[1])


def test_a_result_reads_a_table_as_training_does():
    pd = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    inputs, targets = arrays()[0]
    frame = pd.DataFrame(inputs, columns=[*"abcd"]).assign(ill=targets > 0)
    data = laconic.data.from_table(frame, "ill", clients=2, test=0.5)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUND)
    expected = result.evaluate((frame[[*"abcd"]], frame["ill"].astype(int)))
    assert result.evaluate(frame[["ill", *"dcba"]]) == expected
    with pytest.raises(DataError, match=r"without the column 'ill'; pass .*: \(frame, frame\[COLUMN\]\)$"):
        result.evaluate(frame[[*"abcd"]])
    twice = pd.concat([frame, frame[["a"]]], axis=1)
    with pytest.raises(DataError, match="table: several columns have the name 'a'; rename all but one of them"):
        laconic.data.from_table(twice, "ill", clients=2)


def test_named_clients_of_arrays():
    first, second, _ = arrays()
    data = from_arrays({"north": first, "none": (first[0][:0], first[1][:0]), "south": second}, skip_empty=True)
    assert data.client_names == ("north", "south")
    assert data.fingerprint() == from_arrays([first, second]).fingerprint()


def test_arrays_in_reverse_order():
    inputs, targets = arrays()[0]
    data = from_arrays([(inputs[::-1], targets[::-1])])
    assert torch.equal(data.examples.inputs, torch.tensor(inputs).flip(0))


def test_negative_labels_say_how_to_number_them():
    with pytest.raises(DataError, match=r"label -1 at index 0 is negative; labels are numbered from 0: .*np\.unique"):
        from_arrays([(np.zeros((3, 4)), np.array([-1, 0, 1]))])


def test_a_sample_of_three_entries_says_which_is_the_target():
    samples = [(torch.ones(4), 0, 7), (torch.zeros(4), 1, 8), (torch.ones(4), 1, 8)]
    with pytest.raises(
        ConfigError, match="of the 3 entries of a sample, the last is the target and the others are inp"
    ):
        laconic.simulate("fed_avg", nn.Linear(4, 9), [samples], **ROUND)


def test_pixels_without_normalize():
    with pytest.raises(ConfigError, match=r"the inputs are integers: for pixels pass normalize=\(means, deviations\)"):
        laconic.simulate("fed_avg", "logistic", from_arrays([(pixels(6), np.arange(6) % 2)]), **ROUND)


def test_sequences_of_different_lengths_say_how_to_pad_them():
    datasets = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    ragged = datasets.Dataset.from_dict({"input_ids": [[1, 2], [1, 2, 3]], "label": [0, 1]})
    with pytest.raises(DataError, match=r"column 'input_ids' has sequences of .* tokenizer\(…, padding='max_length'"):
        laconic.data.from_hugging_face(ragged, clients=1)


def test_metrics_without_test_examples_are_refused():
    metrics = {"ones": lambda outputs, targets: outputs.argmax(-1).float().mean()}
    with pytest.raises(ConfigError, match=r"metrics: there are no test examples .* client_eval=0.2"):
        laconic.simulate("fed_avg", net, arrays(), metrics=metrics, **ROUND)
    last = laconic.simulate("fed_avg", net, arrays(), metrics=metrics, client_eval=0.25, **ROUND).history[-1]
    assert "client_ones" in last


def test_a_state_dict_is_no_model_and_a_pt_file_is_no_safetensors_file(tmp_path):
    with pytest.raises(ConfigError, match=r"not OrderedDict; load a state dict into a module first"):
        laconic.simulate("fed_avg", net().state_dict(), arrays(), **ROUND)
    with pytest.raises(ConfigError, match=r"safetensors file; name it so, or use torch.save"):
        laconic.simulate("fed_avg", net, arrays(), **ROUND).save(tmp_path / "model.pt")


def test_several_labels_per_example_say_what_to_do():
    labels = np.array([[1, 0, 1], [0, 0, 1]])
    with pytest.raises(
        DataError, match=r"shape \(2, 3\); .*for several labels .* floats, .*binary_cross_entropy_with_logits"
    ):
        from_arrays([(np.zeros((2, 4)), labels)])


@pytest.mark.parametrize(
    ("outputs", "targets", "said"),
    [
        (3, np.array([0.0, 1.0, 2.0]), "so this is regression; for classes pass integers, or kind='classification'"),
        (3, np.array([[0], [1], [2]]), r"shape \(3, 1\); pass one dimension: targets.ravel"),
        (1, np.array([0, 1, 1]), "labels go from 0 to 1; one output for two classes needs a Task"),
        (1, np.ones((3, 2), np.float32) / 3, "for 2 numbers per example the model needs as many outputs"),
    ],
)
def test_targets_that_do_not_fit_the_model_say_what_to_do(outputs, targets, said):
    with pytest.raises((ConfigError, DataError), match=said):
        laconic.simulate("fed_avg", nn.Linear(4, outputs), [(np.ones((3, 4), np.float32), targets)], **ROUND)


def test_clients_may_have_names_and_a_dict_is_evaluated_on_its_test():
    first, second, third = arrays()
    given = {"clients": {"north": first, "south": second}, "test": third}
    data = laconic.data.as_data(given)
    assert data.client_names == ("north", "south")
    result = laconic.simulate("fed_avg", net, given, **ROUND)
    assert result.evaluate(given) == result.evaluate(third) == result.metrics
    empty = (first[0][:0], first[1][:0])
    with_empty = {"clients": {"none": empty, "south": second}}
    assert laconic.data.as_data(with_empty, skip_empty=True).client_names == ("south",)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [(["good film", "bad film"], "text; convert it to numbers or tokens"), ("sparse", r"pass inputs.toarray\(\)")],
)
def test_text_and_sparse_inputs_say_what_to_do(inputs, said):
    if inputs == "sparse":
        sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
        inputs = sparse.csr_matrix(np.eye(2))
    with pytest.raises(DataError, match=said):
        from_arrays([(inputs, np.array([0, 1]))])


@pytest.mark.parametrize("form", ["pair", "examples", "frame", "data set", "loader", "bunch"])
def test_examples_without_clients_say_how_to_divide_them(form):
    inputs, targets = arrays()[0]
    tensors = TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
    frame = pytest.importorskip("pandas", reason="the extra `tables` is not installed").DataFrame(inputs)
    given, said = {
        "pair": (
            (inputs, targets),
            r"laconic.data.divide\(laconic.data.from_arrays\(\[\(inputs, targets\)\]\), clients=10",
        ),
        "examples": ({"examples": (inputs, targets)}, r"laconic.data.divide\("),
        "frame": (frame, r"pass laconic.data.from_table\(frame, TARGET, client=COLUMN\)"),
        "data set": (tensors, "a list with a data set per client, as torch.utils.data.random_split makes it"),
        "loader": (DataLoader(tensors), "pass its data set: loader.dataset"),
        "bunch": ({"data": inputs, "target": targets}, r"\(bunch.data, bunch.target\)"),
    }[form]
    with pytest.raises(DataError, match=said):
        laconic.simulate("fed_avg", net, given, **ROUND)
    divided = laconic.data.divide(laconic.data.from_arrays([(inputs, targets)]), clients=3, partition="iid")
    assert len(divided) == 3


def test_mean_absolute_error_by_name():
    pytest.importorskip("torchmetrics", reason="the extra `metrics` is not installed")
    pairs = [(inputs, inputs.sum(1)) for inputs, _ in arrays()]
    data = from_arrays(pairs, test=pairs[0])
    metrics = laconic.simulate("fed_avg", nn.Linear(4, 1), data, metrics="mae", **ROUND).metrics
    assert metrics["mae"] == pytest.approx(metrics["absolute_error"])


def pixels(count: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (count, 1, 4, 4)).astype(np.uint8)


def test_pixels_and_floats_are_not_mixed_up():
    half = ((0.5,), (0.5,))
    classes = np.arange(6) % 2
    data = from_arrays([(pixels(6), classes)], normalize=half)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUND)
    expected = result.predict(pixels(6))
    assert torch.equal(result.predict(pixels(6).astype(np.int64)), expected)
    for wrong in (lambda: result.predict(pixels(6) / 255), lambda: result.evaluate((pixels(6) / 255, classes))):
        with pytest.raises(DataError, match="floating-point, but those of training are integers, such as pixels"):
            wrong()
    with pytest.raises(DataError, match=r"\(test\): the inputs are floating-point"):
        from_arrays([(pixels(6), classes)], test=(pixels(6) / 255, classes))
    with pytest.raises(DataError, match=r"client 1 has inputs of torch.float64, client 0 of torch.uint8; pass pixels"):
        from_arrays([(pixels(6), classes), (pixels(6) / 255, classes)])


def test_images_of_floats_are_normalized_without_a_division_by_255():
    floats = from_arrays([(pixels(6) / 255, np.arange(6) % 2)], normalize=((0.5,), (0.25,)))
    integers = from_arrays([(pixels(6), np.arange(6) % 2)], normalize=((0.5,), (0.25,)))
    one, other = (data.batch(0, np.arange(6))[0] for data in (floats, integers))
    assert torch.allclose(one, other, atol=1e-5) and one.abs().max() > 1


def test_whole_numbers_for_a_model_of_a_normalized_table():
    rows = np.random.default_rng(2).integers(0, 100, (20, 2))
    scales = ((50.0, 50.0), (30.0, 30.0))
    data = from_arrays([(rows.astype(np.float32), np.arange(20) % 2)], test=(rows, np.arange(20) % 2), normalize=scales)
    result = laconic.simulate("fed_avg", "logistic", data, **ROUND)
    expected = result.predict(rows.astype(np.float32))
    assert torch.equal(result.predict(rows), expected)
    assert result.evaluate((rows, np.arange(20) % 2)) == result.metrics


def test_tokens_of_16_bits_without_a_number_of_classes():
    tokens = np.arange(20).reshape(4, 5).astype("uint16") % 9
    data = from_arrays([(tokens[:, :-1], tokens[:, 1:])] * 2, kind="next_token")
    assert data.classes == 9
    given = from_arrays([(tokens[:, :-1].astype("int64"), tokens[:, 1:].astype("int64"))] * 2, kind="next_token")
    results = [laconic.simulate("fed_avg", "gpt:1x8", each, **ROUND).model_sha256 for each in (data, given)]
    assert results[0] == results[1]


@pytest.mark.parametrize("wrap", [lambda metric: {"f": metric}, lambda metric: metric])
def test_a_class_of_metrics_says_what_to_write(wrap):
    classification = pytest.importorskip("torchmetrics.classification")
    with pytest.raises(ConfigError, match=r"metrics: MulticlassF1Score is a class; pass MulticlassF1Score\(…\)"):
        laconic.simulate("fed_avg", net, arrays(), metrics=wrap(classification.MulticlassF1Score), **ROUND)
