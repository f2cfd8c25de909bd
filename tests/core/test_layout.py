"""A model is one flat vector, and nothing is lost on the way there and back."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from laconic.core.errors import ConfigError
from laconic.core.layout import Layout

LAYERS = st.lists(
    st.one_of(
        st.builds(
            lambda inputs, outputs, bias: ("linear", inputs, outputs, bias),
            st.integers(1, 5),
            st.integers(1, 5),
            st.booleans(),
        ),
        st.builds(lambda channels: ("norm", channels), st.integers(1, 6)),
        st.builds(
            lambda inputs, outputs, kernel: ("convolution", inputs, outputs, kernel),
            st.integers(1, 3),
            st.integers(1, 3),
            st.integers(1, 3),
        ),
        st.builds(lambda vocabulary, width: ("embedding", vocabulary, width), st.integers(1, 5), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=6,
)
MAKERS = {
    "linear": lambda inputs, outputs, bias: nn.Linear(inputs, outputs, bias=bias),
    "norm": nn.BatchNorm1d,
    "convolution": nn.Conv2d,
    "embedding": nn.Embedding,
}


def build(specification: list[tuple]) -> nn.Module:
    return nn.Sequential(*(MAKERS[name](*sizes) for name, *sizes in specification))


@settings(deadline=None, max_examples=60)
@given(LAYERS, st.sampled_from([torch.float32, torch.float64]))
def test_a_module_survives_the_way_to_a_vector_and_back(specification: list[tuple], dtype: torch.dtype) -> None:
    module = build(specification).to(dtype)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.normal_()
    layout = Layout.of(module)
    vector, buffers = layout.flatten(module), layout.flatten_buffers(module)
    assert vector.shape == (sum(p.numel() for p in module.parameters()),)
    assert vector.dtype == buffers.dtype == dtype
    other = build(specification).to(dtype)
    layout.write(other, vector, buffers)
    for (name, wanted), (_, found) in zip(module.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(wanted, found), name
    for (name, wanted), (_, found) in zip(module.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(wanted, found), name


@settings(deadline=None, max_examples=60)
@given(LAYERS)
def test_slots_cover_the_vector_once_without_gap_or_overlap(specification: list[tuple]) -> None:
    layout = Layout.of(build(specification))
    vector = torch.arange(layout.size, dtype=torch.float32)
    covered = torch.cat([view.reshape(-1) for view in layout.views(vector).values()])
    assert torch.equal(covered, vector)


@settings(deadline=None, max_examples=60)
@given(LAYERS, LAYERS)
def test_fingerprints_are_equal_exactly_for_equal_shapes_and_names(one: list[tuple], other: list[tuple]) -> None:
    first, second = build(one), build(other)

    def described(module: nn.Module) -> list:
        buffers = [(name, b.shape) for name, b in module.named_buffers() if b.is_floating_point()]
        return [(name, p.shape) for name, p in module.named_parameters()] + buffers

    same = described(first) == described(second)
    assert (Layout.of(first).fingerprint == Layout.of(second).fingerprint) == same


def test_a_name_alone_or_a_type_alone_changes_the_fingerprint() -> None:
    plain = nn.ModuleDict({"first": nn.Linear(3, 2)})
    renamed = nn.ModuleDict({"second": nn.Linear(3, 2)})
    prints = {Layout.of(module).fingerprint for module in (plain, renamed, copy.deepcopy(plain).double())}
    assert len(prints) == 3
    assert all(0 <= number < 2**64 for number in prints)


def test_the_fingerprint_does_not_depend_on_the_weights() -> None:
    assert Layout.of(nn.Linear(3, 2)).fingerprint == Layout.of(nn.Linear(3, 2)).fingerprint


def test_views_share_memory_with_a_vector_and_with_the_rows_of_a_matrix() -> None:
    layout = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
    vector = torch.zeros(layout.size)
    layout.views(vector)["1.weight"].fill_(5)
    assert int((vector == 5).sum()) == 2
    matrix = torch.zeros(4, layout.size)
    layout.views(matrix)["0.weight"][2].fill_(7)
    assert layout.views(matrix)["0.weight"].shape == (4, 2, 3)
    assert (matrix == 7).sum(1).tolist() == [0, 0, 6, 0]


def test_flatten_is_a_copy() -> None:
    module = nn.Linear(3, 2)
    vector = Layout.of(module).flatten(module)
    before = module.weight.detach().clone()
    vector.zero_()
    assert torch.equal(module.weight, before)


def test_floating_buffers_are_a_second_stream_and_integer_ones_stay_at_home() -> None:
    module = nn.BatchNorm1d(4)
    module.running_mean.fill_(3)
    layout = Layout.of(module)
    assert [slot.name for slot in layout.parameters] == ["weight", "bias"]
    assert [slot.name for slot in layout.buffers] == ["running_mean", "running_var"]
    assert layout.flatten_buffers(module).tolist() == [3.0] * 4 + [1.0] * 4
    assert layout.buffer_size == 8


def test_a_module_without_buffers_has_an_empty_second_stream() -> None:
    module = nn.Linear(2, 1)
    assert Layout.of(module).flatten_buffers(module).shape == (0,)


def test_frozen_parameters_are_left_out_and_left_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    layout = Layout.of(module)
    assert [slot.name for slot in layout.parameters] == ["1.weight", "1.bias"]
    layout.write(module, torch.ones(layout.size))
    assert torch.equal(module[0].weight, before)
    assert bool((module[1].weight == 1).all())


def test_a_module_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="no trainable parameter"):
        Layout.of(nn.Linear(2, 2).requires_grad_(False))


def test_tied_parameters_travel_once_and_stay_tied() -> None:
    module = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    module[1].weight = module[0].weight
    layout = Layout.of(module)
    assert layout.size == 15
    layout.write(module, torch.arange(15.0))
    assert torch.equal(module[1].weight, torch.arange(15.0).view(5, 3))
    vector = torch.zeros(15)
    layout.adopt(module, vector, torch.zeros(0))
    vector.fill_(2)
    assert bool((module[0].weight == 2).all()) and bool((module[1].weight == 2).all())


def test_mixed_types_are_refused_by_name() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ConfigError, match=r"torch\.float32.*torch\.float64"):
        Layout.of(module)


def test_a_frozen_part_may_have_another_type() -> None:
    module = nn.Sequential(nn.Linear(2, 2).half().requires_grad_(False), nn.Linear(2, 2))
    assert Layout.of(module).dtype == torch.float32


def test_an_adopted_module_follows_the_vector_and_gradients_reach_its_parameters() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    layout = Layout.of(module)
    vector, buffers = layout.flatten(module), layout.flatten_buffers(module)
    reference = copy.deepcopy(module)
    parameters = layout.adopt(module, vector, buffers)
    inputs = torch.randn(6, 3)
    assert torch.equal(module(inputs), reference(inputs))
    # Training mode has moved the running statistics of both: the adopted module's lie in `buffers`.
    assert torch.equal(buffers, layout.flatten_buffers(reference))
    gradients = torch.autograd.grad(module(inputs).square().sum(), parameters)
    expected = torch.autograd.grad(reference(inputs).square().sum(), list(reference.parameters()))
    for found, wanted in zip(gradients, expected, strict=True):
        assert torch.allclose(found, wanted)
    vector.zero_()
    assert bool((module(inputs) == 0).all())


def test_a_buffer_that_is_not_in_the_state_dict_is_no_statistic():
    module = nn.BatchNorm1d(2)
    module.register_buffer("angles", torch.ones(3), persistent=False)
    assert [slot.name for slot in Layout.of(module).buffers] == ["running_mean", "running_var"]
