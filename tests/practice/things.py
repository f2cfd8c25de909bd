"""What newcomers try, each with the line that does it. tools/practice_page.py makes a table of them: docs/practice.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import laconic


@dataclass(frozen=True)
class Thing:
    """Something that people try."""

    group: str
    title: str
    line: str
    try_it: Callable[..., None]
    """Runs the line with names for what it mentions, and checks what comes out."""

    def do(self, **names: Any) -> Any:
        """The value of the line."""
        return eval(self.line, {"laconic": laconic, "nn": nn, "torch": torch, **names})


THINGS: list[Thing] = []


def thing(group: str, title: str, line: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function that tries a line. It gets `do`, which evaluates the line, and an empty folder."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        THINGS.append(Thing(group, title, line, function))
        return function

    return register


def table() -> str:
    """All lines as Markdown: one table per group."""
    tables = []
    for group in dict.fromkeys(thing.group for thing in THINGS):
        rows = [f"| {thing.title} | `{thing.line}` |" for thing in THINGS if thing.group == group]
        tables.append("\n".join([f"## {group}", "", "| what | line |", "|---|---|", *rows]))
    return "\n\n".join(tables)


RIGHT, TRAIN, DATA, PYTHON = "Measured right", "What people train", "Data as people have it", "Python"


def loss(module: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return nn.functional.cross_entropy(module(batch[0]), batch[1])


def arrays(count: int = 3, rows: int = 12, classes: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    pairs = []
    for _ in range(count):
        targets = generator.integers(0, classes, rows)
        pairs.append((generator.normal(targets[:, None], 0.5, (rows, 4)).astype("float32"), targets))
    return pairs


def net(classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))


# Measured right


@thing(
    RIGHT,
    "F1, AUROC and other metrics that are not means",
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
    "A run that collapses says so",
    'laconic.simulate("fed_avg", "mlp:16", "digits", rounds=14, local_lr=0.1, local_schedule="step:10:300")',
)
def _collapse(do: Callable[..., Any], folder: Path) -> None:
    with pytest.warns(UserWarning, match=r"collapsed in round 1\d: "):
        result = do()
    assert sum("collapsed" in record for record in result.history) == 1


@thing(
    RIGHT,
    "A recipe with another part says so in its name",
    "laconic.scaffold(method=laconic.OwnTraining(train)).title",
)
def _renamed(do: Callable[..., Any], folder: Path) -> None:
    assert do(train=lambda module, dataset: module) == "scaffold (method own_training)"


@thing(
    RIGHT,
    "Padding and other targets of -100 do not count",
    'laconic.data.from_arrays([(tokens, targets)], kind="next_token", classes=5)',
)
def _ignored(do: Callable[..., Any], folder: Path) -> None:
    tokens = np.arange(24).reshape(4, 6) % 5
    data = do(tokens=tokens, targets=np.full_like(tokens, -100))
    table = nn.Embedding(5, 5)
    result = laconic.simulate("fed_avg", table, data, rounds=1)
    assert torch.equal(result.model.weight, table.weight), "nothing counts, so nothing is learned, and nothing is NaN"


# What people train


@thing(
    TRAIN,
    "Local optimizers",
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
    'laconic.simulate("fed_avg", net, [Noisy(pair) for pair in pairs], rounds=2)',
)
def _augmentation(do: Callable[..., Any], folder: Path) -> None:
    seen: set[float] = set()

    class Noisy(Dataset):
        def __init__(self, pair: tuple[np.ndarray, np.ndarray]) -> None:
            self.pair = pair

        def __len__(self) -> int:
            return len(self.pair[0])

        def __getitem__(self, position: int) -> tuple[torch.Tensor, int]:
            value = torch.from_numpy(self.pair[0][position]) + 0.1 * torch.randn(4)
            seen.add(float(value[0]))
            return value, int(self.pair[1][position])

    first, second = (do(net=net, Noisy=Noisy, pairs=arrays()) for _ in range(2))
    assert first.model_sha256 == second.model_sha256 and len(seen) > 3 * 36


@thing(TRAIN, "CIFAR's random crop and flip", 'laconic.data.augment(images, "crop:4+flip")')
def _crop(do: Callable[..., Any], folder: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32)).astype("uint8")
    images = laconic.data.from_arrays([(pixels, np.arange(8) % 2)])
    positions = np.arange(8)
    batches = [do(images=images).augmented(0, positions, torch.float32, seed)[0] for seed in (1, 1, 2)]
    assert torch.equal(batches[0], batches[1]) and not torch.equal(batches[0], batches[2])


def _sentences() -> Any:
    hub = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    generator = np.random.default_rng(0)
    words, labels = generator.integers(5, 20, (40, 6)), generator.integers(0, 2, 40)
    words[:, 0] = 3 + labels
    columns = {"input_ids": words, "attention_mask": np.ones_like(words), "label": labels}
    return hub.Dataset.from_dict(columns).train_test_split(0.25, seed=0)


def _bert() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="the extra `lora` is not installed")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, num_labels=2, **sizes)
    return transformers.BertForSequenceClassification(config)


@thing(
    TRAIN,
    "A Bert of Hugging Face that classifies, on dict batches",
    'laconic.simulate("fed_avg", bert, laconic.data.from_hugging_face(texts, clients=2), rounds=2)',
)
def _classifying(do: Callable[..., Any], folder: Path) -> None:
    texts = _sentences()
    result = do(bert=_bert, texts=texts)
    ids = torch.tensor(texts["test"]["input_ids"])
    assert result.predict({"input_ids": ids, "attention_mask": torch.ones_like(ids)}).shape == (10, 2)


@thing(TRAIN, "A GPT-2 that predicts the next token", 'laconic.simulate("fed_avg", gpt2, texts, rounds=1)')
def _next_token(do: Callable[..., Any], folder: Path) -> None:
    texts = _sentences().remove_columns("label")
    transformers = pytest.importorskip("transformers", reason="the extra `lora` is not installed")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    result = do(gpt2=lambda: transformers.GPT2LMHeadModel(config), texts=texts)
    assert 0 < result.loss < 4 and result.form.kind == "next_token"


@thing(TRAIN, "LoRA: only the adapter is sent", 'laconic.simulate("fed_avg", adapted, data, rounds=1)')
def _lora(do: Callable[..., Any], folder: Path) -> None:
    peft = pytest.importorskip("peft", reason="the extra `lora` is not installed")

    def adapted() -> nn.Module:
        return peft.get_peft_model(_bert(), peft.LoraConfig(task_type="SEQ_CLS", r=1, target_modules=["query"]))

    data = laconic.data.from_hugging_face(_sentences(), clients=2)
    whole, part = do(adapted=_bert, data=data), do(adapted=adapted, data=data)
    assert part.ledger.bytes("up") < whole.ledger.bytes("up") / 5


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


# Data as people have it


@thing(DATA, "A DatasetDict of Hugging Face", 'laconic.simulate("fed_avg", "mlp:8", table, rounds=1)')
def _hub(do: Callable[..., Any], folder: Path) -> None:
    hub = pytest.importorskip("datasets", reason="the extra `datasets` is not installed")
    inputs, targets = arrays(1, 30)[0]
    columns = {"age": inputs[:, 0], "size": inputs[:, 1], "client": np.arange(30) % 3, "label": targets}
    result = do(table=hub.Dataset.from_dict(columns).train_test_split(0.2, seed=0))
    assert result.form.input_shape == (2,) and result.history[-1]["participants"] == 3


@thing(DATA, "Partitioners of Flower Datasets", "laconic.data.from_hugging_face(partitioner, test=test)")
def _partitioners(do: Callable[..., Any], folder: Path) -> None:
    texts = _sentences()

    class Partitioner:
        """The interface of a partitioner of Flower Datasets, which needs no download."""

        num_partitions = 3

        def load_partition(self, number: int) -> Any:
            return texts["train"].shard(3, number)

    assert do(partitioner=Partitioner(), test=texts["test"]).sizes().tolist() == [10, 10, 10]


@thing(
    DATA,
    "Lists of torch Datasets and Subsets",
    'laconic.simulate("fed_avg", net, [Subset(whole, part) for part in parts], rounds=1)',
)
def _subsets(do: Callable[..., Any], folder: Path) -> None:
    whole = TensorDataset(*map(torch.from_numpy, arrays(1, 30)[0]))
    result = do(net=net, Subset=Subset, whole=whole, parts=[range(10), range(10, 30)])
    assert result.history[-1]["participants"] == 2


@thing(DATA, "A folder with a CSV or Parquet file per client", 'laconic.data.load(f"{folder}:target=ill")')
def _files(do: Callable[..., Any], folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    table = pandas.DataFrame({"age": range(20), "ill": [0, 1] * 10})
    table.to_csv(folder / "ann.csv", index=False)
    table.to_parquet(folder / "bob.parquet")
    data = do(folder=folder)
    assert len(data) == 2 and data.input_shape == (1,) and data.classes == 2


@thing(DATA, "Images in a folder per class", "laconic.data.from_images(folder)")
def _images(do: Callable[..., Any], folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for client in ("ann", "bob"):
        for label in ("dark", "light"):
            (folder / client / label).mkdir(parents=True)
            for number in range(5):
                pixels = np.full((4, 4), 200 if label == "light" else 20 + number, dtype="uint8")
                image.fromarray(pixels).save(folder / client / label / f"{number}.png")
    data = do(folder=folder)
    assert len(data) == 2 and data.labels == ("dark", "light")


@thing(DATA, "A client without examples", "laconic.data.from_arrays(clients, skip_empty=True)")
def _empty(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays(1)[0]
    clients = [(inputs, targets), (inputs[:0], targets[:0])]
    assert len(do(clients=clients)) == 1
    with pytest.raises(laconic.DataError, match=r"client 1 has no examples; .*--skip-empty \(skip_empty=True\)"):
        laconic.simulate("fed_avg", net, clients)


@thing(DATA, "NaN in the data names the client", 'laconic.simulate("fed_avg", net, clients)')
def _nan(do: Callable[..., Any], folder: Path) -> None:
    clients = arrays()
    clients[1][0][5, 2] = np.nan
    with pytest.raises(laconic.DataError, match="client 1: input 5 contains nan"):
        do(net=net, clients=clients)


# Python


@thing(PYTHON, "A recipe and its parameters", "laconic.simulate(laconic.fed_avg, net, clients, rounds=1, local_lr=0.1)")
def _recipe(do: Callable[..., Any], folder: Path) -> None:
    assert do(net=net, clients=arrays()).algorithm.method.local_lr == 0.1


@thing(
    PYTHON,
    "Compare algorithms, over several seeds",
    'laconic.compare({"dense": laconic.fed_avg, "signs": "fed_cams:compressor=sign"}, net, clients, rounds=2, seeds=2)',
)
def _compare(do: Callable[..., Any], folder: Path) -> None:
    comparison = do(net=net, clients={"clients": arrays(), "test": arrays()[0]})
    assert comparison["signs"].ledger.bytes("up") < comparison["dense"].ledger.bytes("up")
    assert "±" in repr(comparison) and "<table>" in comparison._repr_html_()
    comparison.report(folder / "page.html")
    assert '"label":"signs"' in (folder / "page.html").read_text()


@thing(PYTHON, "Results as a data frame", "result.to_pandas()")
def _pandas(do: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("pandas", reason="the extra `tables` is not installed")
    comparison = laconic.compare(["fed_avg"], net, arrays(), rounds=2)
    assert do(result=comparison["fed_avg"]).index.tolist() == [1, 2]
    assert do(result=comparison).loc["fed_avg", "rounds"] == 2


@thing(
    PYTHON,
    "Resume a run with one's own data and module",
    'laconic.simulate("fed_cams", net, clients, rounds=4, out=folder / "run", resume=True)',
)
def _resume(do: Callable[..., Any], folder: Path) -> None:
    whole = laconic.simulate("fed_cams", net, arrays(), rounds=4)
    laconic.simulate("fed_cams", net, arrays(), rounds=2, out=folder / "run")
    assert do(net=net, clients=arrays(), folder=folder).model_sha256 == whole.model_sha256
    with pytest.raises(laconic.ConfigError, match="the data differs"):
        do(net=net, clients=arrays()[::-1], folder=folder)


@thing(
    PYTHON,
    "Stop when nothing improves",
    'laconic.simulate("fed_avg", net, data, callbacks=[laconic.EarlyStopping("accuracy", patience=2)])',
)
def _early(do: Callable[..., Any], folder: Path) -> None:
    result = do(net=net, data={"clients": arrays(), "test": arrays()[0]})
    assert result.stopped == "accuracy has not improved in 2 evaluations" and len(result.history) < 100


@thing(
    PYTHON,
    "Keep the best model",
    'laconic.simulate("fed_avg", net, data, rounds=5, callbacks=[laconic.SaveBest("loss", folder / "best.safetensors")])',
)
def _best(do: Callable[..., Any], folder: Path) -> None:
    do(net=net, data={"clients": arrays(), "test": arrays()[0]}, folder=folder)
    assert (folder / "best.safetensors").exists()


@thing(
    PYTHON,
    "Log to TensorBoard, MLflow or Weights & Biases",
    'laconic.simulate("fed_avg", net, clients, rounds=1, out=folder / "run", callbacks=[laconic.TensorBoard()])',
)
def _trackers(do: Callable[..., Any], folder: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    do(net=net, clients=arrays(), folder=folder)
    assert [*(folder / "run/tensorboard").iterdir()]


@thing(PYTHON, "Predict", "result.predict(inputs).argmax(-1)")
def _predict(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays()[0]
    result = laconic.simulate("fed_avg", net, {"clients": arrays(), "test": (inputs, targets)}, rounds=5)
    right = do(result=result, inputs=inputs).numpy() == targets
    assert result.accuracy == pytest.approx(right.mean())


@thing(PYTHON, "Evaluate on other data", "result.evaluate((inputs, targets))")
def _evaluate(do: Callable[..., Any], folder: Path) -> None:
    inputs, targets = arrays()[0]
    result = laconic.simulate("fed_avg", net, {"clients": arrays(), "test": (inputs, targets)}, rounds=2)
    assert do(result=result, inputs=inputs, targets=targets) == pytest.approx(result.metrics)


@thing(PYTHON, "Save the model, and load it", "module.load_state_dict(load_file(path))  # after result.save(path)")
def _save(do: Callable[..., Any], folder: Path) -> None:
    from safetensors.torch import load_file

    result, module, path = laconic.simulate("fed_avg", net, arrays(), rounds=1), net(), folder / "net.safetensors"
    result.save(path)
    do(module=module, load_file=load_file, path=path)
    inputs = torch.from_numpy(arrays()[0][0])
    assert torch.equal(module(inputs), result.predict(inputs))
