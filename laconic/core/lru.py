"""A cache of the values that were used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def one(value: object) -> int:
    """The size of a value where values are counted."""
    return 1


class LRUCache(Generic[K, V]):
    """Keeps the most recently used values, up to a total size. Several threads may use it.

    A cache that is pickled arrives empty.

    >>> cache = LRUCache(2)
    >>> for key in "abc":
    ...     cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c")
    (None, 'C')
    """

    def __init__(self, limit: int, size: Callable[[V], int] = one) -> None:
        self.limit, self.total = limit, 0
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def __reduce__(self) -> tuple[type[LRUCache[K, V]], tuple[int, Callable[[V], int]]]:
        return LRUCache, (self.limit, self._size)

    def get(self, key: K) -> V | None:
        """The value, if it is still here; it becomes the most recently used."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Keep a value. The least recently used ones make room for it."""
        with self._lock:
            self._drop(key)
            self._values[key] = value
            self.total += self._size(value)
            while self.total > self.limit:
                self._drop(next(iter(self._values)))

    def pop(self, key: K) -> None:
        """Drop a value, if it is here."""
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
