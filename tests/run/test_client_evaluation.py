"""Evaluation by client, against a plain loop over the held-out examples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import laconic
from laconic.core.errors import ConfigError
from laconic.data.divide import hold_out
from laconic.data.generated import GeneratedData
from laconic.run.client_evaluation import summarize
from laconic.run.directory import read_metrics
from tests.problems import CLASSES, SIZES, client_arrays, data, module

SHARE, STEPS, RATE = 0.3, 4, 0.1
SETTINGS = {"rounds": 3, "eval_every": 3, "participants": 4, "numerics": {"dtype": "float64"}}


def algorithm():
    # A batch is all of a client's examples, so that the plain loop needs no named draws.
    return laconic.fed_avg(local_lr=RATE, local_steps=2, batch_size=max(SIZES))


def train(clients=None, **settings):
    clients = data() if clients is None else clients
    return laconic.simulate(algorithm(), laconic.classification(module()), clients, **SETTINGS | settings)


def examples(client: int, positions: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, labels = client_arrays()[client]
    return torch.tensor(inputs[positions]), torch.tensor(labels[positions])


def measured(model: nn.Module, held: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The losses and accuracies of all clients that hold out examples; `model(client)` is the client's model."""
    losses, accuracies = [], []
    for client, positions in enumerate(held):
        if len(positions):
            inputs, labels = examples(client, positions)
            logits = model(client)(inputs).detach()
            losses.append(float(cross_entropy(logits, labels)))
            accuracies.append(float((logits.argmax(1) == labels).double().mean()))
    return np.array(losses), np.array(accuracies)


def personal(model: nn.Module, client: int, held: list[np.ndarray]) -> nn.Module:
    """The model after some steps on all examples that the client does not hold out."""
    own = module()
    own.load_state_dict(model.state_dict())
    inputs, labels = examples(client, np.setdiff1d(np.arange(SIZES[client]), held[client]))
    optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(own(inputs), labels).backward()
        optimizer.step()
    return own


def test_the_numbers_are_those_of_a_plain_loop() -> None:
    result = train(client_eval=SHARE, personalize=STEPS)
    _, held = hold_out(data(), SHARE)
    last, model = result.history[-1], result.model
    for prefix, of in (("client", lambda client: model), ("personal", lambda client: personal(model, client, held))):
        losses, accuracies = measured(of, held)
        # Eight clients: the worst tenth is one client.
        expected = {
            f"{prefix}_loss": losses.mean(),
            f"worst_{prefix}_loss": losses.max(),
            f"{prefix}_loss_spread": np.sqrt(((losses - losses.mean()) ** 2).mean()),
            f"{prefix}_accuracy": accuracies.mean(),
            f"worst_{prefix}_accuracy": accuracies.min(),
            f"{prefix}_accuracy_spread": np.sqrt(((accuracies - accuracies.mean()) ** 2).mean()),
        }
        # Accuracies are computed in float32.
        assert {name: last[name] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert last["clients_evaluated"] == len(SIZES)
    assert "client_loss" not in result.history[0]


def test_held_out_examples_are_not_trained_on() -> None:
    """The run is bit for bit that of clients who never had these examples, and evaluation does not change it."""
    _, held = hold_out(data(), SHARE)
    kept = [np.setdiff1d(np.arange(size), positions) for size, positions in zip(SIZES, held, strict=True)]
    rest = laconic.data.from_arrays(
        [(inputs[own], labels[own]) for (inputs, labels), own in zip(client_arrays(), kept, strict=True)],
        classes=CLASSES,
    )
    expected = train(rest).model_sha256
    assert train(client_eval=SHARE).model_sha256 == expected
    assert train(client_eval=SHARE, personalize=STEPS, eval_every=1, threads=1, chunk=3).model_sha256 == expected
    assert train().model_sha256 != expected


def test_the_split_is_named_and_small_clients_keep_all() -> None:
    sizes = [1, 2, 10, 7]
    arrays = [(np.zeros((size, 2)), np.arange(size) % 2) for size in sizes]
    clients = laconic.data.from_arrays(arrays, classes=2)
    kept, held = hold_out(clients, 0.2)
    assert list(map(len, held)) == [0, 0, 2, 1]
    assert kept.sizes().tolist() == [1, 2, 8, 6]
    again = hold_out(clients, 0.2)[1]
    assert all(np.array_equal(first, second) for first, second in zip(held, again, strict=True))
    result = laconic.simulate("fed_avg", "logistic", clients, rounds=1, client_eval=0.2)
    assert result.history[-1]["clients_evaluated"] == result.history[-1]["clients_left_out"] == 2


def test_every_kind_of_data_can_hold_out() -> None:
    arrays = client_arrays()
    lazy = laconic.data.from_datasets(
        [TensorDataset(torch.tensor(inputs, dtype=torch.float32), torch.tensor(labels)) for inputs, labels in arrays],
        classes=CLASSES,
    )
    made = GeneratedData(
        len(SIZES), SIZES.__getitem__, lambda client: arrays[client], kind="classification", classes=CLASSES
    )
    results = [train(clients, client_eval=SHARE, personalize=2) for clients in (data(), lazy, made)]
    assert len({result.model_sha256 for result in results}) == 1
    assert len({result.history[-1]["worst_personal_loss"] for result in results}) == 1


def test_the_worst_tenth() -> None:
    values = [*range(25), float("nan")]
    assert summarize("client_f1", values) == {
        "client_f1": 12.0,
        "worst_client_f1": 1.0,
        "client_f1_spread": pytest.approx(np.sqrt(52)),
    }
    assert summarize("client_loss", values)["worst_client_loss"] == 23.0
    assert summarize("client_auroc", [float("nan")]) == {}


def test_a_client_of_one_class_is_left_out_of_the_auroc() -> None:
    """Inputs are logits. The first client ranks perfectly, the second has one class."""
    logits = np.eye(2, dtype="float32")[np.arange(20) % 2]
    clients = [(logits, np.arange(20) % 2), (logits, np.zeros(20, dtype="int64"))]
    net = nn.Linear(2, 2, bias=False)
    nn.init.eye_(net.weight)
    last = laconic.simulate(
        "fed_avg", net, clients, rounds=1, local_lr=1e-30, client_eval=0.5, metrics="auroc,class_accuracy"
    ).history[-1]
    assert last["client_auroc"] == last["worst_client_auroc"] == 1.0
    assert last["client_class_accuracy_1"] == 1.0


def test_the_run_directory_has_the_values_of_each_client(tmp_path) -> None:
    result = train(client_eval=SHARE, out=tmp_path / "run")
    header, *rows = (tmp_path / "run" / "client_metrics.csv").read_text().splitlines()
    assert header == "client,client_loss,client_accuracy"
    assert [int(row.split(",")[0]) for row in rows] == list(range(len(SIZES)))
    losses = [float(row.split(",")[1]) for row in rows]
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert np.mean(losses) == pytest.approx(last["client_loss"], rel=1e-5)
    assert last["client_loss"] == result.history[-1]["client_loss"]
    from laconic.report.reading import read_run

    assert read_run(tmp_path / "run")["client_metrics"]["values"]["client_loss"] == pytest.approx(losses, rel=1e-5)


def test_strange_names_of_clients_stop_neither_a_run_nor_its_report(tmp_path) -> None:
    """The name of a file may have bytes that are not UTF-8, or control a terminal, or be long."""
    from laconic.report.reading import read_run

    generator = np.random.default_rng(0)
    given = ["caf\udce9", "\x1b[2J", "x" * 5_000, "café"]
    clients = {name: (generator.normal(size=(20, 4)), np.arange(20) % 2) for name in given}
    data = laconic.data.from_arrays(clients)
    laconic.simulate("fed_avg", "logistic", data, rounds=1, participants=2, client_eval=0.5, out=tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (tmp_path / "run" / "names.json").stat().st_size < 500
    assert run["names"]["clients"] == ["caf?", "?[2J", "x" * 100, "café"]
    assert run["client_metrics"]["clients"] == ["caf\\udce9", "?[2J", "x" * 100, "café"]


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="personalize = 3: needs client_eval"):
        train(personalize=3)
    with pytest.raises(ConfigError, match="client_eval"):
        train(client_eval=1.0)
    with pytest.raises(ConfigError, match="no client has enough examples"):
        train(client_eval=0.01)

    class Fixed:
        kind, classes, input_shape, test = "classification", CLASSES, (6,), None

        def __len__(self) -> int:
            return 1

        def size(self, client: int) -> int:
            return 4

        def batch(self, client, positions, dtype=torch.float32):
            return torch.zeros(len(positions), 6, dtype=dtype), torch.zeros(len(positions), dtype=torch.int64)

    with pytest.raises(ConfigError, match=r"it needs a method `selected"):
        train(Fixed(), client_eval=0.5, participants=1)


def test_flower_refuses_it() -> None:
    pytest.importorskip("flwr", reason="the extra `flower` is not installed")
    from tests.flower.small_federation import LoopbackGrid, serve

    with pytest.raises(ConfigError, match="client_eval: only simulations hold out examples"):
        serve(LoopbackGrid(), "fed_avg", "logistic", "digits", {"clients": 3, "client_eval": 0.2, "rounds": 1})
