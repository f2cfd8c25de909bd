"""Quantizers: QSGD and the min-max grid."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.entropy import BLOCK, blocks
from laconic.compression.forms import Form, Levels
from laconic.compression.gap_coding import Positions
from laconic.compression.selection import peak
from laconic.compression.values import MOST_BITS

Bits = Annotated[int, Field(ge=1, le=MOST_BITS)]


@compressor("qsgd", argument="bits")
class QSGD(Compressor):
    """norm(x) sign(x) level / s, with level = s |x| / norm(x) rounded stochastically (Fed-EF, equation 2).

    norm l2: s = 2^(bits-1); norm max: s = 2^(bits-1) - 1. Unbiased. With the l2 norm omega = min(d/s^2, sqrt(d)/s), too
    large for error feedback; `damped` divides by 1 + omega.
    """

    bits: Bits = 4
    """Bits per entry, one of them for the sign."""
    norm: Literal["l2", "max"] = "l2"
    """The norm that scales the levels."""
    damped: bool = False
    """Divide by 1 + omega, so that C is contractive."""
    in_chain: ClassVar[Mapping[str, Any]] = {"norm": "max"}

    @model_validator(mode="after")
    def _enough_bits(self) -> QSGD:
        if self.levels < 1:
            raise ValueError("bits = 1 with norm = 'max': at least 2 are needed, since one is the sign")
        return self

    @property
    def levels(self) -> int:
        """s, the number of positive levels."""
        return int(2 ** (self.bits - 1)) - (self.norm == "max")

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        norm = peak(x) if self.norm == "max" else euclidean(x)
        step = representable(norm / self.levels, x.dtype)
        levels = np.zeros(len(x), dtype=_integer_type(self.bits))
        round_magnitudes(x, step, self.levels, rng, levels)
        return Levels(levels, step / self._damping(x, norm) if self.damped else step, bits=self.bits)

    def _damping(self, values: Floats, norm: float) -> float:
        """1 + omega."""
        if self.norm == "l2":
            return 1 + self.omega(len(values))
        # Errors are below max(x)/s, so with two or more levels C is contractive in the maximum norm. With one level the
        # variance is the sum of |x| (max - |x|), so 1 + omega = max(x) ||x||_1 / ||x||^2.
        if self.levels > 1 or norm == 0:
            return 1.0
        relative = np.abs(values.astype(np.float64)) / norm
        return float(relative.sum() / np.square(relative).sum())

    @property
    def contractive(self) -> bool:
        """Damped, or with the max norm and at least two levels (contractive in the maximum norm)."""
        return self.damped or (self.norm == "max" and self.levels > 1)

    @property
    def biased(self) -> bool:
        return self.damped

    @property
    def rounds_entries(self) -> bool:
        return not self.damped

    def omega(self, size: int) -> float:
        """min(d/s^2, sqrt(d)/s). It holds for the max norm too, which is at most the l2 norm."""
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def scaled_for_feedback(self) -> QSGD:
        return self if self.contractive else self.replace(damped=True)

    def value_bits(self, count: int, groups: int) -> int:
        """32 + bits d."""
        return 32 + count * self.bits


@compressor("uniform", argument="bits")
class Uniform(Compressor):
    """A grid of 2^bits points from the smallest to the largest value of each group (FedCOMGATE, Section 5).

    `rounding`: stochastic, which is unbiased; nearest; or authors, as in the published code: nearest on a grid that is
    centered on the mean and has an integer zero point. `zero_point_noise` = n shifts each group's grid by a random integer
    number of steps from -n to n (Figure 9).
    """

    bits: Bits = 8
    """Bits per entry."""
    rounding: Literal["stochastic", "nearest", "authors"] = "stochastic"
    """How an entry is rounded to the grid."""
    zero_point_noise: Annotated[int, Field(ge=0)] = 0
    """The largest random shift of the grid, in steps."""
    rounds_entries = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        levels = np.zeros(len(x), dtype=_integer_type(self.bits))
        step, offset = self._grid(x, rng, levels)
        if self.zero_point_noise:
            noise = rng.integers(-self.zero_point_noise, self.zero_point_noise, endpoint=True)
            offset = float(np.clip(offset + step * float(noise), -_most(x), _most(x)))
        return Levels(levels, step, offset, self.bits)

    def _grid(self, values: Floats, generator: np.random.Generator, levels: NDArray[Any]) -> tuple[float, float]:
        if not len(values):  # a sparse compressor before it in a chain kept nothing
            return 0.0, 0.0
        peak(values)  # rejects NaN and infinity
        low, high, last = float(values.min()), float(values.max()), 2**self.bits - 1
        step = representable(high / last - low / last if high - low == math.inf else (high - low) / last, values.dtype)
        if self.rounding == "authors" and step:  # equal values are exact on a grid without steps
            return self._authors_grid(values, step, levels)
        for start, end in blocks(len(values)):
            draws = generator.random(end - start, values.dtype.type) if self.rounding == "stochastic" else None
            if step:
                position = _steps_above(values[start:end], low, step, wide=high - low > _most(values))
                rounded = np.rint(position) if draws is None else np.floor(position + draws)
                levels[start:end] = np.minimum(rounded, last)
        return step, low

    def _authors_grid(self, values: Floats, step: float, levels: NDArray[Any]) -> tuple[float, float]:
        lowest, highest = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        center = float((values.astype(np.float64) / len(values)).sum())  # divided first to avoid overflow
        wide = not math.isfinite(float(values.max()) - float(values.min()))
        (smallest,) = _steps_above(values.min(keepdims=True).astype(np.float64), center, step, wide)
        zero_point = int(min(max(lowest - float(smallest), lowest), highest))
        for start, end in blocks(len(values)):
            with np.errstate(over="ignore"):
                position = zero_point + _steps_above(values[start:end].astype(np.float64), center, step, wide)
            levels[start:end] = np.clip(np.rint(position), lowest, highest)
        return step, center - step * zero_point

    @property
    def contractive(self) -> bool:
        """In the maximum norm, where errors are below 1 + n steps of (largest - smallest) / (2^bits - 1)."""
        return 2 * (1 + self.zero_point_noise) < (1 << self.bits) - 1

    @property
    def biased(self) -> bool:
        return self.rounding != "stochastic"

    def omega(self, size: int) -> float:
        """With stochastic rounding at most d/4 step^2 / ||x||^2, where step <= 2 ||x|| / (2^bits - 1)."""
        return size / (2**self.bits - 1) ** 2 if self.rounding == "stochastic" else 0.0

    def value_bits(self, count: int, groups: int) -> int:
        """bits d, and 64 per group for its grid."""
        return self.bits * count + 64 * groups


def _steps_above(values: Floats, low: float, step: float, wide: bool) -> Floats:
    """(x - low) / step; if `wide`, halved to avoid overflow."""
    if wide:
        return (values.astype(np.float64) / 2 - low / 2) / (step / 2)
    kind = values.dtype.type
    position: Floats = (values - kind(low)) / kind(step)
    return position


def _integer_type(bits: int) -> type[np.signedinteger[Any]]:
    return np.int32 if bits > 15 else np.int16


def _most(values: Floats) -> float:
    return float(np.finfo(values.dtype).max)


def representable(step: float, floats: np.dtype[Any]) -> float:
    """A step rounded to the type in which it is sent. Subnormal steps are rounded up, so that levels stay in range."""
    rounded = floats.type(min(step, float(np.finfo(floats).max)))
    if float(rounded) < step and rounded < np.finfo(floats).tiny:
        rounded = np.nextafter(rounded, floats.type(1))
    return float(rounded)


def euclidean(values: Floats) -> float:
    """||x||, without intermediate overflow or underflow."""
    largest = peak(values)
    if largest == 0:
        return 0.0
    factor = 1.0 if 1e-100 < largest < 1e100 else largest
    total, buffer = 0.0, np.empty(min(BLOCK, len(values)))
    for start, end in blocks(len(values)):
        block = buffer[: end - start]
        block[:] = values[start:end]
        if factor != 1:
            block /= factor
        total += float(np.multiply(block, block, out=block).sum())
    return math.sqrt(total) * factor


def round_magnitudes(
    values: Floats, step: float, highest: int, generator: np.random.Generator, levels: NDArray[Any]
) -> None:
    """levels = sign(x) min(floor(|x| / step + draw), highest), with one uniform draw per value."""
    from laconic.compression import kernels  # late: Numba is slow to load

    kind = values.dtype.type
    for start, end, draws in drawn_blocks(values, generator):
        if step:
            kernels.round_magnitudes(values[start:end], draws, kind(step), kind(highest), levels[start:end])


def round_to_kept(
    values: Floats, step: float, highest: int, generator: np.random.Generator, expected: int
) -> tuple[Positions, NDArray[np.int16]]:
    """The positions and the levels of `round_magnitudes` that are not 0, of which about `expected` are expected."""
    from laconic.compression import kernels  # late: Numba is slow to load

    kind, found = values.dtype.type, 0
    positions, levels = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int16)
    of_block = np.empty(min(BLOCK, len(values)), dtype=np.int16)
    for start, end, draws in drawn_blocks(values, generator):
        if not step:
            continue
        if found + end - start > len(positions):
            room = max(expected + BLOCK, 2 * len(positions)) + end - start
            positions, levels = (np.append(each[:found], np.empty(room, each.dtype)) for each in (positions, levels))
        kernels.round_magnitudes(values[start:end], draws, kind(step), kind(highest), of_block)
        found = kernels.append_nonzero(of_block[: end - start], start, positions, levels, found)
    return positions[:found], levels[:found]


def drawn_blocks(values: Floats, generator: np.random.Generator) -> Iterator[tuple[int, int, Floats]]:
    """Start and end of every block of a vector, with one uniform draw per entry."""
    draws = np.empty(min(BLOCK, len(values)), dtype=values.dtype)
    for start, end in blocks(len(values)):
        generator.random(dtype=values.dtype.type, out=draws[: end - start])
        yield start, end, draws
