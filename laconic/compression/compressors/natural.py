"""Natural compression: every entry becomes a power of two."""

from __future__ import annotations

import math

import numpy as np

from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor
from laconic.compression.compressors.quantized import drawn_blocks
from laconic.compression.forms import Form, Powers
from laconic.compression.selection import peak


@compressor("natural")
class Natural(Compressor):
    """sign(x) 2^e, with e = floor(log2 |x|) or one more, drawn such that C is unbiased (Horváth et al., arXiv 1905.10988).

    The probability of the larger power is |x| / 2^floor(log2 |x|) - 1. Zeros and powers of two are exact, and omega = 1/8
    whatever the size: small and large entries have the same relative error. Exponents are entropy-coded. Values above the
    largest power of two of the type become that power.
    """

    rounds_entries = True

    def compress(self, x: Floats, rng: np.random.Generator) -> Form:
        peak(x)  # rejects NaN and infinity
        exponents = np.zeros(len(x), dtype=np.int16)
        for start, end, draws in drawn_blocks(x, rng):
            mantissas, above = np.frexp(np.abs(x[start:end]))  # |x| = m 2^above with 1/2 <= m < 1
            up = draws[: end - start] >= 2 - 2 * mantissas
            exponents[start:end] = np.minimum(above - 1 + up, np.finfo(x.dtype).maxexp - 1)
        present = x != 0
        highest = int(exponents[present].max()) if present.any() else 0
        levels = np.where(x < 0, exponents - highest - 1, highest + 1 - exponents) * present
        return Powers(levels, math.ldexp(1.0, highest))

    @property
    def biased(self) -> bool:
        return False

    def omega(self, size: int) -> float:
        """1/8: for |x| = (1 + t) 2^e the variance is t (1 - t) 4^e, at most 1/8 of x^2 (at t = 1/3)."""
        return 1 / 8

    def value_bits(self, count: int, groups: int) -> int:
        """9 per entry: the sign and the exponent of a float32."""
        return 9 * count
