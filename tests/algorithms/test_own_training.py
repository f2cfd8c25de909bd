"""A person's own training loop as a method."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import laconic
from laconic import OwnTraining
from laconic.algorithms.algorithm import Algorithm
from laconic.algorithms.methods.own_training import Visit
from laconic.core.errors import ConfigError
from laconic.data import FederatedData, from_arrays
from laconic.run.config import load_config

LR = 0.1
SIZES = (7, 4, 9)


def small_data() -> FederatedData:
    generator = np.random.default_rng(0)
    clients = [(generator.normal(size=(size, 4)), generator.integers(0, 3, size)) for size in SIZES]
    return from_arrays(clients, test=(generator.normal(size=(6, 4)), generator.integers(0, 3, 6)), classes=3)


def small_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def train_by_hand(module: nn.Module, dataset: Dataset) -> None:
    """Three full-batch steps of plain SGD."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(3):
        for inputs, targets in DataLoader(dataset, batch_size=100):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()


def simulate(function: object, rounds: int = 4, **settings: object) -> laconic.Result:
    algorithm = Algorithm(OwnTraining(function))
    return laconic.simulate(algorithm, small_model(), small_data(), rounds=rounds, **settings)


def weights(result: laconic.Result) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in result.model.parameters()])


def test_plain_sgd_written_by_hand_equals_local_sgd() -> None:
    algorithm = laconic.fed_avg(local_lr=LR, local_steps=3, batch_size=100)
    reference = laconic.simulate(algorithm, small_model(), small_data(), rounds=4, participants=2, weighting="uniform")
    own = simulate(train_by_hand, participants=2)
    assert float((weights(own) - weights(reference)).abs().max()) < 1e-6
    assert own.ledger.bytes("up") == reference.ledger.bytes("up")


def test_samples_taken_through_a_data_loader_are_counted() -> None:
    result = simulate(train_by_hand, rounds=2)
    assert result.ledger.samples == 2 * 3 * sum(SIZES)
    assert result.ledger.gradients == 2 * sum(SIZES), "nominal: one pass, since the loop is unknown"


def test_samples_taken_one_by_one_are_counted_and_iteration_ends() -> None:
    def look(module: nn.Module, dataset: Dataset) -> None:
        assert len(list(dataset)) == len(dataset)

    assert simulate(look, rounds=1).ledger.samples == sum(SIZES)


def test_all_usual_generators_follow_the_seed() -> None:
    def noise(module: nn.Module, dataset: Dataset) -> None:
        for inputs, _ in DataLoader(dataset, batch_size=3, shuffle=True):
            with torch.no_grad():
                change = torch.rand(()) + float(inputs.sum()) + random.random() + np.random.rand()
                module[0].bias += 1e-3 * change

    first, again, other = simulate(noise, seed=5), simulate(noise, seed=5), simulate(noise, seed=6)
    assert first.model_sha256 == again.model_sha256
    assert first.model_sha256 != other.model_sha256


def test_the_callers_generators_are_put_back() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def draw(module: nn.Module, dataset: Dataset) -> None:
        torch.rand(3), random.random(), np.random.rand()

    simulate(draw, rounds=1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]


def test_a_visit_tells_round_and_client_and_takes_losses() -> None:
    seen = []

    def train(module: nn.Module, dataset: Dataset, visit: Visit) -> None:
        seen.append((visit.round, visit.client, len(dataset)))
        visit.losses.extend([1.0, 3.0])
        dataset[0]

    result = simulate(train, rounds=2)
    assert seen == [(t, client, SIZES[client]) for t in range(2) for client in range(3)]
    assert [record["training_loss"] for record in result.history] == [2.0, 2.0]


def test_without_reported_losses_there_is_no_training_loss() -> None:
    assert [record["training_loss"] for record in simulate(train_by_hand, rounds=1).history] == [None]


def test_another_module_may_be_returned() -> None:
    def fresh(module: nn.Module, dataset: Dataset) -> nn.Module:
        other = small_model()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.fill_(0.25)
        return other

    assert float((weights(simulate(fresh, rounds=1)) - 0.25).abs().max()) < 1e-6


def test_statistics_of_batch_norm_come_back_from_the_loop() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))

    def train(module: nn.Module, dataset: Dataset) -> None:
        module[1].running_mean.fill_(float(len(dataset)))

    result = laconic.simulate(Algorithm(OwnTraining(train)), module, small_data(), rounds=1)
    assert result.model[1].running_mean.tolist() == pytest.approx([sum(SIZES) / 3] * 3)


def test_returning_something_else_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.function returned int: a module or None is allowed"):
        simulate(lambda module, dataset: 3)


def test_returning_a_module_of_another_form_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.function returned a module"):
        simulate(lambda module, dataset: nn.Linear(4, 3))


def test_a_function_is_named_by_its_file_in_a_config(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(
        f"import torch\nopen({str(tmp_path / 'runs.txt')!r}, 'a').write('x')\n\n\n"
        "def train(module, dataset):\n"
        "    with torch.no_grad():\n"
        "        for parameter in module.parameters():\n"
        "            parameter.fill_(0.5)\n"
    )
    spelling = f"{tmp_path}/loops.py:train"
    options = {"method.name": "own_training", "method.function": spelling, "model": "logistic", "rounds": 1}
    config = load_config(None, options)
    simulation = config.build()
    records = list(simulation.rounds())
    assert len(records) == 1
    assert float((simulation.server.model - 0.5).abs().max()) < 1e-6
    stored = config.resolved(simulation)
    simulation.close()
    assert (tmp_path / "runs.txt").read_text() == "x", "the file was run once"
    assert stored.method == {"name": "own_training", "function": spelling}


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("no_such_file.py:train", "there is no file 'no_such_file.py'"),
        ("loops.py", "write path/to/file.py:function or module:function"),
        ("no_such_package:train", "cannot import 'no_such_package'"),
        ("math:nothing", "'math' has no function 'nothing'"),
    ],
)
def test_a_function_that_cannot_be_found_is_refused_before_any_work(spelling: str, message: str) -> None:
    options = {"method.name": "own_training", "method.function": spelling, "model": "logistic"}
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(None, options).build()
    assert str(caught.value).startswith("method.function")
