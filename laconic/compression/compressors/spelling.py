"""Parsing of compressors: `top_k:1/64`, `heavy_sign:0.05`, `top_k:0.01+qsgd:4`, and with a granularity `sign@layer`.

The main parameter follows a colon, others follow as `,name=value`. `+` joins two compressors to a chain.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator

from laconic.compression.compressors.base import COMPRESSORS, Compressor
from laconic.compression.compressors.chain import Chain
from laconic.compression.groups import check_granularity
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import parameter_names
from laconic.core.spelling import Spelling, parse

_FRACTION = re.compile(r"\d+/\d+")


def parse_compressor(text: str) -> Compressor:
    """Parse a compressor.

    Args:
        text: A name, its main parameter after a colon, and others as `,name=value`; two of these joined by + are a chain.

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
    return Chain(_piece(first), _piece(second, chained=True))


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


def _piece(text: str, chained: bool = False) -> Compressor:
    # `qsgd,norm=max` is `qsgd:norm=max`.
    name, arguments, keywords = _split(re.sub(r"^(\w+),", r"\1:", text))
    # Looked up on every call, since user files may register compressors.
    known = {key: cls for key, cls in COMPRESSORS.items() if cls is not Chain}
    if name not in known:
        guide = "docs/guides/choose-a-compressor.md"
        raise unknown_name("compressor", name, known, importable=True, listed=guide)
    cls = known[name]
    parameters = dict(cls.in_chain) if chained else {}
    if len(arguments) > (cls.argument is not None):
        names = ", ".join(parameter_names(cls))
        problem = (
            f"'{arguments[-1]}' must be name=value with one of {names}" if names else f"'{name}' has no parameters"
        )
        raise ConfigError(f"compressor '{text}': {problem}")
    for key, value in [*zip([cls.argument or ""], arguments, strict=False), *keywords.items()]:
        # User compressors may have fractions under other names.
        parameters[key] = _number(key, value) if key == "ratio" or _FRACTION.fullmatch(value) else value
    return cls(**parameters)


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
