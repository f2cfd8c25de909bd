"""Whole trainings in one process: every kind of model and data, and what must not change the result."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

import laconic
from laconic.algorithms.recipes import RECIPES
from laconic.compression import HEADER_BYTES
from laconic.core.errors import ConfigError
from laconic.data import FederatedData, from_arrays
from laconic.gradients.numerics import Numerics
from laconic.models import build
from laconic.run.simulation import Simulation

FEATURES, CLASSES = 5, 3
SIZES = (9, 4, 17, 1, 12)


def images(sizes: tuple[int, ...] = SIZES, test: int | None = 20) -> FederatedData:
    generator = np.random.default_rng(4)
    truth = generator.normal(size=(CLASSES, FEATURES))

    def some(size: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = generator.normal(size=(size, FEATURES)).astype(np.float32)
        return inputs, (inputs @ truth.T).argmax(1)

    return from_arrays([some(size) for size in sizes], test=None if test is None else some(test), classes=CLASSES)


def normed() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES))


def dropping() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, CLASSES))


def plain() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(FEATURES, 6), nn.ReLU(), nn.Linear(6, CLASSES))


def vector(result: laconic.Result) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in result.model.state_dict().values()])


def train(model: nn.Module, data: FederatedData, rounds: int = 4, **settings: object) -> laconic.Result:
    options = {name: settings.pop(name) for name in ("local_steps", "local_epochs", "batch_size") if name in settings}
    algorithm = laconic.fed_avg(local_lr=0.1, **({"batch_size": 4} | options))
    return laconic.simulate(algorithm, model, data, rounds=rounds, **settings)


PAIRED = tuple(size for size in SIZES if size > 1)


def test_buffers_travel_and_are_counted_as_a_stream_of_their_own() -> None:
    result = train(normed(), images(PAIRED), participants=3)
    down, up = (result.ledger.streams[f"{way}/buffers"] for way in ("down", "up"))
    assert down.packets == up.packets == 4 * 3
    assert down.bytes == up.bytes == 4 * 3 * (HEADER_BYTES + 4 * 12)
    assert down.paper_bits == up.paper_bits == 0
    assert result.history[0]["streams"]["up/buffers"]["bytes"] == 3 * (HEADER_BYTES + 4 * 12)
    assert float(result.model[1].running_mean.abs().sum()) > 0
    assert result.ledger.bytes("up") == up.bytes + result.ledger.streams["up/model"].bytes


def test_the_statistics_of_one_round_are_the_mean_of_what_torch_makes() -> None:
    data = images((8, 4))
    result = train(normed(), data, rounds=1, local_steps=1, batch_size=100, weighting="uniform")
    expected = []
    for client in range(2):
        module = normed().train()
        module(data.batch(client, np.arange(data.size(client)))[0])
        expected.append(torch.cat([module[1].running_mean, module[1].running_var]))
    found = torch.cat([result.model[1].running_mean, result.model[1].running_var])
    assert torch.allclose(found, torch.stack(expected).mean(0), atol=1e-6)


def test_frozen_buffers_stay_as_they_are_and_cost_nothing() -> None:
    module = normed()
    module[1].running_mean.fill_(0.5)
    result = train(module, images(), buffers="frozen")
    assert set(result.ledger.streams) == {"down/model", "up/model"}
    assert result.model[1].running_mean.tolist() == [0.5] * 6
    assert result.model[1].running_var.tolist() == [1.0] * 6


def test_batch_norm_on_one_example_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"batch_size: .* fails on a batch of one example"):
        train(normed(), images())


def test_batch_norm_says_the_same_when_it_is_the_first_client_that_has_one_example() -> None:
    with pytest.raises(ConfigError, match=r"batch_size: .* fails on a batch of one example"):
        train(normed(), images((1, 5)))


@pytest.mark.parametrize(
    ("make", "strategy"),
    [
        (normed, "loop"),
        (dropping, "loop"),
        (dropping, "vmap"),
        (plain, "loop"),
        (plain, "vmap"),
    ],
)
def test_threads_and_chunks_do_not_change_a_single_bit(make: object, strategy: str) -> None:
    data = images(PAIRED)
    numerics = Numerics(strategy=strategy, vmap_width=3)
    shas = {
        train(make(), data, local_steps=3, numerics=numerics, threads=threads, chunk=chunk).model_sha256
        for threads, chunk in ((1, None), (2, None), (2, 1), (1, 4), (2, 2))
    }
    assert len(shas) == 1


@pytest.mark.parametrize("make", [dropping, plain])
@pytest.mark.parametrize("steps", [{"local_steps": 3}, {"local_epochs": 2}])
def test_vmap_and_loop_agree(make: object, steps: dict) -> None:
    # 8 and 4 and 16: passes of batches of 4 that leave no single example over for batch norm.
    data = images((8, 4, 16))
    loop, vmap = (train(make(), data, numerics=Numerics(strategy=name), **steps) for name in ("loop", "vmap"))
    assert float((vector(loop) - vector(vmap)).abs().max()) < 1e-5
    assert loop.ledger.totals() == vmap.ledger.totals()


def test_dropout_is_really_drawn_and_differs_with_the_seed() -> None:
    data = images(PAIRED)
    full = {"local_steps": 1, "batch_size": 100}
    first, other = (train(dropping(), data, seed=seed, **full) for seed in (0, 1))
    assert first.model_sha256 != other.model_sha256
    without = dropping()
    without[2] = nn.Identity()
    assert train(without, data, **full).model_sha256 != first.model_sha256
    # Full batches of all clients without dropout leave nothing to draw.
    assert (
        float((vector(train(without, data, **full)) - vector(train(without, data, seed=1, **full))).abs().max()) < 1e-6
    )


def test_dropout_inside_a_recurrent_layer_follows_the_seed_too() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(FEATURES, 4, num_layers=2, dropout=0.5, batch_first=True)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.head(self.gru(inputs[:, None])[0][:, -1])

    torch.manual_seed(0)
    module, data = Recurrent(), images()
    shas = [
        train(module, data, rounds=2, threads=threads, chunk=chunk).model_sha256 for threads, chunk in ((1, 3), (2, 1))
    ]
    assert shas[0] == shas[1]
    assert train(module, data, rounds=2, seed=1).model_sha256 != shas[0]


def test_epochs_on_unequal_clients_use_every_example_and_a_small_last_batch() -> None:
    data = images()
    result = train(plain(), data, rounds=2, local_epochs=3, batch_size=4)
    assert result.ledger.samples == result.ledger.gradients == 2 * 3 * sum(SIZES)
    by_steps = train(plain(), data, rounds=2, local_steps=3, batch_size=4)
    assert by_steps.ledger.samples == 2 * 3 * sum(min(4, size) for size in SIZES)
    assert by_steps.ledger.gradients == 2 * 3 * 4 * len(SIZES)


def test_one_epoch_by_hand_with_unequal_clients() -> None:
    data = images((6, 3))
    algorithm = laconic.fed_avg(local_lr=0.1, local_epochs=1, batch_size=4, batch_order="fixed")
    result = laconic.simulate(algorithm, plain(), data, rounds=1, weighting="size")
    ends = []
    for client, size in ((0, 6), (1, 3)):
        module = plain()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for start in range(0, size, 4):
            inputs, targets = data.batch(client, np.arange(start, min(start + 4, size)))
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    assert torch.allclose(vector(result), (6 * ends[0] + 3 * ends[1]) / 9, atol=1e-6)


def test_a_recurrent_model_learns_the_next_token() -> None:
    text = np.tile(np.arange(4), 20)
    windows = np.stack([text[start : start + 8] for start in range(40)])
    following = np.stack([text[start + 1 : start + 9] for start in range(40)])
    clients = [(windows[half::2], following[half::2]) for half in (0, 1)]
    data = from_arrays(clients, test=(windows[:5], following[:5]), kind="next_token", classes=4)
    torch.manual_seed(0)
    model = build("char_gru:12", data.input_shape, 4)
    result = laconic.simulate(laconic.fed_avg(local_lr=1.0), model, data, rounds=6, eval_every=1)
    assert result.history[0]["loss"] > result.history[-1]["loss"]
    assert result.accuracy is not None and result.accuracy > 0.9


def test_regression_reports_loss_and_absolute_error_and_no_accuracy() -> None:
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(4, 10, 3)).astype(np.float32)
    data = from_arrays(
        [(each, each @ [1.0, 2.0, 3.0]) for each in inputs], test=(inputs[0], inputs[0] @ [1.0, 2.0, 3.0])
    )
    result = laconic.simulate(laconic.fed_avg(local_lr=0.1), "logistic", data, rounds=20)
    assert result.accuracy is None
    assert result.loss is not None and result.loss < 0.01
    assert result.metrics["absolute_error"] < 0.1


def test_without_a_test_set_the_clients_training_loss_is_reported() -> None:
    result = train(plain(), images(test=None), rounds=3, eval_every=1)
    assert [record["loss"] for record in result.history] == [record["training_loss"] for record in result.history]
    assert result.accuracy is None


def test_a_record_is_strict_json_even_where_no_loss_is_known() -> None:
    algorithm = laconic.Algorithm(laconic.OwnTraining(lambda module, dataset: None))
    result = laconic.simulate(algorithm, plain(), images(test=None), rounds=1)
    json.dumps(result.history, allow_nan=False)
    assert result.loss is None


def test_float64_trains_in_float64_and_sends_twice_the_bytes() -> None:
    data = images()
    double = train(plain(), data, numerics=Numerics(dtype="float64"))
    single = train(plain(), data)
    assert {p.dtype for p in double.model.parameters()} == {torch.float64}
    size = sum(p.numel() for p in single.model.parameters())
    assert double.ledger.bytes("up") == 4 * len(SIZES) * (HEADER_BYTES + 8 * size)
    assert single.ledger.bytes("up") == 4 * len(SIZES) * (HEADER_BYTES + 4 * size)
    difference = float((vector(double) - vector(single)).abs().max())
    assert 0 < difference < 1e-4


@pytest.mark.parametrize("strategy", ["auto", "loop"])
def test_a_run_in_float64_keeps_what_float32_cannot_represent(strategy: str) -> None:
    """Inputs 1 + k 2^-30 are all 1 in float32: then the classes look alike, and the weights get no gradient."""
    generator = np.random.default_rng(0)
    labels = [generator.permutation(np.arange(8) % 2) for _ in range(3)]
    clients = [(1 + 2.0**-30 * (2 * y[:, None] - 1 + 0.1 * generator.normal(size=(8, 2))), y) for y in labels]

    def trained(inputs: list[np.ndarray]) -> np.ndarray:
        module = nn.Linear(2, 2).requires_grad_(True)
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        algorithm = laconic.fed_avg(local_lr=0.5, local_steps=1, batch_size=8)
        data = from_arrays([*zip(inputs, labels, strict=True)], classes=2)
        numerics = Numerics(dtype="float64", strategy=strategy)
        return vector(laconic.simulate(algorithm, module, data, rounds=5, numerics=numerics)).numpy()

    exact = [inputs for inputs, _ in clients]
    weights, bias = np.zeros((2, 2)), np.zeros(2)
    for _ in range(5):  # one step on all examples of each client, and their mean
        moves = []
        for x, y in clients:
            odds = np.exp(x @ weights.T + bias)
            residual = (odds / odds.sum(1, keepdims=True) - np.eye(2)[y]) / 8
            moves.append((residual.T @ x, residual.sum(0)))
        weights = weights - 0.5 * np.mean([move[0] for move in moves], axis=0)
        bias = bias - 0.5 * np.mean([move[1] for move in moves], axis=0)
    ours, rounded = trained(exact), trained([x.astype(np.float32).astype(np.float64) for x in exact])
    np.testing.assert_allclose(ours, np.concatenate([weights.ravel(), bias]), rtol=0, atol=1e-15)
    assert np.abs(weights).max() > 1e-10 and np.abs(ours - rounded).max() > 1e-10 > np.abs(rounded).max()


def test_frozen_parameters_neither_move_nor_travel() -> None:
    module = plain()
    module[0].requires_grad_(False)
    result = train(module, images())
    assert torch.equal(result.model[0].weight, module[0].weight)
    assert not torch.equal(result.model[2].weight, module[2].weight)
    assert result.ledger.streams["up/model"].bytes == 4 * len(SIZES) * (HEADER_BYTES + 4 * (6 * CLASSES + CLASSES))


def test_batch_norm_that_would_depend_on_threads_or_places_is_refused() -> None:
    with pytest.raises(ConfigError, match="'vmap': a model with batch norm or other buffers"):
        train(normed(), images(PAIRED), numerics=Numerics(strategy="vmap"))
    module = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, CLASSES))
    with pytest.raises(ConfigError, match="momentum=None"):
        train(module, images(PAIRED))


def test_divergence_is_one_line_that_names_the_learning_rate() -> None:
    algorithm = laconic.fed_avg(local_lr=1e30)
    with pytest.raises(laconic.LaconicError, match=r"round \d+: training has diverged; try a smaller local_lr"):
        laconic.simulate(algorithm, plain(), images(), rounds=3)


def test_more_participants_than_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="participants = 6: the data has only 5 clients"):
        train(plain(), images(), participants=6)


def test_the_number_of_operator_threads_is_put_back() -> None:
    before = torch.get_num_threads()
    train(plain(), images(), rounds=1)
    assert torch.get_num_threads() == before


def test_each_recipe_has_its_papers_weighting() -> None:
    """McMahan et al. weigh by size; methods that need equal weights, medians and noise do not."""
    data = images((8, 4))

    def weighting(algorithm: laconic.Algorithm, **settings: object) -> str | None:
        simulation = Simulation(
            algorithm, laconic.classification(plain()), data, laconic.Settings(rounds=1, **settings)
        )
        simulation.close()
        return simulation.settings.weighting

    assert weighting(laconic.fed_avg()) == weighting(laconic.fed_prox()) == "size"
    assert weighting(laconic.fed_avg(), weighting="uniform") == "uniform"
    assert weighting(laconic.fed_ams()) == weighting(laconic.scaffold()) == "uniform"
    assert weighting(laconic.fed_avg(method="control_variates")) == "uniform"
    assert weighting(laconic.fed_avg(), defense={"aggregate": "median"}) == "uniform"
    by_size = train(plain(), data, rounds=2).model_sha256
    assert by_size == train(plain(), data, rounds=2, weighting="size").model_sha256
    assert by_size != train(plain(), data, rounds=2, weighting="uniform").model_sha256


@pytest.mark.parametrize("recipe", ["stc", "scaffold", "fed_page", "bvr_l_sgd", "fed_laconic_1"])
def test_a_client_keeps_one_state_between_rounds_and_more_if_a_reply_was_lost(recipe: str) -> None:
    task = laconic.classification(plain())
    for faults in ({}, {"drop": 0.4}):
        settings = laconic.Settings(rounds=6, participants=4, faults=faults)
        simulation = Simulation(RECIPES[recipe](), task, images(), settings)
        kept = []
        for _ in simulation.rounds():
            records = [simulation.store.record(client) for client in simulation.store.clients()]
            kept += [len(record.state_numbers()) for record in records if record is not None]
            assert faults or not any(record.pending for record in records if record is not None)
        simulation.close()
        assert max(kept) > 1 if faults else max(kept) == 1
