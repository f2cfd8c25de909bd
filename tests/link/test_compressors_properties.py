"""What theorems need: contraction, unbiasedness, exactness of the round trip, bounded memory under error feedback."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laconic.layout import Layout
from laconic.link.compressors import Compressor, Qsgd, Uniform, decode, parse_compressor
from tests.link.test_compressors import ALL, compressed, draws, layout_of, normal

VECTORS = st.integers(1, 200).flatmap(
    lambda size: arrays(
        np.float64, size, elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    )
)
SHORT = settings(max_examples=60, deadline=None)


def relative_error(spelling: str, x: np.ndarray) -> tuple[float, float]:
    layout = layout_of(len(x))
    found = compressed(spelling, torch.from_numpy(x), layout).numpy()
    return float(np.square(found - x).sum()), float(np.square(x).sum())


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from(["range", "rice"]))
def test_top_k_contracts_by_its_share(x: np.ndarray, ratio: float, coding: str) -> None:
    error, norm = relative_error(f"top_k:{ratio},coding={coding}", x)
    kept = max(1, math.floor(ratio * len(x)))
    assert error <= (1 - kept / len(x)) * norm * (1 + 1e-12)


@SHORT
@given(VECTORS)
def test_sign_contracts_by_its_formula(x: np.ndarray) -> None:
    error, norm = relative_error("sign", x)
    # Squares of numbers below 1e-154 underflow in this sum, so there is nothing to compare there.
    assert error <= norm - np.abs(x).sum() ** 2 / len(x) + 1e-9 * norm + 1e-300


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from(["kept", "printed"]))
def test_heavy_sign_never_expands(x: np.ndarray, ratio: float, scale: str) -> None:
    error, norm = relative_error(f"heavy_sign:{ratio},scale={scale}", x)
    assert error <= norm * (1 + 1e-12)


@SHORT
@given(VECTORS, st.sampled_from([0.1, 0.5]))
def test_plain_random_k_never_expands(x: np.ndarray, ratio: float) -> None:
    error, norm = relative_error(f"random_k:{ratio},unbiased=false", x)
    assert error <= norm * (1 + 1e-12)


@SHORT
@given(VECTORS, st.integers(2, 12), st.booleans())
def test_quantisers_err_by_less_than_a_step(x: np.ndarray, bits: int, nearest: bool) -> None:
    layout = layout_of(len(x))
    vector = torch.from_numpy(x)
    grid = compressed(Uniform(bits=bits, rounding="nearest" if nearest else "stochastic"), vector, layout).numpy()
    step = (x.max() - x.min()) / (2**bits - 1)
    assert np.abs(grid - x).max() <= step * (0.5 if nearest else 1) * (1 + 1e-6) + 1e-9 * np.abs(x).max()
    found = compressed(Qsgd(bits=bits, norm="max"), vector, layout).numpy()
    assert np.abs(found - x).max() <= np.abs(x).max() / (2 ** (bits - 1) - 1) * (1 + 1e-9)


@SHORT
@given(VECTORS, st.sampled_from([0.01, 0.1, 0.5]))
def test_top_k_is_idempotent(x: np.ndarray, ratio: float) -> None:
    layout = layout_of(len(x))
    once = compressed(f"top_k:{ratio}", torch.from_numpy(x), layout)
    assert torch.equal(compressed(f"top_k:{ratio}", once, layout), once)


@pytest.mark.parametrize(
    "spelling", ["cast:float16", "cast:bfloat16", "top_k:0.3", "sign", "heavy_sign:0.3", "top_k:0.1+sign"]
)
def test_what_was_sent_can_be_sent_again_exactly(spelling: str) -> None:
    """The result of a cast, of top_k and of signs is a fixed point, up to the rounding of the scale."""
    layout = layout_of(64, 9, dtype=torch.float32)
    once = compressed(spelling, normal(layout), layout)
    torch.testing.assert_close(compressed(spelling, once, layout), once, rtol=1e-6, atol=0)


@SHORT
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([torch.float32, torch.float64]))
def test_the_round_trip_is_the_plain_definition_bit_for_bit(size: int, seed: int, dtype: torch.dtype) -> None:
    layout = layout_of(size, dtype=dtype)
    vector = normal(layout, seed)
    x = vector.numpy()
    kind = x.dtype.type
    given_draws = draws().random(size, kind)
    kept = np.sort(np.lexsort((np.arange(size), -np.abs(x)))[: max(1, size // 10)])
    top = np.zeros_like(x)
    top[kept] = x[kept]
    scale = kind(float(np.abs(x).sum()) / size)
    length = kind(math.sqrt(float(np.square(x.astype(np.float64)).sum())) / 8)
    levels = np.minimum(np.floor(np.abs(x) / length + given_draws), 8)
    low, step = x.min(), kind((float(x.max()) - float(x.min())) / 255)
    grid = np.minimum(np.floor((x - low) / step + given_draws), 255) if step else np.zeros_like(x)
    for spelling, expected in {
        "dense": x,
        "top_k:0.1": top,
        "top_k:0.1,coding=rice": top,
        "sign": np.where(x >= 0, scale, -scale),
        "qsgd:4": np.copysign(levels, x) * length,
        "uniform:8": grid * step + low,
        "cast:float16": vector.half().to(dtype).numpy(),
    }.items():
        found = compressed(spelling, vector, layout).numpy()
        assert np.array_equal(found, expected), spelling


@pytest.mark.parametrize(
    "spelling", ["qsgd:4", "qsgd:1", "qsgd:4,norm=max", "qsgd:2,norm=max", "uniform:4", "uniform:1"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantisers_are_unbiased(spelling: str, dtype: torch.dtype) -> None:
    """The mean of 2000 draws is within 5.5 standard errors of x in all of 24 entries: 1e-6 that a right one fails."""
    layout = layout_of(24, dtype=dtype)
    vector = normal(layout)
    compressor, generator = parse_compressor(spelling), draws(1)
    found = np.stack(
        [decode(compressor.encode(vector, layout, generator), layout).dense().numpy() for _ in range(2000)]
    )
    error = found.mean(0, dtype=np.float64) - vector.numpy()
    allowed = 5.5 * found.std(0, dtype=np.float64) / math.sqrt(2000) + 1e-6
    assert (np.abs(error) <= allowed).all()


@pytest.mark.parametrize("spelling", ["random_k:0.1", "random_k:0.7", "random_k:0.25@layer", "random_k:0.25+qsgd:4"])
def test_random_k_is_unbiased(spelling: str) -> None:
    """Each entry is there with probability k/d: 3000 draws, 5.5 standard errors, 40 entries: 2e-6 that a right one fails."""
    layout = layout_of(30, 10)
    vector = normal(layout).abs() + 1
    compressor, generator = parse_compressor(spelling), draws(2)
    found = np.stack(
        [decode(compressor.encode(vector, layout, generator), layout).dense().numpy() for _ in range(3000)]
    )
    allowed = 5.5 * found.std(0) / math.sqrt(3000) + 1e-9
    assert (np.abs(found.mean(0) - vector.numpy()) <= allowed).all()


def memory_norms(compressor: Compressor, layout: Layout, rounds: int) -> list[float]:
    """x = u + m; send C(x); m = x - decoded, for a constant u of length 1."""
    update = normal(layout)
    update /= update.norm()
    memory, generator, norms = torch.zeros_like(update), draws(), []
    for _ in range(rounds):
        corrected = update + memory
        memory = corrected - decode(compressor.encode(corrected, layout, generator), layout).dense()
        norms.append(float(memory.norm()))
    return norms


@pytest.mark.parametrize(
    "spelling", [s for s in ALL if s not in ("uniform:1", "top_k:1/64")] + ["top_k:0.05", "qsgd:4,norm=max"]
)
def test_error_feedback_keeps_memory_bounded(spelling: str) -> None:
    """500 rounds of a constant vector; at the end memory is no larger than it was on the way, up to its fluctuation."""
    compressor = parse_compressor(spelling).scaled_for_feedback()
    norms = memory_norms(compressor, layout_of(60, 0, 3, 40, dtype=torch.float32), 500)
    assert max(norms[300:]) <= 1.5 * max(norms[:300]) + 1e-6
    assert max(norms) < 60


def test_without_the_scale_l2_qsgd_explodes_under_feedback() -> None:
    layout = layout_of(400, dtype=torch.float32)
    assert memory_norms(Qsgd(bits=2), layout, 200)[-1] > 1e5
    assert max(memory_norms(Qsgd(bits=2).scaled_for_feedback(), layout, 500)) < 60
