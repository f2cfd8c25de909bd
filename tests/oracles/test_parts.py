"""The oracles' compressors and optimizers against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from . import compressors, optimizers
from .compressors import drawn, fixed, qsgd, sign, top_k
from .links import ErrorFeedback
from .problem import Vector

SIZE = 8
LAYERS = [(0, 5), (5, 3)]


def uniform_draws(round: int, client: int) -> Vector:
    return np.random.default_rng((7, round, client + 1)).random(SIZE)


def test_top_k_prefers_the_lower_index() -> None:
    x = np.array([1.0, -3.0, 3.0, 0.5, -3.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(top_k(x, 0.25), [0, -3, 3, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(top_k(x, 0.01), [0, -3, 0, 0, 0, 0, 0, 0])
    by_layer = fixed(lambda part: top_k(part, 0.2), LAYERS)(0, 0, x)
    np.testing.assert_array_equal(by_layer, [0, -3, 0, 0, 0, 1, 0, 0])


def test_sign_and_heavy_sign_by_hand() -> None:
    x = np.array([4.0, -2.0, 0.0, 2.0])
    np.testing.assert_array_equal(sign(x), [2, -2, 2, 2])
    np.testing.assert_array_equal(compressors.heavy_sign(x, 0.5), [3, -3, 0, 0])
    np.testing.assert_array_equal(compressors.heavy_sign(x, 0.5, printed_scale=True), [1.5, -1.5, 0, 0])


def test_levels_on_a_budget_by_hand() -> None:
    x = np.array([8.0, -1.0, 0.5, 0.0, 2.5])
    # With 2 of 5 entries and 8 above the step: 1 + 4 / step = 2. Levels 2, 0.25, 0.125, 0 and 0.625 before the draw.
    assert compressors.stochastic_step(x, 2) == pytest.approx(4)
    found = compressors.stochastic(x, 0.4, np.array([0.9, 0.8, 0.8, 0.9, 0.3]))
    np.testing.assert_allclose(found, [8, -4, 0, 0, 0])
    # t = 2.5, so the step is 25 / 6: floor(8 * 6 / 25 + 0.4) = 2 and floor(0.6 + 0.4) = 1.
    np.testing.assert_allclose(compressors.dead_zone(x, 2), [25 / 3, 0, 0, 0, 25 / 6])
    np.testing.assert_allclose(compressors.dead_zone(np.zeros(3), 2), np.zeros(3))


def test_natural_by_hand() -> None:
    x = np.array([3.0, 3.0, -0.3, 8.0, 0.0, -1.75])
    # 3 = 1.5 * 2 is rounded up by draws from 1/2 on, 0.3 = 1.2 * 0.25 from 0.8 on, and 1.75 from 1/4 on; 8 never is.
    found = compressors.natural(x, np.array([0.49, 0.5, 0.81, 0.999, 0.9, 0.24]))
    np.testing.assert_array_equal(found, [2, 4, -0.5, 8, 0, -1])


def test_eden_by_hand() -> None:
    x, plus = np.array([3.0, 1.0]), np.ones(2)
    # H x = (4, 2) / sqrt(2), reversed (2, 4) / sqrt(2), H of that (3, -1): S = 10 / 4, and (S, -S) rotated back is (S, S).
    np.testing.assert_allclose(compressors.eden(x, plus, plus), [2.5, 2.5])
    np.testing.assert_allclose(compressors.eden(x, plus, plus, nearest=True), [2, 2])
    H = compressors.transform(7)
    np.testing.assert_allclose(H @ H, np.eye(7), atol=1e-15)
    assert np.count_nonzero(H) == 16 + 4 + 1


def test_half_precision_is_that_of_ieee() -> None:
    exponents = np.random.default_rng(5).uniform(-10, 6, 2000)
    x = (-1.0) ** np.arange(2000) * 10**exponents
    ours = compressors.cast(x, 11, -24, 65504.0)
    np.testing.assert_array_equal(ours, np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64))
    # 8 significant bits: 257 lies between 256 and 258, halves go to the even one; the largest bfloat16 ends the line.
    largest = (2 - 2**-7) * 2.0**127
    np.testing.assert_array_equal(
        compressors.cast(np.array([257.0, 259.0, 1e39]), 8, -133, largest), [256, 260, largest]
    )


def test_chain_quantizes_the_kept_values() -> None:
    x = np.array([0.0, 4.0, -3.0, 1.0])
    # s = 2^(3-1) - 1 = 3 levels of 4: 4 is level 3; 3 is 2.25, so a draw of 0.8 rounds it up and 0.7 down.
    up = compressors.top_k_qsgd(x, 0.5, 3, np.array([0.0, 0.8, 0.0, 0.0]))
    down = compressors.top_k_qsgd(x, 0.5, 3, np.array([0.0, 0.7, 0.0, 0.0]))
    np.testing.assert_allclose(up, [0, 4, -4, 0])
    np.testing.assert_allclose(down, [0, 4, -8 / 3, 0])


@pytest.mark.parametrize(
    "compress",
    [
        lambda x, r: qsgd(x, 2, "l2", r),
        lambda x, r: qsgd(x, 4, "max", r),
        lambda x, r: compressors.uniform(x, 3, r),
        compressors.natural,
    ],
)
def test_stochastic_rounding_is_unbiased(compress: Callable[[Vector, Vector], Vector]) -> None:
    x = np.random.default_rng(3).normal(size=SIZE)
    grid = (np.arange(4000) + 0.5) / 4000
    average = np.mean([compress(x, np.full(SIZE, r)) for r in grid], axis=0)
    np.testing.assert_allclose(average, x, atol=2e-3)
    zero = np.zeros(SIZE)
    np.testing.assert_array_equal(compress(zero, np.full(SIZE, 0.9)), zero)


def test_uniform_grids() -> None:
    x = np.array([0.0, 0.9, 1.6, 3.0])
    np.testing.assert_allclose(compressors.uniform(x, 2, None), [0, 1, 2, 3])
    np.testing.assert_allclose(compressors.uniform(x, 2, np.array([0.9, 0.05, 0.3, 0.9])), [0, 0, 1, 3])
    wide = np.random.default_rng(4).normal(size=50)
    step = (wide.max() - wide.min()) / 255
    assert np.abs(compressors.uniform(wide, 8, None) - wide).max() <= step / 2 * (1 + 1e-9)
    # The published quantizer has a whole zero point, so the largest value may be cut by up to one step.
    assert np.abs(compressors.uniform_authors(wide) - wide).max() <= 1.5 * step * (1 + 1e-9)


def test_random_k_averages_to_the_vector() -> None:
    x = np.arange(1.0, 5.0)
    singles = [compressors.random_k(x, np.array([index]), unbiased=True) for index in range(4)]
    np.testing.assert_allclose(np.mean(singles, axis=0), x)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_damped_qsgd_keeps_the_memory_bounded(bits: int) -> None:
    link = ErrorFeedback(drawn(lambda x, r: compressors.qsgd_damped(x, bits, r), uniform_draws))
    u = np.random.default_rng(2).normal(size=SIZE)
    for t in range(500):
        link.send(t, 0, u)
    assert np.linalg.norm(link.memory[0]) < 100 * np.linalg.norm(u)


def test_first_steps_by_hand() -> None:
    y = np.array([0.2, -0.1])
    settings = (0.5, 0.9, 0.99, 1e-3)
    m, v = 0.1 * y, 0.01 * y**2
    np.testing.assert_allclose(optimizers.Adam(*settings).increment(y), 0.5 * m / (np.sqrt(v) + 1e-3))
    np.testing.assert_allclose(optimizers.AMSGrad(*settings).increment(y), 0.5 * m / (np.sqrt(v) + 1e-3))
    np.testing.assert_allclose(optimizers.Yogi(*settings).increment(y), 0.5 * m / (np.sqrt(v) + 1e-3))
    np.testing.assert_allclose(optimizers.AMS(*settings).increment(y), 0.5 * m / np.sqrt([1e-3, 1e-3]))
    inside = optimizers.FedEFAMSGrad(*settings).increment(y)
    np.testing.assert_allclose(inside, 0.5 * m / np.sqrt(v + 1e-3))
    adagrad = optimizers.Adagrad(0.5, 0.9, 1e-3)
    np.testing.assert_allclose(adagrad.increment(y), 0.5 * m / (np.abs(y) + 1e-3))
    heavy_ball = optimizers.SGD(0.5, momentum=0.9)
    heavy_ball.increment(y)
    np.testing.assert_allclose(heavy_ball.increment(y), 0.5 * 1.9 * y)


def test_bias_correction_only_rescales_the_steps_of_ams() -> None:
    plain = optimizers.AMS()
    corrected = optimizers.AMS(bias_correction=True)
    generator = np.random.default_rng(6)
    for t in range(1, 30):
        y = generator.normal(size=SIZE)
        factor = math.sqrt(1 - 0.99**t) / (1 - 0.9**t)
        np.testing.assert_allclose(corrected.increment(y), factor * plain.increment(y))
