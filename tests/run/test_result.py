"""What people do with a result: predict, evaluate, save, and look at it as a table."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import laconic
from laconic.core.errors import ConfigError, DataError

SETTINGS = {"rounds": 2, "eval_every": 1, "threads": 1}


def images(count: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (count, 1, 3, 3), generator=generator, dtype=torch.uint8)
    return pixels, torch.randint(0, 3, (count,), generator=generator)


def net() -> nn.Module:
    layers = {"flat": nn.Flatten(), "first": nn.Linear(9, 4), "norm": nn.BatchNorm1d(4), "last": nn.Linear(4, 3)}
    return nn.Sequential(OrderedDict(layers))


@pytest.fixture(scope="module")
def result() -> laconic.Result:
    clients = [images(seed=seed) for seed in range(3)]
    data = laconic.data.from_arrays(clients, test=images(30, 9), classes=3, normalize=((0.5,), (0.25,)))
    return laconic.simulate("fed_avg", net, data, **SETTINGS)


def test_predictions_are_the_models_outputs_on_inputs_as_in_training(result: laconic.Result, monkeypatch) -> None:
    monkeypatch.setattr("laconic.run.evaluate.BATCH", 7)
    pixels, targets = images(30, 9)
    outputs = result.predict(pixels)
    with torch.no_grad():
        expected = result.model((pixels / 255 - 0.5) / 0.25)
    torch.testing.assert_close(outputs, expected)
    assert torch.equal(outputs, result.predict(pixels.numpy())) and not outputs.requires_grad
    accuracy = (outputs.argmax(-1) == targets).float().mean()
    assert result.accuracy == pytest.approx(float(accuracy))


def test_an_evaluation_takes_arrays_data_sets_and_federated_data(result: laconic.Result) -> None:
    pair = images(30, 9)
    data = laconic.data.from_arrays([pair], test=pair, normalize=((0.5,), (0.25,)))
    for examples in (pair, TensorDataset(*pair), [*zip(*pair, strict=True)], data, data.test):
        assert result.evaluate(examples) == pytest.approx(result.metrics)
    other = result.evaluate(images(30, 10))
    assert set(other) == {"loss", "accuracy"} and other["loss"] != result.loss


def test_what_cannot_be_predicted_or_evaluated_is_said_in_one_line(result: laconic.Result) -> None:
    pixels, targets = images()
    with pytest.raises(DataError, match=r"shape \(1, 3, 3\), but the model was trained on \(examples, 1, 3, 3\)"):
        result.predict(pixels[0])
    with pytest.raises(DataError, match="an array is allowed, not a dict with left"):
        result.predict({"left": pixels})
    with pytest.raises(DataError, match="not an array of numbers"):
        result.predict("pixels")
    with pytest.raises(DataError, match=r"^the data to evaluate: label \d at index 0 is out of range"):
        result.evaluate((pixels, targets + 7))
    with pytest.raises(DataError, match=r"^the data to evaluate has 12 inputs but 3 targets"):
        result.evaluate((pixels, targets[:3]))
    with pytest.raises(DataError, match="no test examples"):
        result.evaluate(laconic.data.from_arrays([(pixels, targets)]))


def test_text_labels_keep_their_numbers() -> None:
    inputs, labels = np.eye(3, dtype=np.float32).repeat(4, 0), np.array(["ant", "bee", "cat"]).repeat(4)
    result = laconic.simulate("fed_avg", nn.Linear(3, 3), [(inputs, labels)], local_lr=1.0, rounds=5)
    assert result.evaluate((inputs[8:], labels[8:]))["accuracy"] == 1.0
    assert result.predict(inputs[8:]).argmax(-1).tolist() == [2] * 4


def test_named_inputs_are_predicted_by_name_in_any_order() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, left, right):
            return self.layer(torch.cat([left, right], 1))

    generator = np.random.default_rng(0)
    inputs = {name: generator.normal(size=(8, size)).astype("f4") for name, size in (("left", 1), ("right", 2))}
    result = laconic.simulate("fed_avg", Two, [(inputs, np.arange(8) % 2)], rounds=1)
    backwards = {name: inputs[name] for name in ("right", "left")}
    assert torch.equal(result.predict(inputs), result.predict(backwards))
    assert result.evaluate((backwards, np.arange(8) % 2)) == result.evaluate((inputs, np.arange(8) % 2))
    for wrong in (inputs["left"], {"left": inputs["left"]}):
        with pytest.raises(DataError, match="left and right"):
            result.predict(wrong)


def test_a_saved_model_is_loaded_by_anybody(result: laconic.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "model.safetensors")
    module = net()
    module.load_state_dict(laconic.load_model(tmp_path / "model.safetensors"))
    assert load_file(tmp_path / "model.safetensors").keys() == module.state_dict().keys()
    inputs = torch.randn(5, 1, 3, 3)
    assert torch.equal(module.eval()(inputs), result.model(inputs))
    with pytest.raises(DataError, match="No such file"):
        result.save(tmp_path / "nowhere" / "model.safetensors")


def test_weights_that_layers_share_are_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    tokens = torch.arange(12).view(4, 3) % 5
    data = laconic.data.from_arrays([(tokens, (tokens + 1) % 5)], kind="next_token", classes=5)
    result = laconic.simulate("fed_avg", Tied, data, **SETTINGS)
    result.save(tmp_path / "tied.safetensors")
    module = Tied()
    module.load_state_dict(load_file(tmp_path / "tied.safetensors"))
    assert torch.equal(module(tokens), result.model(tokens))
    assert result.predict(tokens[:, :2]).shape == (4, 2, 5), "sequences may be shorter"


def test_the_history_is_a_data_frame(result: laconic.Result, monkeypatch) -> None:
    pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    frame = result.to_pandas()
    assert frame.index.tolist() == [1, 2] and frame.index.name == "round"
    assert frame["accuracy"].tolist() == [record["accuracy"] for record in result.history]
    assert frame["bytes_up"].iloc[-1] == result.ledger.bytes("up")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r"to_pandas\(\) needs pandas: in the folder of the clone, pip"):
        result.to_pandas()
