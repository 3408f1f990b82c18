"""Gives the screen's thread precedence over the engine's thread in the use of Python's interpreter and of a CPU core.

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

    Otherwise the screen's thread would keep the interpreter until it has drawn everything, and delay tokens.
    """
    _Answering.engine = engine
    try:
        yield
    finally:
        _Answering.engine = None


def borrow_core(engine: "Answerer | None") -> None:
    """Borrow a CPU core from this engine for drawing. Give the core of another engine back, if one was borrowed.

    With None, only give the core back. Only the screen's thread may call this.
    """
    if engine is not _Lender.engine:
        if _Lender.engine is not None:
            _Lender.engine.lend_core(False)
        _Lender.engine = engine
        if engine is not None:
            engine.lend_core(True)


class ScreenFirst(selectors.DefaultSelector):
    """A selector for the screen's event loop. Between two calls of `select`, no other Python thread interrupts drawing.

    Otherwise drawing would alternate with the loading of a model, which is mostly Python code because of imports.
    Drawing would then take twice as long, and typed keys would wait.
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
