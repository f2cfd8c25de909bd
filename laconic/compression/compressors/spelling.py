"""How compressors are written: `top_k:1/64`, `heavy_sign:0.05`, `top_k:0.01+qsgd:4@layer`.

A name, its main parameter after a colon, others as `,name=value`; two joined by `+` are a chain; the groups after an `@`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, get_args

from pydantic import BeforeValidator

from laconic.compression.compressors.base import COMPRESSORS, Compressor
from laconic.compression.compressors.chain import Chain
from laconic.compression.compressors.dense import Cast
from laconic.compression.compressors.quantized import QSGD, Uniform
from laconic.compression.compressors.sign import Sign
from laconic.compression.compressors.sparse import RandomK, TopK
from laconic.compression.groups import Group
from laconic.core.errors import ConfigError, unknown_name
from laconic.core.part import make_part

_FRACTION = re.compile(r"\d+/\d+")
FIRST: dict[str, type[Compressor]] = {cls.name: cls for cls in (TopK, RandomK)}
"""What can stand before a `+`."""
SECOND: dict[str, type[Compressor]] = {cls.name: cls for cls in (QSGD, Uniform, Sign, Cast)}
"""What can stand after a `+`."""


def parse_compressor(text: str) -> Compressor:
    """The compressor that is spelled so.

    >>> parse_compressor("top_k:1/64")
    TopK(ratio=0.015625, by='model', coding='range')
    >>> str(parse_compressor("top_k:0.01+qsgd:4@layer"))
    'top_k:1/100+qsgd:4@layer'
    """
    spelled, _, by = text.partition("@")
    if "@" in text and by not in get_args(Group):
        raise unknown_name("group of compressors", by, get_args(Group))
    common = {"by": by} if by else {}
    pieces = spelled.split("+")
    if len(pieces) == 1:
        # Looked up now, since a person's own file may have added to them.
        single = {name: cls for name, cls in COMPRESSORS.items() if cls is not Chain}
        return _piece(pieces[0], common, single, "compressor")
    if len(pieces) > 2:
        raise ConfigError(f"compressor '{text}': at most two can be joined by '+'")
    first = _piece(pieces[0], common, FIRST, "compressor before '+'")
    defaults = {"norm": "max"} if pieces[1].partition(":")[0] == QSGD.name else {}
    second = _piece(pieces[1], defaults | common, SECOND, "compressor after '+'")
    return make_part(Chain, {"first": first, "second": second})


def _read(value: Any) -> Any:
    return parse_compressor(value) if isinstance(value, str) else value


AnyCompressor = Annotated[Compressor, BeforeValidator(_read)]
"""A parameter that is a compressor, or the spelling of one."""


def _piece(text: str, given: dict[str, str], allowed: Mapping[str, type[Compressor]], kind: str) -> Compressor:
    name, colon, rest = text.partition(":")
    if name not in allowed:
        raise unknown_name(kind, name, allowed)
    cls = allowed[name]
    parameters: dict[str, Any] = dict(given)
    for place, setting in enumerate(rest.split(",") if colon else []):
        key, equals, value = setting.partition("=")
        if not equals:
            if place or cls.argument is None:
                names = ", ".join(field.name for field in dataclasses.fields(cls))  # type: ignore[arg-type]
                raise ConfigError(f"compressor '{text}': '{setting}' must be name=value with one of {names}")
            key, value = cls.argument, setting
        # A person's own compressor may call its share as it likes.
        parameters[key] = _number(key, value) if key == "ratio" or _FRACTION.fullmatch(value) else value
    return make_part(cls, parameters)


def _number(key: str, text: str) -> float:
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"compressor.{key} = '{text}': must be a number such as 0.01 or 1/64") from None


def spell(compressor: Compressor) -> str:
    """The shortest text from which `parse_compressor` makes the same compressor."""
    if isinstance(compressor, Chain):
        first, second = compressor.first, compressor.second
        group = _group(first)
        return f"{_without_group(first)}+{_without_group(second, norm='max')}{group}"
    return _without_group(compressor) + _group(compressor)


def _group(compressor: Compressor) -> str:
    return "" if compressor.by == _defaults(compressor)["by"] else f"@{compressor.by}"


def _defaults(compressor: Compressor) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(compressor)}  # type: ignore[arg-type]


def _without_group(compressor: Compressor, **defaults: str) -> str:
    usual = _defaults(compressor) | defaults
    settings: list[str] = []
    for key, value in compressor.parameters().items():
        if key == compressor.argument:
            settings.insert(0, _ratio(value) if key == "ratio" else str(value))
        elif key != "by" and value != usual[key]:
            settings.append(f"{key}={str(value).lower()}")
    return compressor.name + (":" + ",".join(settings) if settings else "")


def _ratio(value: float) -> str:
    whole = round(1 / value)
    return f"1/{whole}" if whole > 1 and 1 / whole == value else repr(value)
