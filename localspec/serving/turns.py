"""Whose turn it is: requests wait in one queue a client, and the clients take turns."""

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

from localspec.errors import LocalspecError

One = TypeVar("One")


class TooMany(LocalspecError):
    """More requests wait than there is room for."""


class Turns(Generic[One]):
    """It may be used from any thread. `most` wait at once, and `most_bytes` of them together."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes, self._changed = most, most_bytes, threading.Condition()
        self._queues: OrderedDict[str, deque[tuple[One, int]]] = OrderedDict()
        self._count = self._bytes = 0
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return self._count

    def put(self, client: str, one: One, size: int = 0) -> None:
        """Puts one of so many bytes behind the others of its client. Raises TooMany."""
        with self._changed:
            if self._closed or self._count >= self._most or self._bytes + size > self._most_bytes:
                raise TooMany(f"{self._count} requests wait already; ask again later.")
            self._queues.setdefault(client, deque()).append((one, size))
            self._count, self._bytes = self._count + 1, self._bytes + size
            self._changed.notify()

    def next(self, seconds: float | None) -> One | None:
        """Waits so long for the next one; None where none came, or there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues or self._closed, seconds)
            if self._closed or not self._queues:
                return None
            client, queue = self._queues.popitem(last=False)
            one, size = queue.popleft()
            self._count, self._bytes = self._count - 1, self._bytes - size
            if queue:
                self._queues[client] = queue  # behind the others
            return one

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> list[One]:
        """Nothing more is taken; returns what waited."""
        with self._changed:
            self._closed = True
            waiting = [one for queue in self._queues.values() for one, _ in queue]
            self._queues.clear()
            self._changed.notify_all()
            return waiting
