"""A fused layer gives what its three layers give, forwards and backwards."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.core.layout import Layout
from laconic.gradients.named_rng import stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.pooled_convolution import PooledConvolution, fuse
from laconic.gradients.strategies import make_gradients


def with_gradients(module: nn.Module, inputs: Tensor) -> list[Tensor]:
    """The outputs, and the gradients of an uneven sum of them, with respect to the inputs and all parameters."""
    inputs = inputs.clone().requires_grad_()
    outputs = module(inputs)
    weights = torch.linspace(-1, 1, outputs.numel(), dtype=outputs.dtype).view(outputs.shape)
    return [outputs.detach(), *torch.autograd.grad((outputs * weights).sum(), [inputs, *module.parameters()])]


def layers(channels: int, filters: int, kernel: tuple[int, int], bias: bool, pool_first: bool) -> nn.Sequential:
    after = [nn.MaxPool2d(2), nn.ReLU()] if pool_first else [nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(nn.Conv2d(channels, filters, kernel, bias=bias), *after)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([(1, 6, (5, 5)), (6, 3, (5, 5)), (3, 4, (3, 2)), (16, 17, (1, 3))]),
    st.integers(6, 13),
    st.integers(6, 13),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_it_equals_its_three_layers(
    sizes: tuple[int, int, tuple[int, int]],
    height: int,
    width: int,
    bias: bool,
    pool_first: bool,
    channels_last: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    plain = layers(*sizes, bias, pool_first).double()
    inputs = torch.randn(3, sizes[0], height, width, dtype=torch.float64)
    if channels_last:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    fused = fuse(copy.deepcopy(plain))
    assert isinstance(fused[0], PooledConvolution)
    for expected, found in zip(with_gradients(plain, inputs), with_gradients(fused, inputs), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("of_input", [True, False])
@pytest.mark.parametrize(("height", "width", "channels"), [(5, 5, 1), (5, 5, 6), (3, 3, 32), (2, 1, 1), (1, 31, 1)])
def test_vector_instructions_by_hand_equal_the_loop(
    height: int, width: int, channels: int, of_input: bool, dtype: type
) -> None:
    """To the bit: line lengths of 1 to 96 take every width of vector."""
    from laconic.gradients import kernels

    generator = np.random.default_rng(0)
    gradient = generator.standard_normal((4, 3, 3, 7)).astype(dtype)
    chosen = generator.integers(0, kernels.NONE + 1, gradient.shape).astype(np.uint8)
    images = generator.standard_normal((4, height + 5, width + 5, channels)).astype(dtype)
    weights = generator.standard_normal(7 * height * width * channels).astype(dtype)
    found = []
    for by_hand in (True, False):
        results = np.zeros_like(weights), np.zeros(7, dtype), np.zeros(images.size * of_input, dtype)
        back = kernels.gradient_of_pooled(height, width * channels, channels, of_input, by_hand=by_hand)
        back(gradient, chosen, images, weights, *results)
        assert np.abs(results[0]).min() > 0
        found.append(results)
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))


def hooked_backwards() -> nn.Module:
    module = layers(1, 2, (3, 3), True, False)
    module[1].register_full_backward_pre_hook(lambda layer, gradients: None)
    return module


def test_of_equals_the_first_is_chosen() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    nn.init.ones_(plain[0].weight)
    inputs = torch.tensor([[1.0, 1.0, 0.0, -1.0], [1.0, 1.0, -2.0, -1.0]]).view(1, 1, 2, 4)
    expected, found = with_gradients(plain, inputs), with_gradients(fuse(copy.deepcopy(plain)), inputs)
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_passes(bad: float) -> None:
    plain = layers(1, 2, (3, 3), True, False)
    inputs = torch.zeros(1, 1, 8, 8)
    inputs[0, 0, 3, 4] = bad
    expected, found = plain(inputs), fuse(copy.deepcopy(plain))(inputs)
    assert torch.equal(expected.isnan(), found.isnan())
    torch.testing.assert_close(found, expected, equal_nan=True)


class Own(nn.Module):
    """Its forward may use its layers in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layers(1, 2, (3, 3), True, False)

    def forward(self, inputs: Tensor) -> Tensor:
        seen = self.net[:2](inputs)
        return self.net[2:](seen) + seen.mean()


def hooked() -> nn.Module:
    module = layers(1, 2, (3, 3), True, False)
    module[1].register_forward_hook(lambda layer, given, result: result + 1)
    return module


@pytest.mark.parametrize(
    "make",
    [
        Own,
        hooked,
        hooked_backwards,
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(3)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.MaxPool2d(2)),
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()),
    ],
)
def test_anything_else_is_left_alone(make: type[nn.Module]) -> None:
    assert not any(isinstance(each, PooledConvolution) for each in fuse(make()).modules())


def test_a_rectifier_that_is_used_twice_still_rectifies_elsewhere() -> None:
    shared = nn.ReLU()
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), shared, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4), shared)
    inputs = torch.randn(5, 1, 8, 8)
    torch.testing.assert_close(fuse(copy.deepcopy(plain))(inputs), plain(inputs))


@pytest.mark.parametrize("name", ["lenet5", "cnn", "cnn_mnist"])
def test_the_engine_uses_it_and_keeps_dropout(name: str) -> None:
    torch.manual_seed(0)
    task = laconic.classification(models.build(name, (1, 28, 28), 10))
    batch = (torch.randn(4, 1, 28, 28), torch.randint(10, (4,)))
    layout, draws = Layout.of(task.module), stochastic(task, batch)
    rows = layout.flatten(task.module)[None]
    given = (rows, rows.new_empty(1, 0), [batch], lambda row: 7)
    loop = make_gradients(task, layout, Numerics(strategy="loop"), draws, frozen=False)
    assert any(isinstance(each, PooledConvolution) for each in loop.module.modules())  # type: ignore[attr-defined]
    assert not any(isinstance(each, PooledConvolution) for each in task.module.modules())
    plain = make_gradients(task, layout, Numerics(strategy="vmap", vmap_width=1), draws, frozen=False)
    torch.testing.assert_close(loop(*given), plain(*given), rtol=1e-4, atol=1e-6)


def test_too_small_images_fail_as_in_torch() -> None:
    with pytest.raises(RuntimeError, match="too small"):
        fuse(layers(1, 2, (3, 3), True, False))(torch.zeros(1, 1, 3, 3))
