"""Sparse levels on a budget: the expected number of entries, no bias, the variance, and the contraction of the twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laconic.compression import HEADER_BYTES, DeadZone, GroupedCompressor, Stochastic, encode, parse_compressor
from laconic.core.errors import ConfigError
from tests.compression.test_compressors import compressed, draws, layout_of, normal
from tests.oracles import compressors as oracle

VECTORS = st.integers(1, 200).flatmap(
    lambda size: arrays(
        np.float64, size, elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    )
)
BUDGETS = st.sampled_from([0.01, 0.1, 0.5, 0.9, 1.0, 2, 7])
SHORT = settings(max_examples=60, deadline=None)
FINEST = 2.0**-14


@SHORT
@given(VECTORS, BUDGETS)
def test_the_step_gives_the_expected_number_of_entries(x: np.ndarray, budget: float) -> None:
    """sum min(1, |x| / step) = k, unless fewer entries differ from zero or the finest step is reached."""
    step, k = Stochastic(budget)._step(x), oracle.budget_count(len(x), budget)
    if not x.any():
        assert step == 0
        return
    expected = np.minimum(1, np.abs(x) / step).sum()
    assert expected <= k * (1 + 1e-9)
    assert expected >= k * (1 - 1e-9) or step <= np.abs(x).max() * FINEST * (1 + 1e-9)


@SHORT
@given(VECTORS, st.integers(1, 30))
def test_auto_is_the_larger_of_two_budgets(x: np.ndarray, n: int) -> None:
    """The least budget and d / (8 n)."""
    compressor, d = Stochastic(participants=n), len(x)
    if not x.any():
        return
    step = compressor._step(x)
    k = max(min(64, d / 4), d // (8 * n))
    expected = np.minimum(1, np.abs(x) / step).sum()
    assert expected <= k + 1 + 1e-9
    assert expected >= k * (1 - 1e-9) or step <= np.abs(x).max() * FINEST * (1 + 1e-9)
    share = np.abs(x) / step % 1
    variance = (share * (1 - share)).sum() * step**2
    assert variance <= (compressor.omega(d) + d * FINEST**2) * np.square(x).sum() * (1 + 1e-9)


@SHORT
@given(VECTORS, BUDGETS)
def test_the_variance_stays_below_omega(x: np.ndarray, budget: float) -> None:
    """An entry that lies a share f above the lower of its two points has the variance f (1 - f) step^2."""
    compressor = Stochastic(budget)
    step = compressor._step(x)
    share = np.abs(x) / step % 1 if step else np.zeros_like(x)
    variance = (share * (1 - share)).sum() * step**2
    assert variance <= (compressor.omega(len(x)) + len(x) * FINEST**2) * np.square(x).sum() * (1 + 1e-9)


DRAWS = 500


def test_the_mean_over_draws_is_the_vector_and_the_mean_count_the_budget() -> None:
    layout = layout_of(300, 100)
    x = normal(layout)
    x[:5] *= 50  # levels above 1
    for spelling in ("stochastic:1/20", "stochastic:1/20@layer"):
        found = torch.stack([compressed(spelling, x, layout, seed) for seed in range(DRAWS)])
        for part in [slice(0, 400)] if "@" not in spelling else [slice(0, 300), slice(300, 400)]:
            size = part.stop - part.start
            step = Stochastic(1 / 20)._step(x[part].numpy())
            # Standard errors from the known variance of every entry; five of them miss once in 2 million.
            share = x[part].abs() / step % 1
            error = step * (share * (1 - share) / DRAWS).sqrt()
            assert ((found[:, part].mean(0) - x[part]).abs() <= 5 * error + 1e-9).all()
            count = (found[:, part] != 0).sum(1).double()
            assert abs(count.mean() - size / 20) <= 5 * count.std() / DRAWS**0.5


@SHORT
@given(VECTORS, BUDGETS)
def test_the_dead_zone_contracts(x: np.ndarray, budget: float) -> None:
    """||C(x) - x||^2 <= (1 - 5/9 k/d) ||x||^2, and at most k entries are sent."""
    found = compressed(f"dead_zone:{budget}", torch.from_numpy(x), layout_of(len(x))).numpy()
    k, norm = oracle.budget_count(len(x), budget), np.square(x).sum()
    assert np.count_nonzero(found) <= k
    assert np.square(found - x).sum() <= (1 - 5 / 9 * k / len(x) + len(x) * FINEST**2) * norm * (1 + 1e-9) + 1e-300


def test_budgets_are_shares_or_counts() -> None:
    assert [Stochastic(budget).kept(800) for budget in (1 / 80, 1e-9, 1, 30, 900)] == [10, 1, 800, 30, 800]
    assert [str(parse_compressor(f"dead_zone:{budget}")) for budget in ("1/64", "0.03", "500")] == [
        "dead_zone:1/64",
        "dead_zone:0.03",
        "dead_zone:500",
    ]
    for budget in ("0", "-1/2", "2.5", "inf", "many"):
        with pytest.raises(ConfigError, match=r"compressor\.budget"):
            parse_compressor(f"stochastic:{budget}")


def test_memories_and_mirrors_take_the_deterministic_form() -> None:
    assert str(GroupedCompressor.parse("stochastic:1/80@layer").scaled_for_feedback()) == "dead_zone:1/80@layer"
    assert DeadZone(5).scaled_for_feedback() == DeadZone(5)


def test_a_sparse_entry_takes_its_position_and_little_more() -> None:
    """At 1 of 64 entries, log2 C(d, k) / k is 7.4 bits; the sign is one, and levels above 1 are rare."""
    x = draws().laplace(size=40_000)
    for spelling in ("stochastic:1/64", "dead_zone:1/64"):
        packet = encode(torch.from_numpy(x), spelling)
        levels = compressed(spelling, torch.from_numpy(x), layout_of(40_000))
        assert 8 * (len(packet) - HEADER_BYTES) <= 8.9 * int((levels != 0).sum())
