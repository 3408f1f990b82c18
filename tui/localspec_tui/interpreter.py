"""Who of this process's threads has Python's interpreter: the screen's own first, but for the time of a reply."""

import asyncio
import selectors
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from textual.app import App

# Seconds after which a thread that waits for the interpreter is given it.
SHARED = 0.0005  # a step is hundreds of short operations, and after each one the engine's thread waits again
AT_ONCE = 0.0001
KEPT = 0.05  # longer than a piece of drawing

_answering = threading.Event()


@contextmanager
def shared() -> Iterator[None]:
    """While the engine answers: the screen would cost tokens if it kept the interpreter for as long as it draws."""
    _answering.set()
    try:
        yield
    finally:
        _answering.clear()


class ScreenFirst(selectors.DefaultSelector):
    """What the event loop of the screen waits with; between two waits it draws, in one go.

    Loading a model is mostly Python too: imports. Turn by turn with them, drawing takes twice as long, and a typed key
    waits for it.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        sys.setswitchinterval(SHARED if _answering.is_set() else AT_ONCE)
        try:
            return super().select(timeout)
        finally:
            sys.setswitchinterval(SHARED if _answering.is_set() else KEPT)

    def close(self) -> None:
        sys.setswitchinterval(SHARED)
        super().close()


def run(app: App[Any]) -> None:
    """As its own `run`, in an event loop that waits with it."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ScreenFirst())) as runner:
        runner.run(app.run_async())
