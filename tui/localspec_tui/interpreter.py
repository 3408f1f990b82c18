"""Who of this process's threads has Python's interpreter, and a core to compute on: the screen's own first.

For the time of a reply the interpreter is shared, and the engine leaves a core to the screen only while it draws.
"""

import asyncio
import selectors
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from textual.app import App

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer

# Seconds after which a thread that waits for the interpreter is given it.
SHARED = 0.0005  # a step is hundreds of short operations, and after each one the engine's thread waits again
AT_ONCE = 0.0001
KEPT = 0.05  # longer than a piece of drawing


class _Answering:
    engine: "Answerer | None" = None  # that answers now


@contextmanager
def shared(engine: "Answerer | None") -> Iterator[None]:
    """While the engine answers: the screen would cost tokens if it kept the interpreter for as long as it draws."""
    _Answering.engine = engine
    try:
        yield
    finally:
        _Answering.engine = None


class ScreenFirst(selectors.DefaultSelector):
    """What the event loop of the screen waits with; between two waits it draws, in one go.

    Loading a model is mostly Python too: imports. Turn by turn with them, drawing takes twice as long, and a typed key
    waits for it.
    """

    _lender: "Answerer | None" = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:  # else there is more to draw, and this only looks what came
            self._borrow(None)
        sys.setswitchinterval(AT_ONCE if _Answering.engine is None else SHARED)
        try:
            return super().select(timeout)
        finally:
            sys.setswitchinterval(KEPT if _Answering.engine is None else SHARED)
            self._borrow(_Answering.engine)

    def _borrow(self, engine: "Answerer | None") -> None:
        """A core of this engine, and of no other one; None gives it back."""
        if engine is not self._lender:
            if self._lender is not None:
                self._lender.lend_core(False)
            self._lender = engine
            if engine is not None:
                engine.lend_core(True)

    def close(self) -> None:
        self._borrow(None)
        sys.setswitchinterval(SHARED)
        super().close()


def run(app: App[Any]) -> None:
    """As its own `run`, in an event loop that waits with it."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ScreenFirst())) as runner:
        runner.run(app.run_async())
