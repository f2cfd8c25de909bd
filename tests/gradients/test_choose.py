"""The strategy `auto` is a fixed rule from the model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.core.devices import one_operator_thread
from laconic.core.layout import Layout
from laconic.core.task import Batch, Task
from laconic.gradients.choose import resolve_numerics
from laconic.gradients.named_rng import stochastic
from laconic.gradients.numerics import Numerics
from tests.gradients.modules import Asking, Centered, MakesTensors, Recurrent, Sequences, Shared, Tied, Twice


@pytest.fixture
def two_threads() -> Iterator[None]:
    with one_operator_thread():  # restores the number afterward
        torch.set_num_threads(2)
        yield


def resolved(task: Task, batch: Batch, asked: str = "auto") -> str:
    return resolve_numerics(
        Numerics(strategy=asked), task, Layout.of(task.module), stochastic(task, batch), batch
    ).strategy


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("lenet5", (1, 28, 28), "compiled"), ("mlp:20", (1, 8, 8), "compiled"), ("cnn_fashion", (1, 28, 28), "loop")],
)
def test_auto_is_a_fixed_rule_from_the_model(name: str, shape: tuple[int, ...], expected: str) -> None:
    task = laconic.classification(models.build(name, shape, 10))
    batch = (torch.randn(2, *shape), torch.tensor([0, 1]))
    assert resolved(task, batch) == expected
    assert resolved(task, batch, "vmap") == "vmap"


def test_compiled_is_refused_for_other_networks() -> None:
    """So `laconic tune` does not measure torch under the name of the compiled kernels."""
    batch = (torch.randn(2, 8), torch.tensor([0, 1]))
    plain, other = nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 3), nn.Tanh())
    assert resolved(laconic.classification(plain), batch, "compiled") == "compiled"
    with pytest.raises(laconic.ConfigError, match="strategy = 'compiled'"):
        resolved(laconic.classification(other), batch, "compiled")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (Twice, "stacked"),
        (Recurrent, "stacked"),
        (lambda: Sequences(nn.GRU(2, 32, batch_first=True)), "stacked"),
        (lambda: Sequences(nn.GRU(2, 32)), "loop"),
        (lambda: Sequences(nn.GRU(2, 40, batch_first=True)), "loop"),
        (lambda: Sequences(nn.GRU(2, 32, num_layers=2, batch_first=True)), "loop"),
        (lambda: Sequences(nn.LSTM(2, 32, batch_first=True)), "loop"),
        (MakesTensors, "stacked"),
        (Centered, "vmap"),
        (Tied, "vmap"),
        (Shared, "loop"),
        (Asking, "loop"),
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.4), nn.Linear(16, 3)), "compiled"),
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.4), nn.Linear(16, 3)), "vmap"),
        (lambda: nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)), "loop"),
    ],
)
def test_models_that_cannot_be_stacked_are_not(make: type[nn.Module], expected: str) -> None:
    torch.manual_seed(0)
    batch = (torch.randn(2, 8), torch.tensor([0, 1]))
    assert resolved(laconic.classification(make()), batch) == expected


def test_the_choice_does_not_depend_on_the_number_of_threads(two_threads: None) -> None:
    """Trials use one thread per operator, as the engines do."""
    seen = []

    class Counting(nn.Tanh):
        def forward(self, inputs: Tensor) -> Tensor:
            seen.append(torch.get_num_threads())
            return super().forward(inputs)

    task = laconic.classification(nn.Sequential(nn.Linear(8, 8), Counting(), nn.Linear(8, 3)))
    batch = (torch.randn(2, 8), torch.tensor([0, 1]))
    assert resolve_numerics(Numerics(), task, Layout.of(task.module), "no", batch).strategy == "stacked"
    assert {*seen} == {1}
    assert torch.get_num_threads() == 2


def test_a_loss_of_ones_own_is_batched_by_vmap() -> None:
    task = Task(nn.Linear(8, 3), lambda module, batch: F.cross_entropy(module(batch[0]), batch[1], reduction="sum"))
    assert resolved(task, (torch.randn(2, 8), torch.tensor([0, 1]))) == "vmap"
