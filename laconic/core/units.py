"""Numbers with units, as people write them."""

from __future__ import annotations

import re
from typing import Any

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def parse_bytes(value: Any) -> Any:
    """A number of bytes from what a person writes.

    >>> parse_bytes("500MB"), parse_bytes("1.5 GiB"), parse_bytes(10)
    (500000000, 1610612736, 10)
    """
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", value)
    if found is None or found[2].upper() not in _UNITS:
        raise ValueError("bytes are allowed, as in 500MB, 2GB or 1000000")
    return int(float(found[1]) * _UNITS[found[2].upper()])
