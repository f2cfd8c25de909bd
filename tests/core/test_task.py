"""Tasks: the ready-made losses and metrics by hand, a loss of one's own, and what is said when they do not fit."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import laconic
from laconic.core.errors import ConfigError
from laconic.core.task import Task, classification, next_token, regression
from laconic.data import from_arrays


class Fixed(nn.Module):
    """Gives the same output whatever comes in."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.register_buffer("output", output)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.output


def test_classification_is_cross_entropy_and_accuracy() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.0]])
    task = classification(Fixed(logits))
    batch = (torch.zeros(4, 1), torch.tensor([0, 1, 1, 0]))
    by_hand = [math.log(1 + math.exp(-2)), math.log(1 + math.exp(-1)), math.log(1 + math.exp(3)), math.log(2)]
    assert float(task.loss(task.module, batch)) == pytest.approx(sum(by_hand) / 4)
    metrics = task.measure(task.module, batch)
    assert float(metrics["loss"]) == pytest.approx(sum(by_hand) / 4)
    # The last row is a tie: the lower class is taken, which is right.
    assert float(metrics["accuracy"]) == 0.75


def test_next_token_is_the_mean_over_all_places() -> None:
    logits = torch.zeros(2, 3, 4)
    logits[0, 0, 2] = 5.0
    task = next_token(Fixed(logits))
    targets = torch.tensor([[2, 3, 0], [1, 1, 1]])
    likelihood = math.log(1 + 3 * math.exp(-5))
    assert float(task.loss(task.module, (targets, targets))) == pytest.approx((likelihood + 5 * math.log(4)) / 6)
    assert float(task.measure(task.module, (targets, targets))["accuracy"]) == pytest.approx(2 / 6)


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
def test_a_client_whose_targets_are_all_ignored_neither_learns_nor_diverges(strategy: str) -> None:
    tokens, ignored = torch.arange(8).view(4, 2) % 3, torch.full((4, 2), -100)
    clients = from_arrays([(tokens, ignored), (tokens, ignored)], kind="next_token", classes=3)
    model = nn.Embedding(3, 3)
    settings = {"rounds": 2, "numerics": {"strategy": strategy}}
    result = laconic.simulate("fed_avg", model, clients, local_steps=2, **settings)
    assert torch.equal(result.model.weight, model.weight)
    assert result.loss is None and result.history[-1]["training_loss"] is None, "no target counts"
    # One ignored client of two halves the step of the other.
    alone, both = (
        laconic.simulate("fed_avg", model, from_arrays(parts, kind="next_token", classes=3), **settings | {"rounds": 1})
        for parts in ([(tokens, tokens)], [(tokens, tokens), (tokens, ignored)])
    )
    torch.testing.assert_close(2 * (both.model.weight - model.weight), alone.model.weight - model.weight)


def test_an_evaluation_weighs_batches_by_the_tokens_that_count(monkeypatch) -> None:
    monkeypatch.setattr("laconic.run.evaluate.BATCH", 1)
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    targets = torch.tensor([[0, -100, -100], [1, 2, 0], [-100, -100, -100]])
    model = nn.Embedding.from_pretrained(torch.eye(3) * torch.tensor([1.0, 2.0, 3.0]), freeze=False)
    counted = targets != -100
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model(tokens)[counted], targets[counted])
    data = from_arrays([(tokens, tokens)], test=(tokens, targets), kind="next_token", classes=3)
    right = {"right": lambda outputs, targets: (outputs.argmax(-1) == targets).float().mean()}
    task = replace(next_token(model), metrics=right)
    result = laconic.simulate("fed_avg:server_lr=1e-12", task, data, rounds=1)
    assert result.loss == pytest.approx(float(expected), rel=1e-6)
    assert result.accuracy == pytest.approx(2 / 4) and result.metrics["right"] == pytest.approx(2 / 4)


def test_the_training_loss_weighs_batches_and_clients_by_the_tokens_that_count() -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    parts = [torch.tensor([[0, -100, -100], [1, 2, 0], [-100, -100, -100]]), torch.tensor([[2, 2, 2]] * 3)]
    model = nn.Embedding.from_pretrained(torch.eye(3) * torch.tensor([1.0, 2.0, 3.0]), freeze=False)
    data = from_arrays([(tokens, part) for part in parts], kind="next_token", classes=3)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(
            model(torch.cat([tokens, tokens])).flatten(0, 1), torch.cat(parts).flatten()
        )
    # Each client takes one pass in batches of one example, without moving.
    result = laconic.simulate("fed_avg", model, data, rounds=1, local_epochs=1, batch_size=1, local_lr=1e-12)
    assert result.history[-1]["training_loss"] == pytest.approx(float(expected), rel=1e-6)


def test_a_large_batch_in_pieces_weighs_them_by_the_tokens_that_count(monkeypatch) -> None:
    tokens = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 1, 1]])
    targets = torch.tensor([[0, -100, -100], [1, 2, 0], [-100, -100, -100]])
    data = from_arrays([(tokens, targets)], kind="next_token", classes=3)
    whole = laconic.simulate("fed_page", nn.Embedding.from_pretrained(torch.eye(3), freeze=False), data, rounds=1)
    monkeypatch.setattr("laconic.algorithms.methods.cohort.PIECE", 1)
    pieces = laconic.simulate("fed_page", nn.Embedding.from_pretrained(torch.eye(3), freeze=False), data, rounds=1)
    torch.testing.assert_close(pieces.model.weight, whole.model.weight)


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_regression_is_squared_error_and_takes_outputs_with_a_last_dimension_of_one(shape: tuple[int, ...]) -> None:
    task = regression(Fixed(torch.tensor([1.0, 2.0, 3.0]).view(shape)))
    batch = (torch.zeros(3, 1), torch.tensor([1.0, 4.0, 0.0]))
    assert float(task.loss(task.module, batch)) == pytest.approx((0 + 4 + 9) / 3)
    metrics = task.measure(task.module, batch)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {"loss": 13 / 3, "absolute_error": 5 / 3}
    )


def test_regression_does_not_spread_a_wrong_shape_over_the_batch() -> None:
    task = regression(Fixed(torch.zeros(3, 2)))
    with pytest.raises(ConfigError, match=r"\(3, 2\).*targets of shape \(3,\)"):
        task.check((torch.zeros(3, 1), torch.zeros(3)))


def test_a_loss_of_ones_own_trains() -> None:
    truth = torch.tensor([[1.0, -2.0, 0.5]])
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(40, 3, generator=generator) for _ in range(4)]
    data = from_arrays([(each, (each @ truth.T)[:, 0]) for each in inputs])

    def huber(module: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return nn.functional.huber_loss(module(batch[0])[:, 0], batch[1], delta=0.5)

    def metrics(module: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        return {"loss": huber(module, batch)}

    task = Task(nn.Linear(3, 1), huber, means=metrics)
    before = copy.deepcopy(task.module)
    result = laconic.simulate(laconic.fed_avg(local_lr=0.5), task, data, rounds=30)
    assert torch.allclose(result.model.weight, truth, atol=0.01)
    assert result.loss is not None and result.loss < 1e-4
    assert torch.equal(task.module.weight, before.weight), "a person's own module is left as it was"


def test_check_says_which_shapes_do_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"model does not fit the data \(a batch has shapes \(2, 5\), \(2,\)\)"):
        classification(nn.Linear(4, 3)).check((torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64)))


def test_check_says_that_logits_need_one_more_dimension_than_labels() -> None:
    with pytest.raises(ConfigError, match=r"output has shape \(2, 7, 3\).*labels of shape \(2,\).*one more dimension"):
        classification(nn.Linear(4, 3)).check((torch.zeros(2, 7, 4), torch.zeros(2, dtype=torch.int64)))


def test_a_class_is_no_module() -> None:
    with pytest.raises(ConfigError, match=r"Task: module = Linear: .* pass Linear\(…\), not the class"):
        Task(nn.Linear, lambda module, batch: module(batch[0]).mean())  # type: ignore[arg-type]


def test_check_refuses_a_loss_per_example() -> None:
    task = regression(nn.Linear(4, 1))
    each = Task(task.module, lambda module, batch: module(batch[0])[:, 0] - batch[1])
    with pytest.raises(ConfigError, match=r"loss must be one number.*\(2,\)"):
        each.check((torch.zeros(2, 4), torch.zeros(2)))


def test_check_leaves_the_module_and_its_statistics_alone() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    classification(module).check((torch.randn(2, 4), torch.zeros(2, dtype=torch.int64)))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_misspelled_setting_is_refused_with_the_nearest_name() -> None:
    data = from_arrays([(torch.zeros(5, 3), torch.zeros(5))])
    with pytest.raises(ConfigError, match="unknown setting 'ruonds': did you mean 'rounds'"):
        laconic.simulate("fed_avg", nn.Linear(3, 1), data, ruonds=1)
    with pytest.raises(ConfigError, match="rounds = 0: must be greater"):
        laconic.simulate("fed_avg", nn.Linear(3, 1), data, rounds=0)


def test_a_label_beyond_the_outputs_is_found_even_where_the_first_batch_has_none() -> None:
    labels = torch.tensor([0, 1, 0, 1, 4])
    data = from_arrays([(torch.zeros(5, 3), labels)])
    with pytest.raises(ConfigError, match="model has 3 outputs, but the labels go from 0 to 4"):
        laconic.simulate("fed_avg", nn.Linear(3, 3), data, rounds=1)
