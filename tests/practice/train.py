"""What newcomers measure and train."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import laconic
from tests.practice.things import RIGHT, TRAIN, arrays, loss, net, sentences, thing

# Metrics and weights


@thing(
    RIGHT,
    "F1, AUROC and other metrics that are not means over batches",
    'laconic.simulate("fed_avg", laconic.Task(net, loss, metrics={"f1": MulticlassF1Score(3)}), data, rounds=2)',
)
def _f1(do: Callable[..., Any], folder: Path) -> None:
    f1_score = pytest.importorskip("sklearn.metrics").f1_score
    score = pytest.importorskip("torchmetrics.classification").MulticlassF1Score
    inputs, targets = arrays(1, 1200)[0]
    order = np.argsort(targets)  # sorted by label: every batch of the evaluation has one or two classes
    test = (inputs[order], targets[order])
    data = laconic.data.from_arrays(arrays(), test=test)
    result = do(net=net(), loss=loss, data=data, MulticlassF1Score=score)
    predicted = result.predict(test[0]).argmax(-1)
    assert result.metrics["f1"] == pytest.approx(f1_score(test[1], predicted, average="macro"), abs=1e-6)


@thing(
    RIGHT,
    "The weighting of clients in the mean",
    'laconic.simulate("fed_avg", net, clients, rounds=2, weighting="uniform")',
)
def _weighting(do: Callable[..., Any], folder: Path) -> None:
    clients = [arrays()[0], arrays(1, 40)[0]]
    by_size = laconic.simulate("fed_avg", net, clients, rounds=2)
    equal = do(net=net, clients=clients)
    assert (by_size.settings.weighting, equal.settings.weighting) == ("size", "uniform")
    assert by_size.model_sha256 != equal.model_sha256


@thing(
    RIGHT,
    "A run that collapses prints a warning",
    'laconic.simulate("fed_avg", "mlp:16", "digits", rounds=14, local_lr=0.1, local_schedule="step:10:300")',
)
def _collapse(do: Callable[..., Any], folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"collapsed in round 1\d: "):
        result = do()
    assert sum("collapsed" in record for record in result.history) == 1


@thing(
    RIGHT,
    "The title of a recipe shows that a part was replaced",
    "laconic.scaffold(method=laconic.OwnTraining(train)).title",
)
def _renamed(do: Callable[..., Any], folder: Path) -> None:
    assert do(train=lambda module, dataset: module) == "scaffold (method own_training)"


@thing(
    RIGHT,
    "Padding and other targets of -100 do not count in the loss",
    'laconic.data.from_arrays([(tokens, targets)], kind="next_token", classes=5)',
)
def _ignored(do: Callable[..., Any], folder: Path) -> None:
    tokens = np.arange(24).reshape(4, 6) % 5
    data = do(tokens=tokens, targets=np.full_like(tokens, -100))
    table = nn.Embedding(5, 5)
    result = laconic.simulate("fed_avg", table, data, rounds=1)
    assert torch.equal(result.model.weight, table.weight), "nothing counts, so nothing is learned, and nothing is NaN"


def tiny_bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the extra `lora` is not installed")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=2, **sizes)
    return transformers.BertForSequenceClassification(config)


@thing(
    RIGHT,
    "Metrics on each client's own held-out examples",
    'laconic.simulate("fed_avg", net, clients, rounds=2, client_eval=0.25, personalize=2)',
)
def _by_client(do: Callable[..., Any], folder: Path) -> None:
    metrics = do(net=net, clients=arrays()).metrics
    assert metrics["worst_client_accuracy"] <= metrics["client_accuracy"] <= 1 and "personal_accuracy" in metrics


# Training


@thing(
    TRAIN,
    "Local optimizers: `name` is sgd, momentum, nesterov, adam or adamw",
    'laconic.simulate("fed_avg", net, clients, rounds=4, local_lr=0.05, local_optimizer=name)',
)
def _optimizers(do: Callable[..., Any], folder: Path) -> None:
    names = ["sgd", "momentum", "nesterov", "adam", "adamw:weight_decay=0.1"]
    results = [do(net=net, clients=arrays(), name=name) for name in names]
    assert len({result.model_sha256 for result in results}) == len(names)
    assert all(result.loss < result.history[0]["training_loss"] for result in results)


@thing(
    TRAIN,
    "Random augmentation in a Dataset",
    'laconic.simulate("fed_avg", net, [Noisy(*pair) for pair in pairs], rounds=2)',
)
def _augmentation(do: Callable[..., Any], folder: Path) -> None:
    seen: set[float] = set()

    class Noisy(Dataset):
        def __init__(self, inputs: np.ndarray, targets: np.ndarray) -> None:
            self.inputs, self.targets = inputs, targets

        def __len__(self) -> int:
            return len(self.inputs)

        def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
            value = torch.from_numpy(self.inputs[position]) + 0.1 * torch.randn(4)
            seen.add(float(value[0]))
            return value, int(self.targets[position])

    first, second = (do(net=net, Noisy=Noisy, pairs=arrays()) for _ in range(2))
    assert first.model_sha256 == second.model_sha256 and len(seen) > 3 * 36


@thing(TRAIN, "CIFAR's random crop and flip", 'laconic.data.augment(images, "crop:4+flip")')
def _crop(do: Callable[..., Any], folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32)).astype("uint8")
    images = laconic.data.from_arrays([(pixels, np.arange(8) % 2)])
    positions = np.arange(8)
    batches = [do(images=images).augmented(0, positions, torch.float32, seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1]) and not torch.equal(batches[0], batches[2])


@thing(
    TRAIN,
    "A Hugging Face BERT classifier, on dict batches",
    'laconic.simulate("fed_avg", bert, laconic.data.from_hugging_face(texts, clients=2), rounds=2)',
)
def _classifying(do: Callable[..., Any], folder: Path) -> None:
    texts = sentences()
    result = do(bert=tiny_bert, texts=texts)
    ids = torch.tensor(texts["test"]["input_ids"])
    assert result.predict({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).shape == (10, 2)


@thing(TRAIN, "A GPT-2 that predicts the next token", 'laconic.simulate("fed_avg", gpt2, texts, rounds=1)')
def _next_token(do: Callable[..., Any], folder: Path) -> None:
    texts = sentences().remove_columns("label")
    transformers = pytest.importorskip("transformers", reason="the extra `lora` is not installed")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    result = do(gpt2=lambda: transformers.GPT2LMHeadModel(config), texts=texts)
    assert 0 < result.loss < 4 and result.form.kind == "next_token"


@thing(
    TRAIN,
    "A class per token or pixel: named entities, segmentation",
    'laconic.simulate("fed_avg", net, laconic.data.from_arrays(clients, test, kind="per_position"), rounds=2)',
)
def _positions(do: Callable[..., Any], folder: Path) -> None:
    images = np.random.default_rng(0).normal(size=(8, 1, 4, 4)).astype("float32")
    masks = (images[:, 0] > 0).astype("int64")
    result = do(net=nn.Conv2d(1, 2, 1), clients=[(images, masks)] * 2, test=(images, masks))
    right = result.predict(images).argmax(1).numpy() == masks
    assert result.accuracy == pytest.approx(right.mean())


@thing(
    TRAIN,
    "The loss that a Hugging Face model computes itself",
    'laconic.simulate("fed_avg", laconic.Task(bert), texts, rounds=1)',
)
def _own_loss(do: Callable[..., Any], folder: Path) -> None:
    texts = laconic.data.from_hugging_face(sentences(), clients=2)
    assert 0 < do(bert=tiny_bert(), texts=texts).loss < 2


@thing(TRAIN, "LoRA: only the adapter is sent", 'laconic.simulate("fed_avg", adapted, data, rounds=1)')
def _lora(do: Callable[..., Any], folder: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")

    def adapted() -> nn.Module:
        return peft.get_peft_model(tiny_bert(), peft.LoraConfig(task_type="SEQ_CLS", r=1, target_modules=["query"]))

    data = laconic.data.from_hugging_face(sentences(), clients=2)
    whole, part = do(adapted=tiny_bert, data=data), do(adapted=adapted, data=data)
    assert part.ledger.bytes("up") < whole.ledger.bytes("up") / 5


@thing(TRAIN, "A small GPT", 'laconic.simulate("fed_avg", "gpt:2x64", text, rounds=2, local_optimizer="adamw")')
def _gpt(do: Callable[..., Any], folder: Path) -> None:
    tokens = np.arange(8 * 13).reshape(8, 13) % 7
    pairs = [(tokens[:, :-1], tokens[:, 1:])] * 2
    text = laconic.data.from_arrays(pairs, test=pairs[0], kind="next_token", classes=7)
    result = do(text=text)
    assert result.predict(tokens[:, :-1]).shape == (8, 12, 7)
    assert result.loss < result.history[0]["training_loss"]


@thing(TRAIN, "A small vision transformer", 'laconic.simulate("fed_avg", "vit", "digits", rounds=1, participants=2)')
def _vit(do: Callable[..., Any], folder: Path) -> None:
    result = do()
    assert any(isinstance(part, nn.LayerNorm) for part in result.model.modules()) and result.accuracy > 0


@thing(
    TRAIN,
    "Mixed precision (`--dtype bfloat16`)",
    'laconic.simulate("fed_avg", net, clients, rounds=2, numerics={"dtype": "bfloat16"})',
)
def _mixed(do: Callable[..., Any], folder: Path) -> None:
    result, exact = do(net=net, clients=arrays()), laconic.simulate("fed_avg", net, arrays(), rounds=2)
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    assert result.model_sha256 != exact.model_sha256 and result.loss == pytest.approx(exact.loss, rel=0.02)


@thing(TRAIN, "nn.LazyLinear", 'laconic.simulate("fed_avg", nn.Sequential(nn.LazyLinear(8), head), clients, rounds=2)')
def _lazy(do: Callable[..., Any], folder: Path) -> None:
    result = do(head=nn.LazyLinear(3), clients=arrays())
    assert [tuple(p.shape) for p in result.model.parameters()] == [(8, 4), (8,), (3, 8), (3,)]
    with pytest.raises(laconic.ConfigError, match="LazyLinear: call it once on a batch of inputs first"):
        do(head=nn.Sequential(nn.LazyBatchNorm1d(), nn.Linear(8, 3)), clients=arrays())


class Two(nn.Module):
    """A model with two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([left, right], 1))


@thing(
    TRAIN,
    "A model with two inputs",
    'laconic.simulate("fed_avg", Two, [((left, right), targets) for left, right, targets in clients], rounds=2)',
)
def _two_inputs(do: Callable[..., Any], folder: Path) -> None:
    clients = [(inputs[:, :1], inputs[:, 1:], targets) for inputs, targets in arrays()]
    by_position = do(Two=Two, clients=clients)
    named = [({"right": right, "left": left}, targets) for left, right, targets in clients]
    tables = [TensorDataset(*map(torch.from_numpy, client)) for client in clients]
    samples = [list(zip(*client, strict=True)) for client in clients]
    for data in (clients, named, tables, samples):
        result = laconic.simulate("fed_avg", Two, data, rounds=2)
        assert result.model_sha256 == by_position.model_sha256
