"""All gradient strategies give the same, whatever the model, and no row depends on its company."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import laconic
from laconic import models
from laconic.core.devices import one_operator_thread
from laconic.core.layout import Layout
from laconic.core.task import Batch, Task
from laconic.gradients.named_rng import NamedDraws, stochastic
from laconic.gradients.numerics import Numerics
from laconic.gradients.strategies import check_numerics, make_gradients
from tests.gradients.modules import BATCHED, BUILDERS, STACKED, RecurrentDropout


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in the engines. With more threads per operator, the bits of a row may depend on its company."""
    with one_operator_thread():
        yield


def make_task(name: str) -> Task:
    torch.manual_seed(0)
    module = (BUILDERS | STACKED)[name]()
    if name == "unused parameter":
        return Task(module, lambda m, b: F.cross_entropy(m["used"](b[0]), b[1]), means=lambda m, b: {})
    return laconic.classification(module)


def make_batches(count: int, shape: tuple[int, ...] = (8,)) -> list[Batch | None]:
    """Unequal batches, and one client that has finished."""
    generator = torch.Generator().manual_seed(1)
    sizes = [5, 7, 5, 0, 6, 7, 5][:count]
    return [
        (torch.randn(n, *shape, generator=generator), torch.randint(3, (n,), generator=generator)) if n else None
        for n in sizes
    ]


def call(task: Task, strategy: str, batches: list[Batch | None], models_: Tensor, width: int = 4) -> list[Tensor]:
    layout = Layout.of(task.module)
    example = next(batch for batch in batches if batch is not None)
    numerics = Numerics(strategy=strategy, vmap_width=width)
    function = make_gradients(task, layout, numerics, stochastic(task, example), frozen=False)
    buffers = layout.flatten_buffers(task.module).repeat(len(batches), 1)
    gradients, losses = function(models_, buffers, batches, lambda row: row)
    return [gradients, losses, buffers]


def rows(task: Task, count: int) -> Tensor:
    layout = Layout.of(task.module)
    noise = torch.randn(count, layout.size, generator=torch.Generator().manual_seed(2))
    return layout.flatten(task.module) + 0.1 * noise


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, "vmap") for name in BATCHED),
        *((name, "stacked") for name in STACKED),
        *((name, "compiled") for name in BUILDERS),
    ],
)
def test_batched_and_loop_agree(name: str, strategy: str) -> None:
    task, batches = make_task(name), make_batches(7)
    loop, batched = (call(task, each, batches, rows(task, 7)) for each in ("loop", strategy))
    for one, other in zip(loop, batched, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert torch.equal(loop[0][3], torch.zeros_like(loop[0][3]))
    assert bool(loop[1][3].isnan())


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        *((name, strategy) for name in BUILDERS for strategy in ("loop", "compiled")),
        *((name, "vmap") for name in BATCHED),
        *((name, "stacked") for name in STACKED),
    ],
)
def test_a_row_is_the_same_to_the_bit_in_any_company(name: str, strategy: str) -> None:
    task, batches = make_task(name), make_batches(7)
    together = call(task, strategy, batches, rows(task, 7))
    for row in (0, 2, 6):
        before = [None] * row
        alone = call(task, strategy, [*before, batches[row]], rows(task, 7)[: row + 1])
        assert torch.equal(alone[0][row], together[0][row])
        assert torch.equal(alone[2][row], together[2][row])


def descended(
    task: Task, batches: list[Batch | None], models_: Tensor, rate: float, strategy: str = "stacked"
) -> tuple[Tensor, Tensor]:
    models_ = models_.clone()
    function = make_gradients(task, Layout.of(task.module), Numerics(strategy=strategy), "no", frozen=False)
    buffers = models_.new_empty(len(models_), 0)
    return models_, function.descend(models_, buffers, batches, lambda row: row, rate)


@pytest.mark.parametrize("name", STACKED)
def test_a_descent_is_a_step_down_the_gradient(name: str) -> None:
    task, batches, rate = make_task(name), make_batches(7), 0.3
    start = rows(task, 7)
    moved, losses = descended(task, batches, start, rate)
    gradients, expected, _ = call(task, "stacked", batches, start)
    assert torch.equal(losses.nan_to_num(), expected.nan_to_num())
    torch.testing.assert_close(moved, start - rate * gradients, rtol=1e-5, atol=1e-6)
    assert torch.equal(moved[3], start[3]), "one that has finished stays where it is"
    for row in (0, 2, 6):
        alone, _ = descended(task, batches[row : row + 1], start[row : row + 1], rate)
        assert torch.equal(alone[0], moved[row])


@pytest.mark.parametrize("name", STACKED)
def test_a_descent_in_parts_has_the_bits_of_a_step_down_the_whole_gradient(name: str) -> None:
    task, batches, rate = make_task(name), make_batches(5), 0.3
    start = rows(task, 5)
    gradients, expected, _ = call(task, "loop", batches, start)
    moved, losses = descended(task, batches, start, rate, "loop")
    assert torch.equal(losses.nan_to_num(), expected.nan_to_num())
    assert torch.equal(moved, start.clone().sub_(gradients, alpha=rate))


def test_a_perceptron_for_every_token_of_a_text() -> None:
    task, generator = make_task("mlp"), torch.Generator().manual_seed(1)
    batches: list[Batch | None] = [
        (torch.randn(5, 4, 8, generator=generator), torch.randint(3, (5, 4), generator=generator)) for _ in range(3)
    ]
    loop, *others = (call(task, each, batches, rows(task, 3)) for each in ("loop", "stacked", "compiled"))
    for other in others:
        torch.testing.assert_close(loop[0], other[0], rtol=1e-5, atol=1e-6)


def test_a_language_model_with_dropout_in_vmap_and_loop() -> None:
    torch.manual_seed(0)
    task, generator = laconic.next_token(models.build("gpt:2x16", (6,), 5)), torch.Generator().manual_seed(1)
    batches: list[Batch | None] = [
        tuple(torch.randint(5, (4, 6), generator=generator) for _ in range(2)) for _ in range(3)
    ]
    assert stochastic(task, batches[0]) == "named"
    loop, again, vmap = (call(task, each, batches, rows(task, 3)) for each in ("loop", "loop", "vmap"))
    assert torch.equal(loop[0], again[0])
    torch.testing.assert_close(loop[0], vmap[0], rtol=1e-5, atol=1e-6)


def test_stacked_text_leaves_out_tokens_that_do_not_count() -> None:
    """The mean of each client is over its own counted tokens; a client may have none."""
    torch.manual_seed(0)
    task, generator = laconic.next_token(models.build("char_gru:32,5", (6,), 5)), torch.Generator().manual_seed(1)
    batches = [tuple(torch.randint(5, (4, 6), generator=generator) for _ in range(2)) for _ in range(4)]
    for row in (1, 2):
        batches[row][1][:, row:] = -100
    batches[3][1].fill_(-100)
    loop, stacked = (call(task, each, [*batches], rows(task, 4)) for each in ("loop", "stacked"))
    torch.testing.assert_close(loop[0], stacked[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loop[1], stacked[1])
    assert stacked[1][3] == 0 and not stacked[0][3].any()


def test_gradient_is_that_of_plain_autograd() -> None:
    task, batches = make_task("mlp"), make_batches(1)
    task.loss(task.module, batches[0]).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in task.module.parameters()])
    layout = Layout.of(task.module)
    for strategy in ("loop", "compiled", "vmap", "stacked"):
        ours = call(task, strategy, batches, layout.flatten(task.module)[None])[0][0]
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)


def test_dropout_masks_follow_the_seed_and_keep_the_right_share() -> None:
    task = laconic.classification(nn.Sequential(nn.Dropout(0.25), nn.Linear(1000, 3)))
    batch = (torch.ones(64, 1000), torch.zeros(64, dtype=torch.int64))
    layout = Layout.of(task.module)
    function = make_gradients(task, layout, Numerics(strategy="loop"), "named", frozen=False)
    zero = torch.zeros(1, layout.size)
    first, again, other = (function(zero, torch.zeros(1, 0), [batch], lambda row, s=s: s)[0] for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # At zero weights class 0's gradient is -2/3 of the mean input, whose expectation dropout leaves at 1.
    mean_input = first[0, :1000].mean() / (-2 / 3)
    assert abs(float(mean_input) - 1) < 0.01


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "float"])
def test_attention_with_named_dropout_is_torchs_attention(mask: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 5, 4, generator=generator) for heads in (4, 2, 2))
    allowed = torch.rand(2, 1, 5, 5, generator=generator) < 0.5
    allowed[0, 0, 3] = False
    masks = {"boolean": allowed, "float": torch.zeros(2, 1, 5, 5).masked_fill(~allowed, -torch.inf)}
    leaves = [part.requires_grad_() for part in (query, key, value)]

    def attend(dropout: float) -> tuple[Tensor, ...]:
        options = {"is_causal": mask == "causal", "scale": 0.3, "enable_gqa": True}
        with NamedDraws([torch.Generator().manual_seed(1)]):
            output = F.scaled_dot_product_attention(*leaves, masks.get(mask), dropout_p=dropout, **options)
        return output, *torch.autograd.grad(output.square().sum(), leaves)

    # At this probability nothing is dropped.
    torch.testing.assert_close(attend(1e-12), attend(0.0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(attend(0.5)[0], attend(0.0)[0])


@pytest.mark.parametrize("weights", [False, True])
def test_dropout_in_multi_head_attention_is_named(weights: bool) -> None:
    module, inputs = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(3, 2, 8)
    before = torch.get_rng_state()

    def attend(seed: int) -> Tensor:
        with NamedDraws([torch.Generator().manual_seed(seed)]):
            return module(inputs, inputs, inputs, need_weights=weights)[0]

    assert torch.equal(attend(1), attend(1)) and not torch.equal(attend(1), attend(2))
    assert torch.equal(before, torch.get_rng_state())


def test_randomness_that_cannot_be_named_is_still_reproducible() -> None:
    torch.manual_seed(0)
    task = laconic.classification(RecurrentDropout())
    batches = make_batches(3)
    assert stochastic(task, batches[0]) == "serial"
    state = torch.get_rng_state()
    one, two = (call(task, "loop", batches, rows(task, 3)) for _ in range(2))
    assert torch.equal(one[0], two[0])
    assert torch.equal(state, torch.get_rng_state()), "the caller's generator must not move"
    with pytest.raises(laconic.ConfigError, match="only 'loop'"):
        check_numerics(task, Numerics(strategy="vmap"), "serial", frozen=False)


def test_stacked_says_what_it_needs() -> None:
    task = Task(nn.Linear(8, 3), lambda module, batch: F.cross_entropy(module(batch[0]), batch[1]))
    with pytest.raises(laconic.ConfigError, match="losses of single examples"):
        check_numerics(task, Numerics(strategy="stacked"), "no", frozen=False)
    with pytest.raises(laconic.ConfigError, match="only for linear, embedding and GRU layers"):
        task = laconic.classification(models.build("lenet5", (1, 28, 28), 10))
        check_numerics(task, Numerics(strategy="stacked"), "no", frozen=False)


def test_one_example_and_batch_norm_is_explained() -> None:
    task = make_task("batch norm")
    batch = (torch.randn(1, 8), torch.zeros(1, dtype=torch.int64))
    layout = Layout.of(task.module)
    function = make_gradients(task, layout, Numerics(strategy="loop"), "no", frozen=False)
    with pytest.raises(laconic.ConfigError, match="batch of one example"):
        function(rows(task, 1), layout.flatten_buffers(task.module)[None], [batch], lambda row: row)


def test_channels_last_does_not_change_what_a_convolution_learns() -> None:
    torch.manual_seed(0)
    task = laconic.classification(models.build("lenet5", (1, 28, 28), 3))
    batches = [(torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 0]))]
    layout = Layout.of(task.module)
    loop = call(task, "loop", batches, layout.flatten(task.module)[None])[0]
    vmap = call(task, "vmap", batches, layout.flatten(task.module)[None], width=2)[0]
    task.loss(task.module, batches[0]).backward()
    plain = torch.cat([p.grad.reshape(-1) for p in task.module.parameters()])
    np.testing.assert_allclose(loop[0], plain, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(vmap[0], plain, rtol=1e-4, atol=1e-6)


def test_stacked_needs_the_losses_of_single_examples() -> None:
    """One line, and no broken pool of threads."""
    task = laconic.Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), lambda module, batch: module(batch[0]).mean())
    with pytest.raises(laconic.ConfigError, match="a mean loss only"):
        laconic.simulate("fed_avg", task, "digits", rounds=1, numerics={"strategy": "stacked"})
