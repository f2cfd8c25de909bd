"""The errors of compressors by their formulas: exactly where C is not random, else in expectation.

Errors of quantizers are known exactly: an entry that lies a share f above the lower of its two points goes up with
probability f, independently of the others. So the mean and the variance of ||C(x) - x||^2 follow from x alone, and a mean
over draws can be held against them with a true error probability (Bernstein's inequality); of random_k the range is known
(Hoeffding's).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from laconic.algorithms.uplinks.compressed import Compressed
from laconic.compression import QSGD, Compressor, Uniform, decode_body, parse_compressor
from laconic.core.errors import ConfigError
from tests.compression.test_compressors import compressed, draws, layout_of, normal

VECTORS = st.integers(1, 200).flatmap(
    lambda size: arrays(
        np.float64, size, elements=st.floats(-1e6, 1e6, allow_subnormal=False) | st.sampled_from([0.0, 1.0])
    )
)
SHORT = settings(max_examples=40, deadline=None)
CHANCE = 1e-6
"""That a right compressor fails one of the statistical tests here."""


@SHORT
@given(VECTORS, st.integers(0, 50), st.sampled_from([0.01, 0.1, 0.5, 1.0]), st.sampled_from(["kept", "printed"]))
def test_heavy_sign_contracts_by_its_formula(x: np.ndarray, first: int, ratio: float, scale: str) -> None:
    """q^2 = 1 - ||C_k(x)||_1^2 / (k ||x||^2) in every group, exactly; as printed, with 1/d: 1 - (2 - k/d) ||.||_1^2 / d."""
    sizes = [size for size in (min(first, len(x) - 1), len(x) - min(first, len(x) - 1)) if size]
    layout = layout_of(*sizes)
    found = compressed(f"heavy_sign:{ratio},scale={scale}@layer", torch.from_numpy(x), layout).numpy()
    for size, part in zip(sizes, np.split(np.arange(len(x)), np.cumsum(sizes)[:-1]), strict=True):
        kept = max(1, math.floor(ratio * size))
        total = np.sort(np.abs(x[part]))[-kept:].sum()
        gain = total**2 / kept if scale == "kept" else (2 - kept / size) * total**2 / size
        norm = np.square(x[part]).sum()
        # Squares of numbers below 1e-154 underflow in these sums, so there is nothing to compare there.
        assert abs(np.square(found[part] - x[part]).sum() - (norm - gain)) <= 1e-9 * norm + 1e-300


@dataclass(frozen=True)
class Errors:
    """||C - target||^2, where C is `values` >= 0, each rounded at random to a multiple of `step` next to it."""

    values: np.ndarray
    step: float
    target: np.ndarray
    divisor: float = 1.0
    """By which C is divided after rounding."""

    @property
    def share(self) -> np.ndarray:
        """The probability to go up."""
        return (self.values / self.step) % 1 if self.step else np.zeros_like(self.values)

    @property
    def outcomes(self) -> tuple[np.ndarray, np.ndarray]:
        """Every entry's squared error when it goes down, and when it goes up."""
        low = self.values - self.share * self.step
        return np.square(low / self.divisor - self.target), np.square((low + self.step) / self.divisor - self.target)

    @property
    def mean(self) -> float:
        low, high = self.outcomes
        return float(((1 - self.share) * low + self.share * high).sum())

    @property
    def variance(self) -> float:
        low, high = self.outcomes
        return float((self.share * (1 - self.share) * np.square(high - low)).sum())

    @property
    def reach(self) -> float:
        """How far one entry's squared error may be from its mean."""
        low, high = self.outcomes
        return float(np.abs(high - low).max())


def bernstein(each: list[Errors]) -> float:
    """How far the mean over draws of these may be from the mean of their expectations, but for a chance of `CHANCE`."""
    limit = math.log(2 / CHANCE)
    variance, reach = sum(errors.variance for errors in each), max(errors.reach for errors in each)
    return (math.sqrt(2 * variance * limit) + 2 * reach * limit / 3) / len(each)


def errors_of(compressor: Compressor, x: np.ndarray) -> Errors:
    """By the definitions of algorithms.md."""
    size = np.abs(x)
    if isinstance(compressor, Uniform):
        return Errors(x - x.min(), (x.max() - x.min()) / (2**compressor.bits - 1), x - x.min())
    assert isinstance(compressor, QSGD)
    levels = 2 ** (compressor.bits - 1) - (compressor.norm == "max")
    if compressor.norm == "l2":
        divisor = 1 + min(len(x) / levels**2, math.sqrt(len(x)) / levels)
        return Errors(size, np.linalg.norm(x) / levels, size, divisor if compressor.damped else 1.0)
    divisor = size.max() * size.sum() / np.square(x).sum() if compressor.damped and levels == 1 else 1.0
    return Errors(size, size.max() / levels, size, divisor)


def squared_errors(compressor: Compressor, x: np.ndarray, number: int, seed: int, dtype: torch.dtype) -> np.ndarray:
    layout, generator = layout_of(len(x), dtype=dtype), draws(seed)
    vector = torch.from_numpy(x).to(dtype)
    decoded = (
        decode_body(compressor.encode(vector, layout, generator), layout).dense().double() for _ in range(number)
    )
    return np.array([np.square(each.numpy() - x).sum() for each in decoded])


QUANTIZERS = ["qsgd:1", "qsgd:4", "qsgd:12", "qsgd:2,norm=max", "qsgd:4,norm=max", "uniform:1", "uniform:4"]


@SHORT
@given(VECTORS, st.sampled_from(QUANTIZERS))
def test_omega_bounds_the_variance_of_every_vector(x: np.ndarray, spelling: str) -> None:
    """E||Q(x) - x||^2 <= omega ||x||^2, with the left side by its formula."""
    x = x + (0 if np.square(x).sum() > 1e-200 else 1)
    compressor = parse_compressor(spelling)
    assert errors_of(compressor, x).mean <= compressor.omega(len(x)) * np.square(x).sum() * (1 + 1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spelling", QUANTIZERS)
def test_quantizers_have_the_variance_of_their_formula(spelling: str, dtype: torch.dtype) -> None:
    """The mean of ||Q(x) - x||^2 over 1500 draws, from both sides: a chance of `CHANCE` that a right one fails."""
    compressor, x = parse_compressor(spelling), normal(layout_of(60, dtype=torch.float32)).double().numpy()
    errors = errors_of(compressor, x)
    found = squared_errors(compressor, x, 1500, 3, dtype)
    # float32 draws have 24 bits, and so have the steps.
    allowed = bernstein([errors] * 1500)
    assert abs(found.mean() - errors.mean) <= allowed + 1e-5 * errors.mean
    assert allowed < 0.2 * errors.mean, "a test that lets everything pass shows nothing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spelling", ["qsgd:1", "qsgd:2", "qsgd:4", "qsgd:2,norm=max"])
def test_damped_qsgd_contracts_in_expectation(spelling: str, dtype: torch.dtype) -> None:
    """E||C(x) - x||^2 <= (1 - 1/(1 + omega)) ||x||^2 for C = Q/(1 + omega): by its formula, and in 1500 draws."""
    compressor = parse_compressor(spelling).scaled_for_feedback()
    assert isinstance(compressor, QSGD) and compressor.damped
    x = normal(layout_of(60, dtype=torch.float32)).double().numpy()
    errors = errors_of(compressor, x)
    assert errors.mean <= (1 - 1 / errors.divisor) * np.square(x).sum() * (1 + 1e-9)
    found = squared_errors(compressor, x, 1500, 4, dtype)
    allowed = bernstein([errors] * 1500)
    assert abs(found.mean() - errors.mean) <= allowed + 1e-5 * errors.mean
    assert allowed < 0.05 * np.square(x).sum()


@SHORT
@given(VECTORS, st.integers(2, 8), st.sampled_from(["stochastic", "nearest", "authors"]), st.data())
def test_grids_contract_in_the_maximum_norm_as_far_as_their_noise_lets_them(
    x: np.ndarray, bits: int, rounding: Literal["stochastic", "nearest", "authors"], data: st.DataObject
) -> None:
    """Error feedback takes a grid that is moved by chance only if it cannot move out of sight of x."""
    most = 2 ** (bits - 1) - 2
    noise = data.draw(st.integers(0, most))
    compressor = Uniform(bits=bits, rounding=rounding, zero_point_noise=noise)
    assert compressor.contractive
    # The grid's scale is a float32, which has no smaller numbers.
    x = x + (0 if np.abs(x).max() > 1e-37 else 1)
    found = compressed(compressor, torch.from_numpy(x), layout_of(len(x))).numpy()
    if rounding != "authors" or noise < most - 1:  # the authors' grid may miss the ends by half a step more
        assert np.abs(found - x).max() < np.abs(x).max()
    assert not compressor.replace(zero_point_noise=most + 1).contractive
    chain = f"random_k:0.3+uniform:{bits},zero_point_noise={most + 1}"
    with pytest.raises(ConfigError, match="not contractive"):
        Compressed(parse_compressor(chain), memory=True)


def hoeffding(squares: np.ndarray, kept: int, coefficient: float, number: int) -> float:
    """For a mean of `coefficient` times the sum of `kept` of the squares, whichever they are."""
    ordered = np.sort(squares)
    reach = abs(coefficient) * (ordered[-kept:].sum() - ordered[:kept].sum())
    return float(reach * math.sqrt(math.log(2 / CHANCE) / (2 * number)))


@pytest.mark.parametrize("ratio", [0.1, 0.3, 0.7])
def test_random_k_has_the_error_of_its_formula(ratio: float) -> None:
    """E||Q(x) - x||^2 = (d/k - 1) ||x||^2 unbiased, and (1 - k/d) ||x||^2 as error feedback takes it."""
    size, number = 50, 1500
    x = normal(layout_of(size)).numpy()
    squares, kept = np.square(x), math.floor(ratio * size)
    compressor = parse_compressor(f"random_k:{ratio}")
    omega = compressor.omega(size)
    assert omega == size / kept - 1
    found = squared_errors(compressor, x, number, 5, torch.float64).mean()
    assert abs(found - omega * squares.sum()) <= hoeffding(squares, kept, omega**2 - 1, number) + 1e-9
    plain = squared_errors(compressor.scaled_for_feedback(), x, number, 6, torch.float64).mean()
    assert abs(plain - (1 - kept / size) * squares.sum()) <= hoeffding(squares, kept, 1, number) + 1e-9
    assert hoeffding(squares, kept, 1, number) < 0.1 * squares.sum()


@pytest.mark.parametrize(("spelling", "levels"), [("random_k:0.2+qsgd:2,norm=l2", 2), ("random_k:0.2+qsgd:2", 1)])
def test_the_variances_of_a_chain_compound(spelling: str, levels: int) -> None:
    """E||Q(x) - x||^2 <= ((1 + omega_1)(1 + omega_2) - 1) ||x||^2.

    Given the positions of random_k, the error is that of the quantizer, by its formula; over positions, random_k's own
    is in the test above, and the quantizer adds at most omega_2 times the square of what it was given.
    """
    size, number, factor = 50, 1000, 5
    layout, generator = layout_of(size), draws(7)
    x = normal(layout).numpy()
    compressor = parse_compressor(spelling)
    second = min(size / levels**2, math.sqrt(size) / levels)
    assert compressor.omega(size) == factor * (1 + second) - 1
    found, expected = [], []
    for _ in range(number):
        payload = decode_body(compressor.encode(torch.from_numpy(x), layout, generator), layout)
        left_out = np.ones(size, dtype=bool)
        left_out[payload.positions.numpy()] = False
        kept = np.abs(x[~left_out])
        length = np.linalg.norm(kept) if "l2" in spelling else kept.max()
        errors = Errors(factor * kept, factor * length / levels, kept)
        assert errors.mean <= np.square((factor - 1) * kept).sum() + second * np.square(factor * kept).sum()
        expected.append(errors)
        found.append(np.square(payload.dense().numpy() - x).sum() - np.square(x[left_out]).sum())
    own = np.mean([np.square((factor - 1) * errors.target).sum() for errors in expected])
    of_both = np.mean([errors.mean for errors in expected])
    assert abs(np.mean(found) - of_both) <= bernstein(expected)
    assert bernstein(expected) < 0.5 * (of_both - own), "what the quantizer adds must be seen"
