"""Numba compilation with the same options for all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Decorator: compile with Numba, release the GIL, and cache the machine code on disk."""
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no writable cache directory
        compiled = numba.njit(nogil=True)(function)
    return cast(Function, compiled)
