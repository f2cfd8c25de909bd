"""A least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def unit_size(value: object) -> int:
    """The default size: `limit` is a number of values."""
    return 1


class LRUCache(Generic[K, V]):
    """A thread-safe cache of the most recently used values, up to a total size. Pickling drops the values.

    >>> cache = LRUCache(2)
    >>> for key in "abc":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c")
    (None, 'C')
    """

    def __init__(self, limit: int, size: Callable[[V], int] = unit_size) -> None:
        self.limit, self.total = limit, 0
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[LRUCache[K, V]], tuple[int, Callable[[V], int]]]:
        return LRUCache, (self.limit, self._size)

    def get(self, key: K) -> V | None:
        """The value, or None. It becomes the most recently used."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Store a value, and drop the least recently used ones above the limit."""
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self.total += self._size(value)
            while self.total > self.limit:
                self._drop(next(iter(self._values)))

    def pop(self, key: K) -> None:
        """Drop a value, if present."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._values.clear()
            self.total = 0

    def _drop(self, key: K) -> None:
        if key in self._values:
            self.total -= self._size(self._values.pop(key))
