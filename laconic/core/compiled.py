"""Numba, set up in one way for all of our loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compiled when first called with new types, kept on disk for later processes, run without the interpreter's lock."""
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written to
        compiled = numba.njit(nogil=True)(function)
    return cast(Function, compiled)
