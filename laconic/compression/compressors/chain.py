"""A quantizer on the values of a sparsifier (Qsparse-local-SGD)."""

from __future__ import annotations

import dataclasses

import numpy as np

from laconic.compression.body import Floats
from laconic.compression.compressors.base import Compressor, compressor, spell
from laconic.compression.forms import Form, Kept
from laconic.compression.groups import Bounds
from laconic.core.errors import ConfigError


@compressor("chain")
class Chain(Compressor):
    """`first` selects entries, `second` quantizes their values, in each group and in order of position.

    Written `top_k:0.01+qsgd:4`. In a chain, qsgd uses the max norm by default.
    """

    first: Compressor
    """Selects entries exactly, as top_k does."""
    second: Compressor
    """Compresses the values of these entries."""
    sparse = True
    exact = False

    def __post_init__(self) -> None:
        if not (self.first.sparse and self.first.exact):
            reason = f"'{self.first.name}' does not keep some of the entries exactly, as top_k does"
            raise ConfigError(f"compressor {self}: before '+': {reason}")
        if not self.second.quantizes_values:
            reason = f"'{self.second.name}' does not quantize every value, as qsgd does"
            raise ConfigError(f"compressor {self}: after '+': {reason}")

    def forms(self, entries: Floats, bounds: Bounds, rng: np.random.Generator) -> list[Form]:
        return [self._quantized(form, rng) for form in self.first.forms(entries, bounds, rng)]

    def _quantized(self, form: Form, rng: np.random.Generator) -> Form:
        if not isinstance(form, Kept) or not isinstance(form.values, np.ndarray):
            raise ConfigError(f"compressor '{self.first.name}': before a '+' it must return Kept(positions, vector)")
        values = self.second.compress(form.values, rng)
        if isinstance(values, Kept):
            raise ConfigError(f"compressor '{self.second.name}': after a '+' it must not return Kept")
        return dataclasses.replace(form, values=values)

    @property
    def kept_fraction(self) -> float | None:
        return self.first.kept_fraction

    @property
    def contractive(self) -> bool:
        return self.first.contractive and self.second.contractive

    @property
    def biased(self) -> bool:
        return self.first.biased or self.second.biased

    def omega(self, size: int) -> float:
        """The variances of two unbiased steps compound: (1 + omega_1)(1 + omega_2) - 1."""
        return (1 + self.first.omega(size)) * (1 + self.second.omega(size)) - 1

    def scaled_for_feedback(self) -> Chain:
        return self.replace(first=self.first.scaled_for_feedback(), second=self.second.scaled_for_feedback())

    def kept(self, size: int) -> int:
        return self.first.kept(size)

    @property
    def keeps_any_number(self) -> bool:
        return self.first.keeps_any_number

    def position_bits(self, count: int) -> int:
        return self.first.position_bits(count)

    def value_bits(self, count: int, groups: int) -> int:
        return self.second.value_bits(count, groups)

    def __str__(self) -> str:
        return f"{self.first}+{spell(self.second, self.second.in_chain)}"
