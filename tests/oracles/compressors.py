"""Compressors, coordinate by coordinate. Each function compresses one group (the whole model, or one layer).

Stochastic ones get their uniform draws in [0, 1), one per coordinate. Stochastic rounding of a >= 0 with draw
r is floor(a + r): it is floor(a) + 1 exactly when r >= 1 - (a - floor(a)), so with probability a - floor(a).
`fixed` and `drawn` apply a function to every group of a vector and give it the form that the links call.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .problem import Indices, Vector

Compress = Callable[[int, int, Vector], Vector]
"""compress(round, client, x); the server's own messages have client -1."""
Groups = list[tuple[int, int]]
"""(offset, size) of every group."""


def dense(x: Vector) -> Vector:
    return x.copy()


def kept_positions(x: Vector, ratio: float) -> list[int]:
    """The k = max(1, floor(ratio d)) largest magnitudes; among equals the lower index wins."""
    k = max(1, math.floor(ratio * len(x)))
    order = sorted(range(len(x)), key=lambda index: (-abs(x[index]), index))
    return sorted(order[:k])


def top_k(x: Vector, ratio: float) -> Vector:
    result = np.zeros_like(x)
    for index in kept_positions(x, ratio):
        result[index] = x[index]
    return result


def sign(x: Vector) -> Vector:
    """mean(|x|) sign(x), with sign(0) = +1."""
    scale = sum(abs(value) for value in x) / len(x)
    return np.array([scale if value >= 0 else -scale for value in x])


def heavy_sign(x: Vector, ratio: float, printed_scale: bool = False) -> Vector:
    """The signs of top_k; the scale is the mean magnitude of the kept, or as printed their sum over all d.

    A kept zero counts as +1, as in sign.
    """
    kept = kept_positions(x, ratio)
    scale = sum(abs(x[index]) for index in kept) / (len(x) if printed_scale else len(kept))
    result = np.zeros_like(x)
    for index in kept:
        result[index] = scale if x[index] >= 0 else -scale
    return result


def budget_count(size: int, budget: float) -> int:
    """k: a share of the entries if the budget is at most 1, else a count; at least 1, at most all."""
    return max(1, min(size, math.floor(budget * size) if budget <= 1 else round(budget)))


def stochastic_step(x: Vector, budget: float) -> float:
    """The step s with sum_j min(1, |x_j| / s) = k, found by bisection; at least max|x| / 2^14, 0 if x = 0."""
    k, high = budget_count(len(x), budget), max(abs(value) for value in x)
    if high == 0:
        return 0.0
    below, above = high / 2**14, float(sum(abs(value) for value in x)) + high
    for _ in range(200):
        step = (below + above) / 2
        if sum(min(1.0, abs(value) / step) for value in x) > k:
            below = step
        else:
            above = step
    return below


def stochastic(x: Vector, budget: float, draws: Vector) -> Vector:
    """step sign(x) floor(|x| / step + draw), with the step of `stochastic_step` (qsgd with a chosen count)."""
    step = stochastic_step(x, budget)
    result = np.zeros_like(x)
    for index in range(len(x) if step else 0):
        result[index] = math.copysign(step * math.floor(abs(x[index]) / step + draws[index]), x[index])
    return result


def dead_zone(x: Vector, budget: float) -> Vector:
    """Of the k largest, step sign(x) floor(|x| / step + 0.4), with step = t / 0.6 and t the smallest of them."""
    k = budget_count(len(x), budget)
    order = sorted(range(len(x)), key=lambda index: (-abs(x[index]), index))[:k]
    high = abs(x[order[0]])
    kept = [index for index in order if high and abs(x[index]) >= 0.6 * high / 2**14]
    result = np.zeros_like(x)
    if not kept:
        return result
    step = max(abs(x[kept[-1]]) / 0.6, high / 2**14)
    for index in kept:
        # The smallest one is at 1 exactly, which rounding may miss.
        result[index] = math.copysign(step * max(1, math.floor(abs(x[index]) / step + 0.4)), x[index])
    return result


def hadamard(size: int) -> NDArray[np.float64]:
    """Sylvester's matrix, orthonormal; the size is a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / math.sqrt(2)
    return matrix


def transform(size: int) -> NDArray[np.float64]:
    """One Hadamard matrix for every power of two in the size, the largest first, along the diagonal."""
    matrix, start = np.zeros((size, size)), 0
    while start < size:
        block = 2 ** int(math.log2(size - start))
        matrix[start : start + block, start : start + block] = hadamard(block)
        start += block
    return matrix


def eden(x: Vector, first: Vector, second: Vector, nearest: bool = False, sent: Vector | None = None) -> Vector:
    """R^T (S sign(R x)), R = H diag(second) J H diag(first), J the reversal; S = |x|^2 / <Rx, sign(Rx)>, or |Rx|_1 / d.

    DRIVE (Vargaftik et al. 2021) and EDEN (2022) at one bit, checked against the authors' code
    (github.com/amitport/DRIVE-One-bit-Distributed-Mean-Estimation, EDEN-Distributed-Mean-Estimation), which rotates with one
    transform of a padded vector. Two transforms and blocks are ours.

    Below one bit (EDEN, "sparsification"), only the entries with `sent` are, as z = (d/k) R x there and 0 elsewhere, or
    without d/k for the nearest: R^T (S sign(z)), S = |z|^2 / |z|_1, or |z|_1 / k.
    """
    H = transform(len(x))
    R = (H * second) @ H[::-1] * first
    sent = np.ones(len(x), dtype=bool) if sent is None else sent
    kept = np.where(sent, R @ x, 0.0) * (1.0 if nearest else len(x) / max(1, sent.sum()))
    signs = np.where(kept < 0, -1.0, 1.0) * sent
    total = float(kept @ signs)
    scale = total / max(1, sent.sum()) if nearest else float(kept @ kept) / (total or 1.0)
    return R.T @ (scale * signs)


def natural(x: Vector, draws: Vector) -> Vector:
    """sign(x) 2^e or sign(x) 2^(e+1) with 2^e <= |x| < 2^(e+1): the larger with probability |x| / 2^e - 1.

    Horvath et al., "Natural compression for distributed deep learning" (arXiv 1905.10988), equation (4).
    """
    result = np.zeros_like(x)
    for index, value in enumerate(x):
        if value:
            low = 2.0 ** math.floor(math.log2(abs(value)))
            up = draws[index] >= 1 - (abs(value) / low - 1)
            result[index] = math.copysign(2 * low if up else low, value)
    return result


def qsgd_levels(bits: int, norm: str) -> int:
    """s: 2^(bits-1) for the l2 norm (Fed-EF), 2^(bits-1) - 1 for the max norm."""
    return int(2 ** (bits - 1)) if norm == "l2" else int(2 ** (bits - 1)) - 1


def qsgd(x: Vector, bits: int, norm: str, draws: Vector) -> Vector:
    """Fed-EF, equation (2): norm(x) sign(x) level / s, level = floor(s |x| / norm(x) + draw), at most s."""
    s = qsgd_levels(bits, norm)
    if s < 1:
        raise ValueError("the max norm needs at least 2 bits: one is the sign")
    length = math.sqrt(sum(value**2 for value in x)) if norm == "l2" else max(abs(value) for value in x)
    result = np.zeros_like(x)
    if length == 0:
        return result
    for index in range(len(x)):
        # The largest magnitude plus a draw next to 1 can round up to s + 1 in floating point.
        level = min(s, math.floor(s * abs(x[index]) / length + draws[index]))
        result[index] = math.copysign(length * level / s, x[index])
    return result


def qsgd_omega(size: int, bits: int) -> float:
    """The variance of l2-qsgd: omega = min(d/s^2, sqrt(d)/s)."""
    s = qsgd_levels(bits, "l2")
    return min(size / s**2, math.sqrt(size) / s)


def qsgd_damped(x: Vector, bits: int, draws: Vector) -> Vector:
    """l2-qsgd as error feedback takes it: divided by 1 + omega, which makes it contractive."""
    return qsgd(x, bits, "l2", draws) / (1 + qsgd_omega(len(x), bits))


def uniform(x: Vector, bits: int, draws: Vector | None) -> Vector:
    """A grid of 2^bits points from min(x) to max(x).

    With draws the level is floor((x - min)/step + draw), unbiased; without, the nearest one (halves to even).
    """
    low, high = min(x), max(x)
    last = 2**bits - 1
    step = (high - low) / last
    result = np.full_like(x, low)
    if step == 0:
        return result
    for index in range(len(x)):
        position = (x[index] - low) / step
        level = round(position) if draws is None else math.floor(position + draws[index])
        result[index] = low + step * min(last, level)
    return result


def uniform_authors(x: Vector, bits: int = 8) -> Vector:
    """The quantizer published with FedCOMGATE: centered on the mean, whole zero point, nearest level."""
    lowest, highest = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    center = float(np.mean(x))
    scale = (max(x) - min(x)) / (highest - lowest)
    if scale == 0:
        scale = 0.001
    zero_point = int(min(max(lowest - (min(x) - center) / scale, lowest), highest))
    result = np.zeros_like(x)
    for index in range(len(x)):
        level = min(max(round(zero_point + (x[index] - center) / scale), lowest), highest)
        result[index] = scale * (level - zero_point) + center
    return result


def cast(x: Vector, bits: int, smallest: int, largest: float) -> Vector:
    """The nearest number of that many significant bits (halves to even), a whole multiple of 2^smallest.

    What is above the largest number becomes that. float16: 11 bits, -24, 65504; bfloat16: 8 bits, -133, (2 - 2^-7) 2^127.
    """
    result = np.zeros_like(x)
    for index in range(len(x)):
        value = min(max(x[index], -largest), largest)
        _, exponent = math.frexp(value)
        unit = 2.0 ** max(exponent - bits, smallest)
        result[index] = math.copysign(round(value / unit) * unit, value)
    return result


def random_k(x: Vector, positions: Indices, unbiased: bool) -> Vector:
    """The coordinates at the given positions, times d/k when unbiased; without that it is contractive."""
    factor = len(x) / len(positions) if unbiased else 1.0
    result = np.zeros_like(x)
    for index in positions:
        result[index] = factor * x[index]
    return result


def at_positions(x: Vector, positions: Indices, values: Vector) -> Vector:
    """A chain's second step done: these values at these positions of a vector like x, in order, and 0 elsewhere."""
    result = np.zeros_like(x)
    for place in range(len(positions)):
        result[positions[place]] = values[place]
    return result


def top_k_qsgd(x: Vector, ratio: float, bits: int, draws: Vector) -> Vector:
    """chain(top_k, qsgd max): qsgd acts on the k kept values in order of position, with the first k draws."""
    kept = kept_positions(x, ratio)
    values = qsgd(x[kept], bits, "max", draws[: len(kept)])
    result = np.zeros_like(x)
    for place in range(len(kept)):
        result[kept[place]] = values[place]
    return result


def fixed(compress: Callable[[Vector], Vector], groups: Groups | None = None) -> Compress:
    """A compressor without chance, over the whole model or by layer."""

    def apply(round: int, client: int, x: Vector) -> Vector:
        result = np.zeros_like(x)
        for offset, size in groups or [(0, len(x))]:
            result[offset : offset + size] = compress(x[offset : offset + size])
        return result

    return apply


def drawn(
    compress: Callable[[Vector, Vector], Vector],
    draws: Callable[[int, int], Vector],
    groups: Groups | None = None,
) -> Compress:
    """A stochastic compressor; draws(round, client) holds one draw per coordinate of the whole vector."""

    def apply(round: int, client: int, x: Vector) -> Vector:
        given = draws(round, client)
        result = np.zeros_like(x)
        for offset, size in groups or [(0, len(x))]:
            part = slice(offset, offset + size)
            result[part] = compress(x[part], given[part])
        return result

    return apply
