"""Evaluation's faster forward passes have the outputs of torch's own layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from laconic import models
from laconic.run.inference import SLICE, HalvingMaxPool, accelerate

CPU = torch.device("cpu")


@pytest.mark.parametrize("shape", [(3, 2, 8, 8), (2, 1, 7, 9), (5, 6, 6)])
def test_pooling_is_the_same_also_with_odd_sides_and_nan(shape: tuple[int, ...]) -> None:
    inputs = torch.randn(shape)
    inputs.view(-1)[3] = torch.nan
    expected = nn.functional.max_pool2d(inputs, 2)
    assert torch.equal(HalvingMaxPool()(inputs).nan_to_num(7.0), expected.nan_to_num(7.0))


@pytest.mark.parametrize("name", ["lenet5", "cnn", "cnn_mnist"])
def test_a_plain_network_has_the_outputs_of_torch_and_no_example_depends_on_others(name: str) -> None:
    torch.manual_seed(0)
    module = models.build(name, (1, 28, 28), 10).eval()
    fast, inputs = accelerate(copy.deepcopy(module), CPU), torch.randn(2 * SLICE + 7, 1, 28, 28)
    assert "forward" in vars(fast)
    with torch.inference_mode():
        found = fast(inputs)
        torch.testing.assert_close(found, module(inputs), rtol=1e-5, atol=1e-5)
        assert torch.equal(fast(inputs[3:40]), found[3:40])
        # An input of another shape fails as in torch.
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            fast(torch.randn(2, 1, 40, 40))


def test_the_outputs_of_another_network_have_the_same_bits() -> None:
    module = models.build("cnn_fashion", (1, 28, 28), 10).eval()
    fast = accelerate(copy.deepcopy(module), CPU)
    assert any(isinstance(child, HalvingMaxPool) for child in fast.modules())
    inputs, threads = torch.randn(2 * SLICE + 7, 1, 28, 28), torch.get_num_threads()
    torch.set_num_threads(1)  # as in evaluation; with more, torch splits a batch otherwise
    try:
        with torch.inference_mode():
            assert torch.equal(fast(inputs), module(inputs))
            assert torch.equal(fast(inputs[:3]), module(inputs[:3]))
    finally:
        torch.set_num_threads(threads)


class Odd(nn.Module):
    """Its output is not one row per example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3)

    def forward(self, inputs: Tensor, factor: Tensor) -> dict[str, Tensor]:
        return {"sum": self.layer(inputs).sum() * factor.sum()}


def test_a_network_with_other_outputs_gets_the_whole_batch() -> None:
    module = Odd().eval()
    inputs, factor = torch.randn(SLICE + 1, 1, 4, 4), torch.randn(SLICE + 1)
    expected = module(inputs, factor)["sum"]
    assert torch.equal(accelerate(module, CPU)(inputs, factor)["sum"], expected)


def test_a_network_without_convolutions_is_left_alone() -> None:
    module = models.build("mlp:8", (4,), 2)
    assert "forward" not in vars(accelerate(module, CPU))
