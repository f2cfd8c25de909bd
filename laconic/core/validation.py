"""Complaints of pydantic as one line for people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError


def _said(complaint: Mapping[str, Any]) -> str:
    if str(complaint["type"]).startswith("byte_size"):
        return "bytes are allowed, as in 500MB, 2GB or 1000000"
    message = str(complaint["msg"]).removeprefix("Value error, ").replace("Input should be", "must be")
    # Nobody counts the zeros of 3.4e+38.
    message = re.sub(r"\d{16,}", lambda number: f"{float(number[0]):g}", message)
    return message.partition(", unable to parse")[0]


def explain(error: ValidationError, prefix: str = "") -> str:
    """The first complaint of pydantic as one line: key, value, what is allowed."""
    first = error.errors()[0]
    key = ".".join(str(piece) for piece in first["loc"] if not str(piece).startswith(("function-", "constrained-")))
    # A value may be of one kind or another: each of them says what it would have allowed.
    kinds = [each for each in error.errors() if each["loc"][:1] == first["loc"][:1]] or [first]
    message = ", or ".join(dict.fromkeys(map(_said, kinds))).replace(", or must be", ", or")
    if first["type"].startswith("missing"):
        return f"{prefix}{key}: required, and not given"
    if not key:
        # A complaint about several keys at once names them itself.
        return f"{prefix.rstrip('.')}: {message}" if prefix else message
    return f"{prefix}{key} = {first['input']!r}: {message}"
