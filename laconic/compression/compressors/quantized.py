"""Values rounded to levels of a step per group: QSGD and the min-max grid."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.entropy import blocks
from laconic.compression.forms import Form, Levels
from laconic.compression.selection import peak
from laconic.compression.values import MOST_BITS

Bits = Annotated[int, Field(ge=1, le=MOST_BITS)]


@compressor("qsgd", argument="bits")
class QSGD(Compressor):
    """norm(x) sign(x) level / s, level = s |x| / norm(x) rounded at random so that the mean is right (Fed-EF, equation 2).

    norm l2: s = 2^(bits-1); norm max: s = 2^(bits-1) - 1. Unbiased; the l2 form has omega = min(d/s^2, sqrt(d)/s), which
    error feedback does not survive, so `damped` divides by 1 + omega: the step that is sent is that much smaller.
    """

    bits: Bits = 4
    norm: Literal["l2", "max"] = "l2"
    damped: bool = False
    in_chain: ClassVar[Mapping[str, Any]] = {"norm": "max"}

    @model_validator(mode="after")
    def _enough_bits(self) -> QSGD:
        if self.levels < 1:
            raise ValueError("bits = 1 with norm = 'max': at least 2 are needed, one is the sign")
        return self

    @property
    def levels(self) -> int:
        """s, the number of levels above zero."""
        return int(2 ** (self.bits - 1)) - (self.norm == "max")

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        length = peak(x) if self.norm == "max" else euclidean(x)
        step = representable(length / self.levels, x.dtype)
        levels = np.zeros(len(x), dtype=_whole(self.bits))
        _round_magnitudes(x, step, self.levels, rng, levels)
        return Levels(levels, step / self._damping(x, length) if self.damped else step, bits=self.bits)

    def _damping(self, values: Floats, length: float) -> float:
        """1 + omega."""
        if self.norm == "l2":
            return 1 + self.omega(len(values))
        # An error is below max(x)/s: with two levels or more, memory shrinks in the maximum norm. With one level the
        # variance is the sum of |x| (max - |x|), so 1 + omega = max(x) ||x||_1 / ||x||^2.
        if self.levels > 1 or length == 0:
            return 1.0
        shares = np.abs(values.astype(np.float64)) / length
        return float(shares.sum() / np.square(shares).sum())

    @property
    def contractive(self) -> bool:
        """When damped; and by the max norm with at least two levels, where memory shrinks in the maximum norm."""
        return self.damped or (self.norm == "max" and self.levels > 1)

    @property
    def biased(self) -> bool:
        return self.damped

    @property
    def rounds_entries(self) -> bool:
        return not self.damped

    def omega(self, size: int) -> float:
        """min(d/s^2, sqrt(d)/s); the max norm is no larger than the l2 norm, so the bound holds for it as well."""
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def scaled_for_feedback(self) -> QSGD:
        """Damped, unless it is contractive."""
        return self if self.contractive else self.replace(damped=True)

    def value_bits(self, count: int, groups: int) -> int:
        """32 + d bits."""
        return 32 + count * self.bits


@compressor("uniform", argument="bits")
class Uniform(Compressor):
    """A grid of 2^bits points from the smallest to the largest value of each group (FedCOMGATE, Section 5).

    `rounding`: stochastic, which is unbiased; nearest; or authors, the published code: nearest on a grid centered on the
    mean, with a whole zero point. `zero_point_noise` = n moves each group's grid by a random whole number of steps, from -n
    to n (Figure 9).
    """

    bits: Bits = 8
    rounding: Literal["stochastic", "nearest", "authors"] = "stochastic"
    zero_point_noise: Annotated[int, Field(ge=0)] = 0
    rounds_entries = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        levels = np.zeros(len(x), dtype=_whole(self.bits))
        step, offset = self._grid(x, rng, levels)
        if self.zero_point_noise:
            noise = rng.integers(-self.zero_point_noise, self.zero_point_noise, endpoint=True)
            offset = float(np.clip(offset + step * float(noise), -_most(x), _most(x)))
        return Levels(levels, step, offset, self.bits)

    def _grid(self, values: Floats, generator: np.random.Generator, levels: NDArray[Any]) -> tuple[float, float]:
        peak(values)  # refuses what is not finite
        low, high, last = float(values.min()), float(values.max()), 2**self.bits - 1
        step = representable(high / last - low / last if high - low == math.inf else (high - low) / last, values.dtype)
        if self.rounding == "authors":
            return self._authors_grid(values, step or 0.001, levels)
        for start, end in blocks(len(values)):
            draws = generator.random(end - start, values.dtype.type) if self.rounding == "stochastic" else None
            if step:
                position = _steps_above(values[start:end], low, step, wide=high - low > _most(values))
                rounded = np.rint(position) if draws is None else np.floor(position + draws)
                levels[start:end] = np.minimum(rounded, last)
        return step, low

    def _authors_grid(self, values: Floats, step: float, levels: NDArray[Any]) -> tuple[float, float]:
        lowest, highest = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        center = float((values.astype(np.float64) / len(values)).sum())  # divided first, so that it cannot overflow
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
        """In the maximum norm, where an error is below 1 + noise steps of (largest - smallest) / (2^bits - 1) each."""
        return 2 * (1 + self.zero_point_noise) < (1 << self.bits) - 1

    @property
    def biased(self) -> bool:
        return self.rounding != "stochastic"

    def omega(self, size: int) -> float:
        """d/4 step^2, with a step of at most 2 ||x|| / (2^bits - 1), when rounding is stochastic."""
        return size / (2**self.bits - 1) ** 2 if self.rounding == "stochastic" else 0.0

    def value_bits(self, count: int, groups: int) -> int:
        """bits d, and 64 for each group's grid."""
        return self.bits * count + 64 * groups


def _steps_above(values: Floats, low: float, step: float, wide: bool) -> Floats:
    """(x - low) / step; in halves where x - low would overflow."""
    if wide:
        return (values.astype(np.float64) / 2 - low / 2) / (step / 2)
    kind = values.dtype.type
    position: Floats = (values - kind(low)) / kind(step)
    return position


def _whole(bits: int) -> type[np.signedinteger[Any]]:
    return np.int32 if bits > 15 else np.int16


def _most(values: Floats) -> float:
    return float(np.finfo(values.dtype).max)


def representable(step: float, floats: np.dtype[Any]) -> float:
    """A step as it will be sent. Among the smallest numbers it is rounded up, since half a step would overrun the levels."""
    sent = floats.type(min(step, float(np.finfo(floats).max)))
    if float(sent) < step and sent < np.finfo(floats).tiny:
        sent = np.nextafter(sent, floats.type(1))
    return float(sent)


def euclidean(values: Floats) -> float:
    """||x||, without overflow or underflow on the way."""
    largest = peak(values)
    if largest == 0:
        return 0.0
    factor = 1.0 if 1e-100 < largest < 1e100 else largest
    total = 0.0
    for start, end in blocks(len(values)):
        total += float(np.square(values[start:end].astype(np.float64) / factor).sum())
    return math.sqrt(total) * factor


def _round_magnitudes(
    values: Floats, step: float, highest: int, generator: np.random.Generator, levels: NDArray[Any]
) -> None:
    """levels = sign(x) floor(|x| / step + draw), at most `highest`; one draw per value, in order."""
    for start, end in blocks(len(values)):
        block = values[start:end]
        draws = generator.random(len(block), values.dtype.type)
        if not step:
            continue
        draws += np.abs(block) / values.dtype.type(step)
        np.minimum(np.floor(draws, out=draws), highest, out=draws)
        levels[start:end] = np.copysign(draws, block)
