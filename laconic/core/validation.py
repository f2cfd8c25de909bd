"""Validation errors of pydantic as one line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from laconic.core.errors import ConfigError

M = TypeVar("M", bound=BaseModel)


def validated(model: type[M], table: Mapping[str, Any]) -> M:
    """Build a model from a table. An invalid value is a `ConfigError` of one line."""
    try:
        return model(**table)
    except ValidationError as error:
        raise ConfigError(explain(error)) from None


def _message(problem: Mapping[str, Any]) -> str:
    if str(problem["type"]).startswith("byte_size"):
        return "bytes are allowed, as in 500MB, 2GB or 1000000"
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    # 3.4e+38 instead of 39 digits.
    message = re.sub(r"\d{16,}", lambda number: f"{float(number[0]):g}", message)
    return message.partition(", unable to parse")[0]


def explain(error: ValidationError, prefix: str = "") -> str:
    """The first validation error as one line: key, value, what is allowed."""
    first = error.errors()[0]
    key = ".".join(str(piece) for piece in first["loc"] if not str(piece).startswith(("function-", "constrained-")))
    # For a union type there is one error per member: together they say what is allowed.
    problems = [problem for problem in error.errors() if problem["loc"][:1] == first["loc"][:1]] or [first]
    message = ", or ".join(dict.fromkeys(map(_message, problems))).replace(", or must be", ", or")
    if first["type"].startswith("missing"):
        return f"{prefix}{key}: required, and not given"
    if not key:
        # An error about several keys names them in its message.
        return f"{prefix.rstrip('.')}: {message}" if prefix else message
    return f"{prefix}{key} = {_shown(first['input'])}: {message}"


def _shown(value: object) -> str:
    """The value on one line. Of an object with a longer text, such as an optimizer of torch, only the type."""
    text = repr(value)
    return f"{type(value).__name__} object" if "\n" in text else text
