"""Decides which thread uses Python's interpreter and a core of the CPU: the screen's thread first.

During a reply both threads share the interpreter, and the engine leaves a core to the screen while the screen draws.
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
    """Let the threads of screen and engine share the interpreter evenly while `engine` answers in this context.

    If the screen's thread kept the interpreter until all was drawn, tokens would come later.
    """
    _Answering.engine = engine
    try:
        yield
    finally:
        _Answering.engine = None


def borrow_core(engine: "Answerer | None") -> None:
    """Take a CPU core from this engine (None: from no engine) for drawing, and give the previous engine its core back.

    Only the screen's thread may call this.
    """
    if engine is not _Lender.engine:
        if _Lender.engine is not None:
            _Lender.engine.lend_core(False)
        _Lender.engine = engine
        if engine is not None:
            engine.lend_core(True)


class ScreenFirst(selectors.DefaultSelector):
    """The selector of the screen's event loop. Between two calls of `select` the screen draws without interruption.

    Loading a model is mostly Python code, too, because of imports. If drawing alternated with loading, drawing would
    take twice as long, and typed keys would wait.
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
    """Run the application like `App.run`, but in an event loop that waits with `ScreenFirst`."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ScreenFirst())) as runner:
        runner.run(app.run_async())
