"""Results that are kept in memory, up to a limit, for several threads."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


class Kept(Generic[V]):
    """Values by key: each is made once, also if several threads ask for it; those unused for longest go first.

    Args:
        limit: of the sum of all sizes.
        size: of one value, in bytes or in whatever the limit counts.
        least: values that stay, whatever their size.
    """

    def __init__(self, limit: float, size: Callable[[V], float] = lambda _: 1, least: int = 1) -> None:
        self.limit, self.size, self.least = limit, size, least
        self.total = 0.0
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._pending: dict[Hashable, Future[V]] = {}
        self._lock = Lock()

    def find(self, key: Hashable) -> V | None:
        """The value of a key, if it is there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, made if it is not there; what `make` raises is raised to all who wait for it."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            waiting = self._pending.get(key)
            if waiting is None:
                mine = self._pending[key] = Future()
        if waiting is not None:
            return waiting.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._pending[key]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._pending[key]
            self._values[key] = value
            self.total += self.size(value)
            while self.total > self.limit and len(self._values) > self.least:
                _, old = self._values.popitem(last=False)
                self.total -= self.size(old)
        mine.set_result(value)
        return value
