"""Decides which thread uses Python's interpreter, and a core of the CPU. The screen comes first.

During a reply the interpreter is shared, and the engine leaves a core to the screen only while it draws.
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

# Seconds after which a waiting thread gets the interpreter.
SHARED = 0.0005  # a step is hundreds of short operations, and after each one the engine's thread waits again
AT_ONCE = 0.0001
KEPT = 0.05  # longer than a piece of drawing


class _Answering:
    engine: "Answerer | None" = None  # the one that is answering now


class _Lender:
    engine: "Answerer | None" = None  # the one that has lent a core to the screen


@contextmanager
def shared(engine: "Answerer | None") -> Iterator[None]:
    """Share the interpreter while the engine answers.

    If the screen kept it for all of its drawing, tokens would come later.
    """
    _Answering.engine = engine
    try:
        yield
    finally:
        _Answering.engine = None


def borrow_core(engine: "Answerer | None") -> None:
    """Take a CPU core from this engine for drawing, and return the core of the previous engine. With None only return
    it.

    Only the screen's thread may call this.
    """
    if engine is not _Lender.engine:
        if _Lender.engine is not None:
            _Lender.engine.lend_core(False)
        _Lender.engine = engine
        if engine is not None:
            engine.lend_core(True)


class ScreenFirst(selectors.DefaultSelector):
    """An event loop's wait for the screen's thread. Between two waits the screen draws without interruption.

    Loading a model is mostly Python too, because of imports. If drawing alternated with it, drawing would take twice as
    long, and typed keys would wait.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:  # otherwise there is more to draw, and this only polls
            borrow_core(None)
        sys.setswitchinterval(AT_ONCE if _Answering.engine is None else SHARED)
        try:
            return super().select(timeout)
        finally:
            sys.setswitchinterval(KEPT if _Answering.engine is None else SHARED)
            borrow_core(_Answering.engine)

    def close(self) -> None:
        borrow_core(None)
        sys.setswitchinterval(SHARED)
        super().close()


def run(app: App[Any]) -> None:
    """Run the application like its own `run`, but in an event loop that waits with `ScreenFirst`."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ScreenFirst())) as runner:
        runner.run(app.run_async())
