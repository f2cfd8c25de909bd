"""Edges of the number line: every compressor within its own bound on zero, constant, denormal and huge vectors."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from laconic.compression import (
    QSGD,
    Cast,
    Chain,
    Compressor,
    DeadZone,
    Eden,
    GroupedCompressor,
    HeavySign,
    Natural,
    RandomK,
    Sign,
    Stochastic,
    TopK,
    Uniform,
    decode_body,
)
from laconic.core.layout import Layout
from tests.compression.test_compressors import ALL, compressed, draws, layout_of, normal
from tests.oracles import compressors as oracle


def edges(layout: Layout) -> dict[str, Tensor]:
    info = torch.finfo(layout.dtype)
    most, least = info.max, info.smallest_normal * info.eps
    signs = torch.from_numpy(draws().choice([-1.0, 1.0], layout.size)).to(layout.dtype)
    return {
        "zero": torch.zeros(layout.size, dtype=layout.dtype),
        "constant": torch.full((layout.size,), 0.1, dtype=layout.dtype),
        "largest": signs * most,
        "huge": most * normal(layout).clamp(-1, 1),
        "smallest": signs * least,
        "denormal": least * (normal(layout) * 5).round(),
        "nearly denormal": normal(layout) * info.smallest_normal,
        "one entry": torch.nn.functional.one_hot(torch.tensor(layout.size // 2), layout.size).to(layout.dtype) * -3,
    }


def allowed(values: Compressor, x: np.ndarray, least: float, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """What one group's values should be, and by how much each may miss that; in extended precision."""
    size = np.abs(x)
    rounding = 8 * eps * size.max(initial=0) + 2 * least
    if eps < 1e-12:
        # A step is computed in doubles, so a double's own step may be wrong by `least`, at every level.
        rounding += 2 ** getattr(values, "bits", 0) * least
    match values:
        case Sign() | HeavySign():
            mean = (size / len(x)).sum()
            return np.where(x >= 0, mean, -mean), np.full_like(x, rounding)
        case Cast():
            half = torch.finfo(getattr(torch, values.kind))
            expected = np.clip(x, -half.max, half.max)
            return expected, np.abs(expected) * half.eps / 2 * (1 + 1e-6) + half.smallest_normal * half.eps + least
        case DeadZone():
            # At most 2 t / 3 above t, and three eighths below the larger ones.
            return x, size * (2 / 3 + 1e-6) + rounding
        case Natural():
            return x, size * (1 + 1e-6)
        case Eden():
            # ||C(x) - x||^2 is at most (d - 1) ||x||^2.
            return x, np.full_like(x, np.sqrt(len(x)) * (np.sqrt(np.square(x).sum()) + len(x) * rounding))
        case QSGD():
            length = size.max() if values.norm == "max" else np.sqrt(np.square(x).sum())
            # A norm above the largest double is taken for infinite, and the step is then the largest number there is.
            step = length / values.levels if length <= np.finfo(np.float64).max else np.finfo(np.float64).max
            return x, np.full_like(x, step + rounding)
        case Uniform():
            share = {"stochastic": 1.0, "nearest": 0.5, "authors": 1.5}[values.rounding] + values.zero_point_noise
            # A grid among the smallest numbers has whole multiples of `least` for its step.
            step = (x.max() - x.min()) / (2**values.bits - 1) + least
            return x, np.full_like(x, share * step + rounding * (1 + values.zero_point_noise))
    return x, np.zeros_like(x)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest", "authors"])
@pytest.mark.parametrize("value", [0.0, 3e-24, -0.1, 1e30])
def test_a_grid_keeps_equal_values_exactly(rounding: Literal["stochastic", "nearest", "authors"], value: float) -> None:
    """Also in the authors' rounding, whose grid of equal values has steps of 0.001: x + 0.004 - 0.004 may be 0."""
    vector = torch.full((3,), value, dtype=torch.float64)
    assert torch.equal(compressed(Uniform(bits=3, rounding=rounding), vector, layout_of(3)), vector)


@pytest.mark.parametrize("spelling", ALL)
@pytest.mark.parametrize("by", ["@model", "@layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_of_the_number_line(spelling: str, by: str, dtype: torch.dtype) -> None:
    """Zero, constant, denormal and huge vectors, with empty layers and one-element ones: within each one's own bound."""
    check_edges(spelling, by, dtype)


@pytest.mark.parametrize(
    "spelling",
    [
        "sign",
        "heavy_sign:0.05",
        "heavy_sign:0.3",
        "top_k:0.1+sign",
        "uniform:1",
        "uniform:8",
        "uniform:8,rounding=nearest",
        "top_k:0.3+uniform:12",
        "random_k:0.3,unbiased=false+uniform:4",
    ],
)
@pytest.mark.parametrize("by", ["@model", "@layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constant_vectors_arrive_exactly(spelling: str, by: str, dtype: torch.dtype) -> None:
    """A grid of no width is its one point. A mean of equal numbers is that number, where their sum is not rounded."""
    compressor, info = GroupedCompressor.parse(spelling + by), torch.finfo(dtype)
    layout = layout_of(40, 0, 1, 23, dtype=dtype)
    constants = [0.5, -3.0, 0.0, info.smallest_normal * info.eps, -info.smallest_normal, 2.0**100]
    if "uniform" in spelling:
        constants += [0.1, -1 / 3, info.max, -info.max]
    for constant in constants:
        vector = torch.full((layout.size,), constant, dtype=dtype)
        payload = decode_body(compressor.encode(vector, layout, draws()), layout)
        found, where = payload.dense(), payload.positions
        sent = found if where is None else found[where]
        assert torch.equal(sent, torch.full_like(sent, constant)), constant
        assert int(found.count_nonzero()) == (len(sent) if constant else 0)


def check_edges(spelling: str, by: str, dtype: torch.dtype) -> None:
    grouped = GroupedCompressor.parse(spelling + by)
    compressor = grouped.compressor
    first = compressor.first if isinstance(compressor, Chain) else compressor
    second = compressor.second if isinstance(compressor, Chain) else compressor
    info = torch.finfo(dtype)
    least = info.smallest_normal * info.eps
    for sizes in ((40, 0, 1, 23), (1,), (0, 2, 0)):
        layout = layout_of(*sizes, dtype=dtype)
        for name, vector in edges(layout).items():
            payload = decode_body(grouped.encode(vector, layout, draws()), layout)
            found = payload.dense()
            assert bool(torch.isfinite(found).all())
            if name == "zero":
                assert not found.any()
            found, x = found.numpy().astype(np.longdouble), vector.numpy().astype(np.longdouble)
            sent = np.ones(layout.size, dtype=bool)
            if payload.positions is not None:
                sent[:] = False
                sent[payload.positions.numpy()] = True
            assert not found[~sent].any()
            start = 0
            for size in [layout.size] if by == "@model" else [size for size in sizes if size]:
                part, start = slice(start, start + size), start + size
                kept = np.flatnonzero(sent[part])
                values, factor = x[part][kept], np.longdouble(1)
                if isinstance(first, TopK | HeavySign):
                    assert kept.tolist() == oracle.kept_positions(x[part], first.ratio)
                elif isinstance(first, RandomK):
                    assert len(kept) == max(1, int(first.ratio * size))
                    factor = np.longdouble(size) / len(kept) if first.unbiased else factor
                elif isinstance(first, DeadZone):
                    largest = oracle.kept_positions(x[part], first.kept(size) / size)
                    assert kept.tolist() == [index for index in largest if x[part][index]]
                elif not isinstance(first, Stochastic):
                    assert len(kept) == size
                values = np.clip(values * factor, -info.max, info.max)
                expected, error = allowed(second, values, least, info.eps)
                if isinstance(second, HeavySign) and second.scale == "printed":
                    expected = expected * len(kept) / size
                if isinstance(second, Stochastic):
                    error = error + np.abs(x[part]).sum() + least  # one step, which is at most the sum
                if factor != 1:
                    error = error + info.eps * np.abs(values) + least
                assert (np.abs(found[part][kept] - expected) <= error).all(), (sizes, name)
