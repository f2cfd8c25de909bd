"""The compiled kernels give what torch's autograd gives, for every plain network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.core.layout import Layout
from laconic.core.task import Batch, Task
from laconic.gradients.compiled import SLICE, CompiledGradients, CompiledNetwork, is_plain
from laconic.gradients.kernels import LOSS
from laconic.gradients.named_rng import stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.program import Program
from laconic.gradients.strategies import make_gradients

RATE = 0.3


def both(task: Task, batches: list[Batch], dtype: torch.dtype) -> list[list[Tensor]]:
    """Gradients, losses and the models after a step, of the compiled kernels and of torch."""
    task = task.to("cpu", dtype)
    layout = Layout.of(task.module)
    draws = stochastic(task, batches[0])
    start = layout.flatten(task.module) + 0.01 * torch.randn(len(batches), layout.size, dtype=dtype)
    found = []
    for strategy in ("compiled", "loop"):
        function = make_gradients(task, layout, Numerics(strategy=strategy), draws, frozen=False)
        assert not isinstance(function, CompiledGradients) or is_plain(task, layout, batches[0])
        buffers, moved = start.new_empty(len(batches), 0), start.clone()
        gradients, losses = function(start, buffers, batches, lambda row: row)
        assert torch.equal(function.descend(moved, buffers, batches, lambda row: row, RATE), losses)
        torch.testing.assert_close(moved, start - RATE * gradients, rtol=1e-5, atol=1e-6)
        found.append([gradients, losses, moved])
    return found


def assert_equal(task: Task, batches: list[Batch], dtype: torch.dtype = torch.float64) -> None:
    batches = [tuple(part.to(dtype) if part.is_floating_point() else part for part in batch) for batch in batches]
    # In float32 the largest of two nearly equal values may differ, and with it a gradient.
    tolerance = {"rtol": 1e-9, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    for compiled, expected in zip(*both(task, batches, dtype), strict=True):
        torch.testing.assert_close(compiled, expected, **tolerance)


def examples(count: int, shape: tuple[int, ...], classes: int) -> Batch:
    return torch.randn(count, *shape), torch.randint(classes, (count,))


@st.composite
def networks(draw: Callable[[st.SearchStrategy], object]) -> tuple[nn.Module, tuple[int, ...]]:
    """Random networks of supported layers, and the shape of their inputs."""

    def number(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    shape = size = (number(1, 3), number(1, 12), number(1, 12))
    layers: list[nn.Module] = []
    for kind in draw(st.lists(st.sampled_from(["conv", "relu", "max", "mean", "drop", "drop2"]), max_size=6)):
        channels, height, width = size
        if kind == "conv":
            padding = (number(0, 2), number(0, 2))
            kernel = (number(1, height + 2 * padding[0]), number(1, min(4, width + 2 * padding[1])))
            layers.append(nn.Conv2d(channels, number(1, 9), kernel, padding=padding, bias=draw(st.booleans())))
            height, width = height + 2 * padding[0] - kernel[0] + 1, width + 2 * padding[1] - kernel[1] + 1
            size = (layers[-1].out_channels, height, width)
        elif kind in ("max", "mean"):
            window = (number(1, min(3, height)), number(1, min(3, width)))
            layers.append(nn.MaxPool2d(window) if kind == "max" else nn.AvgPool2d(window))
            size = (channels, height // window[0], width // window[1])
        else:
            layers.append({"relu": nn.ReLU(), "drop": nn.Dropout(0.3), "drop2": nn.Dropout2d(0.4)}[kind])
    layers.append(nn.Flatten())
    entries = size[0] * size[1] * size[2]
    for _ in range(number(0, 2)):
        layers += [nn.Linear(entries, hidden := number(1, 40), bias=draw(st.booleans())), nn.ReLU(), nn.Dropout(0.2)]
        entries = hidden
    return nn.Sequential(nn.Sequential(*layers), nn.Identity(), nn.Linear(entries, 5)), shape


@settings(max_examples=60, deadline=None)
@given(networks(), st.lists(st.integers(1, 40), min_size=1, max_size=2), st.integers(0, 2**31))
def test_random_networks(network: tuple[nn.Module, tuple[int, ...]], counts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    assert_equal(laconic.classification(network[0]), [examples(count, network[1], 5) for count in counts])


KNOWN = ["lenet5", "cnn", "cnn_mnist", "mlp:200,30", "logistic"]


@pytest.mark.parametrize("name", KNOWN)
def test_known_models(name: str) -> None:
    torch.manual_seed(0)
    task = laconic.classification(models.build(name, (1, 28, 28), 10))
    assert_equal(task, [examples(count, (1, 28, 28), 10) for count in (20, 7)], torch.float32)


def test_the_known_models_use_every_operation() -> None:
    """So `test_known_models` compares each function that emits LLVM code with autograd."""
    used: set[int] = set()
    for name in KNOWN:
        module = models.build(name, (1, 28, 28), 10)
        network, inputs = CompiledNetwork(module, Layout.of(module)), torch.zeros(20, 1, 28, 28)
        assert network.supports(inputs)
        program = network.program(inputs)
        assert isinstance(program, Program)
        used |= set(program.whole["kind"].tolist())
    assert used == set(range(LOSS + 1))


@pytest.mark.parametrize("bias", [True, False])
def test_pooled_convolutions_with_many_outputs_and_long_lines(bias: bool) -> None:
    """More than the 64 gradients that fit in a word, both for an output and for a cell; a band is less than a line."""
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(2, 20, 1),
        nn.ReLU(),
        nn.Conv2d(20, 70, (2, 4), padding=(1, 0), bias=bias),
        nn.ReLU(),
        nn.MaxPool2d((1, 2)),
        nn.Conv2d(70, 3, (3, 1), padding=1),
        nn.AvgPool2d((3, 35)),
        nn.Flatten(),
        nn.Linear(3 * 2, 5),
    )
    assert_equal(laconic.classification(module), [examples(count, (2, 2, 150), 5) for count in (10, 3)])


def test_several_steps_in_one_call() -> None:
    """As single steps, to the bit: clients with batches of other sizes, of more than a slice, or with fewer steps."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 3))
    task, layout = laconic.classification(module), Layout.of(module)
    function = make_gradients(task, layout, Numerics(strategy="compiled"), "named", frozen=False)
    inputs, labels = examples(100, (7,), 3)
    adjacent = list(zip(inputs.split([30, 30, 30, 10]), labels.split([30, 30, 30, 10]), strict=True))
    others: list[Batch | None] = [examples(count, (7,), 3) for count in (5, SLICE + 9, 5)]
    steps = list(zip(adjacent, [*others, None], strict=True))
    seeds = [lambda row, number=number: 10 * number + row for number in range(4)]
    rates = [0.1, 0.2, 0.3, 0.4]
    start = layout.flatten(module).repeat(2, 1)
    buffers, one, joined = start.new_empty(2, 0), start.clone(), start.clone()
    losses = [function.descend(one, buffers, *step) for step in zip(steps, seeds, rates, strict=True)]
    found = function.descend_steps(joined, buffers, steps, seeds, rates)
    assert torch.equal(one, joined) and not torch.equal(one, start)
    assert torch.equal(torch.stack(losses).nan_to_num(-1), torch.stack(found).nan_to_num(-1))
    assert torch.stack(found).isnan().tolist() == [[False, False]] * 3 + [[False, True]]


def test_regression() -> None:
    torch.manual_seed(0)
    task = laconic.regression(nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 3)))
    assert_equal(task, [(torch.randn(n, 7), torch.randn(n, 3)) for n in (5, 33)])
    one = laconic.regression(nn.Linear(7, 1))
    assert_equal(one, [(torch.randn(n, 7), torch.randn(n)) for n in (5, 33)])


def test_a_large_batch_is_computed_in_slices() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Dropout(0.3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3))
    inputs, labels = examples(2 * SLICE + 5, (1, 4, 4), 3)
    labels[:SLICE] = -100
    labels[-3:-1] = -100
    assert_equal(laconic.classification(module), [(inputs, labels)])


def test_labels_that_do_not_count() -> None:
    inputs, labels = examples(9, (7,), 3)
    labels[[1, 4]] = -100
    assert_equal(laconic.classification(nn.Linear(7, 3)), [(inputs, labels)])


def compiled(module: nn.Module) -> tuple[CompiledGradients, Tensor, Tensor]:
    task = laconic.classification(module)
    layout = Layout.of(module)
    function = make_gradients(task, layout, Numerics(strategy="compiled"), "no", frozen=False)
    assert isinstance(function, CompiledGradients)
    row = layout.flatten(module)[None]
    return function, row, row.new_empty(1, 0)


def test_a_label_out_of_range_is_an_error() -> None:
    function, row, buffers = compiled(nn.Linear(7, 3))
    inputs, labels = examples(4, (7,), 3)
    labels[2] = 3
    with pytest.raises(IndexError, match="out of bounds"):
        function(row, buffers, [(inputs, labels)], lambda row: row)


def test_of_equal_values_the_first_gets_the_gradient() -> None:
    """The second channel has weight 0, so it does not change the maximum. Its gradient shows which value was chosen."""
    module = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        module[0].weight.copy_(torch.tensor([1.0, 0.0]).view(1, 2, 1, 1))
    values = torch.tensor([[1.0, 1.0, 0.0, -1.0], [1.0, 1.0, -2.0, -1.0]])
    inputs = torch.stack([values, torch.arange(1.0, 9.0).view(2, 4)])[None]
    function, row, buffers = compiled(module)
    labels = torch.tensor([1])
    found, _ = function(row, buffers, [(inputs, labels)], lambda row: row)
    nn.functional.cross_entropy(module(inputs), labels).backward()
    assert found[0, 1] != 0
    torch.testing.assert_close(found[0, :2], module[0].weight.grad.view(-1))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_model_that_diverges_is_noticed_and_leaves_others_alone(bad: float) -> None:
    """Memory is shared between rows: nothing of a row with NaN may remain."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    function, row, buffers = compiled(module)
    small, large = examples(3, (1, 8, 8), 3), examples(16, (1, 8, 8), 3)
    expected, _ = function(row, buffers, [small], lambda row: row)
    large[0][:, :, 3, 4] = bad
    _, losses = function(row, buffers, [large], lambda row: row)
    assert not losses.isfinite().any()
    again, _ = function(row, buffers, [small], lambda row: row)
    assert torch.equal(again, expected)


class Own(nn.Module):
    """Its forward may use its layers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(8, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs) * 2


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 3), nn.ReLU())
    module[1].register_forward_hook(lambda layer, given, result: result + 1)
    return module


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    module[2].weight = module[0].weight
    return module


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    module[0].weight.requires_grad_(False)
    return module


SHARED = nn.Linear(8, 8)


@pytest.mark.parametrize(
    "make",
    [
        Own,
        hooked,
        tied,
        frozen,
        lambda: nn.Sequential(SHARED, nn.ReLU(), SHARED),
        lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 3)),
        lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    ],
)
def test_other_networks_use_torch(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    task, batch = laconic.classification(make()), examples(6, (8,), 3)
    layout = Layout.of(task.module)
    assert not is_plain(task, layout, batch)
    rows, buffers = layout.flatten(task.module)[None], layout.flatten_buffers(task.module)[None]
    ours, theirs = (
        make_gradients(task, layout, Numerics(strategy=strategy), "no", frozen=False)(
            rows, buffers.clone(), [batch], lambda row: row
        )
        for strategy in ("compiled", "loop")
    )
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(2, 2, 3, stride=2),
        nn.Conv2d(2, 2, 3, dilation=2),
        nn.Conv2d(2, 2, 3, groups=2),
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 3, padding="same"),
        nn.MaxPool2d(3, stride=1),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.MaxPool2d(2, padding=1),
        nn.AvgPool2d(2, divisor_override=3),
        nn.Flatten(2),
    ],
)
def test_other_layers_use_torch(layer: nn.Module) -> None:
    module = nn.Sequential(layer, nn.Flatten(), nn.LazyLinear(3))
    batch = examples(2, (2, 6, 6), 3)
    module(batch[0])
    assert not is_plain(laconic.classification(module), Layout.of(module), batch)
