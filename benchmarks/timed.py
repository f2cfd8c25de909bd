"""A gradient function that adds up the time spent in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from laconic.engine import inline
from laconic.gradients.base import Gradients


class Timed:
    """Wraps a gradient function and adds up the time spent in it."""

    wall = 0.0
    processor = 0.0

    def __init__(self, inner: Gradients) -> None:
        self.inner = inner
        self.joins_steps = inner.joins_steps
        self.descend = partial(self._timed, inner.descend)
        self.descend_steps = partial(self._timed, inner.descend_steps)

    def __call__(self, *arguments: Any) -> Any:
        return self._timed(self.inner, *arguments)

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        wall, processor = time.perf_counter(), time.thread_time()
        result = call(*arguments)
        Timed.wall += time.perf_counter() - wall
        Timed.processor += time.thread_time() - processor
        return result


@contextmanager
def timed_gradients() -> Iterator[type[Timed]]:
    """Engines that are made inside measure their gradient calls."""
    plain_make = inline.make_gradients
    inline.make_gradients = lambda *arguments: Timed(plain_make(*arguments))
    try:
        yield Timed
    finally:
        inline.make_gradients = plain_make
