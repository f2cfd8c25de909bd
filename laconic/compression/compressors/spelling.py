"""Parsing of compressors: `top_k:1/64`, `heavy_sign:0.05`, `top_k:0.01+qsgd:4`, and with a granularity `sign@layer`.

The main parameter follows a colon, others follow as `,name=value`. `+` joins two compressors to a chain.
"""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator
from torch import Tensor

from laconic.compression.compressors.base import COMPRESSORS, Compressor
from laconic.compression.compressors.chain import Chain
from laconic.compression.compressors.dense import Dense
from laconic.compression.groups import check_granularity, group_bounds
from laconic.compression.packet import Body
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.layout import Layout
from laconic.core.part import make_part, parameter_names
from laconic.core.spelling import Spelling, parse

_FRACTION = re.compile(r"\d+/\d+")


def parse_compressor(text: str) -> Compressor:
    """Parse a compressor.

    >>> parse_compressor("top_k:1/64")
    TopK(ratio=0.015625, coding='ans')
    >>> str(parse_compressor("top_k:0.01+qsgd:4"))
    'top_k:1/100+qsgd:4'
    """
    if "@" in text:
        raise ConfigError(f"compressor '{text}': a granularity is not allowed here; it is a setting of the link")
    first, plus, second = text.partition("+")
    if not plus:
        return _piece(first)
    if "+" in second:
        raise ConfigError(f"compressor '{text}': at most two can be joined by '+'")
    return make_part(Chain, {"first": _piece(first), "second": _piece(second, chained=True)})


def split_granularity(text: str) -> tuple[str, str | None]:
    """Split a text into compressor and granularity, which is None if there is no `@`.

    >>> split_granularity("top_k:1/64@layer"), split_granularity("sign")
    (('top_k:1/64', 'layer'), ('sign', None))
    """
    spelled, at, granularity = text.partition("@")
    return spelled, check_granularity(granularity) if at else None


def _read(value: Any) -> Any:
    return parse_compressor(value) if isinstance(value, str) else value


AnyCompressor = Annotated[Compressor, BeforeValidator(_read)]
"""A parameter that accepts a compressor or its text form."""


@dataclasses.dataclass(frozen=True)
class GroupedCompressor:
    """A compressor and its granularity.

    >>> print(GroupedCompressor.parse("sign@layer"), GroupedCompressor.parse("qsgd:8"))
    sign@layer qsgd:8@model
    """

    compressor: Compressor
    granularity: str = "model"

    @classmethod
    def parse(cls, text: str) -> GroupedCompressor:
        """Parse a text such as `sign@layer`; without an `@` the granularity is `model`."""
        spelled, granularity = split_granularity(text)
        return cls(parse_compressor(spelled), granularity or "model")

    def encode(self, vector: Tensor, layout: Layout, rng: np.random.Generator) -> Body:
        """Encode a vector; only random compressors use the generator."""
        return self.compressor.encode(vector, layout, rng, self.granularity)

    def scaled_for_feedback(self) -> GroupedCompressor:
        """The same with the compressor's contractive form, for error feedback."""
        return GroupedCompressor(self.compressor.scaled_for_feedback(), self.granularity)

    def omega(self, layout: Layout) -> float:
        """The compressor's omega for the worst group."""
        return max((self.compressor.omega(size) for size in self._sizes(layout)), default=0.0)

    def paper_bits(self, layout: Layout) -> int:
        """The bits that the papers count for a vector. FedCAMS (by model) counts positions; Fed-EF (by layer) does not."""
        sizes = self._sizes(layout)
        count = sum(self.compressor.kept(size) for size in sizes)
        positions = self.compressor.position_bits(count) if self.granularity == "model" else 0
        return positions + self.compressor.value_bits(count, len(sizes))

    def _sizes(self, layout: Layout) -> list[int]:
        sizes: list[int] = np.diff(group_bounds(layout, self.granularity)).tolist()
        return sizes

    def __str__(self) -> str:
        return f"{self.compressor}@{self.granularity}"


DENSE = GroupedCompressor(Dense())


def as_grouped(value: Any) -> Any:
    """A compressor, or the spelling of one, with its granularity; other values as they are."""
    if isinstance(value, Compressor):
        return GroupedCompressor(value)
    return GroupedCompressor.parse(value) if isinstance(value, str) else value


AnyGroupedCompressor = Annotated[GroupedCompressor, BeforeValidator(as_grouped)]
"""A parameter that accepts a compressor with granularity, such as `qsgd:8@layer`; the default is `@model`."""


def _piece(text: str, chained: bool = False) -> Compressor:
    # `qsgd,norm=max` is `qsgd:norm=max`.
    name, arguments, keywords = _split(re.sub(r"^(\w+),", r"\1:", text))
    # Looked up on every call, since user files may register compressors.
    known = {key: cls for key, cls in COMPRESSORS.items() if cls is not Chain}
    if name not in known:
        raise unknown_name("compressor", name, known, importable=True)
    cls = known[name]
    parameters = dict(cls.in_chain) if chained else {}
    if len(arguments) > (cls.argument is not None):
        names = ", ".join(parameter_names(cls))
        raise ConfigError(f"compressor '{text}': '{arguments[-1]}' must be name=value with one of {names}")
    for key, value in [*zip([cls.argument or ""], arguments, strict=False), *keywords.items()]:
        # User compressors may have fractions under other names.
        parameters[key] = _number(key, value) if key == "ratio" or _FRACTION.fullmatch(value) else value
    return make_part(cls, parameters)


def _split(text: str) -> Spelling:
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"compressor '{text}': {error}") from None


def _number(key: str, text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"compressor.{key} = '{text}': must be a number such as 0.01 or 1/64") from None
