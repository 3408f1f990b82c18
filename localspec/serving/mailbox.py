"""From the engines' thread to the event loop: a reader who is behind is not woken for each, and takes all there is."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

One = TypeVar("One")


class Mailbox(Generic[One]):
    """Of one client. It is made and read on the event loop; `deliver` may be called on any thread, and does not wait.

    `left` is done when the client is gone.
    """

    def __init__(self, left: "asyncio.Future[None]") -> None:
        self._loop, self._left = asyncio.get_running_loop(), left
        self._arrived: deque[One] = deque()
        self._something = asyncio.Event()
        self._waits = False  # whether the reader has to be woken
        left.add_done_callback(lambda _: self._something.set())

    def deliver(self, one: One) -> None:
        """Puts one behind the others."""
        self._arrived.append(one)
        if self._waits:
            self._waits = False
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                self._loop.call_soon_threadsafe(self._something.set)

    async def next(self) -> One | None:
        """The next one; None where there is none and the client is gone."""
        while not self._arrived:
            if self._left.done():
                return None
            self._something.clear()
            self._waits = True
            if not self._arrived:  # what came just before knew nothing of a reader
                await self._something.wait()
            self._waits = False
        return self._arrived.popleft()

    def rest(self) -> list[One]:
        """All that has come since; without waiting."""
        return [self._arrived.popleft() for _ in range(len(self._arrived))]
