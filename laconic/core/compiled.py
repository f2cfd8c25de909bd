"""Numba compilation with the same options for all kernels."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache
from numba.core.runtime.nrt import rtsys

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Decorator: compile with Numba, release the GIL, and cache the machine code on disk."""
    compiled = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # no writable cache directory
        compiled._cache = _LockedCache(function)  # type: ignore[attr-defined, no-untyped-call]
    return cast(Function, compiled)


class _LockedCache(FunctionCache):
    """Numba's cache, safe for processes that compile at the same time.

    Without a lock two processes can choose the same file for two signatures, and the index then leads to the wrong code.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load machine code. Numba's own method also loads what it needs to compile, which takes half a second."""
        rtsys.initialize(target_context)
        with self._lock(fcntl.LOCK_SH), self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._lock(fcntl.LOCK_EX):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        """Also the times and sizes of all files in the kernel's folder: a kernel may have code from several."""
        folder = Path(self._py_func.__code__.co_filename).parent
        found = sorted((path.name, path.stat()) for path in folder.glob("*.py"))
        stamps = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in found)
        return *super()._index_key(sig, codegen), stamps  # type: ignore[no-untyped-call]

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        """Lock the cache's directory, which also works in a read-only one."""
        Path(self.cache_path).mkdir(parents=True, exist_ok=True)
        folder = os.open(self.cache_path, os.O_RDONLY)
        try:
            fcntl.flock(folder, kind)
            yield
        finally:
            os.close(folder)
