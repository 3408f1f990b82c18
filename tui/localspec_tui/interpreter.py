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


class _Lender:
    engine: "Answerer | None" = None  # of whose cores the screen has one


@contextmanager
def shared(engine: "Answerer | None") -> Iterator[None]:
    """While the engine answers: the screen would cost tokens if it kept the interpreter for as long as it draws."""
    _Answering.engine = engine
    try:
        yield
    finally:
        _Answering.engine = None


def borrow_core(engine: "Answerer | None") -> None:
    """From this engine, and from no other one; None gives it back. For the screen's thread alone."""
    if engine is not _Lender.engine:
        if _Lender.engine is not None:
            _Lender.engine.lend_core(False)
        _Lender.engine = engine
        if engine is not None:
            engine.lend_core(True)


class ScreenFirst(selectors.DefaultSelector):
    """What the event loop of the screen waits with; between two waits it draws, in one go.

    Loading a model is mostly Python too: imports. Turn by turn with them, drawing takes twice as long, and a typed key
    waits for it.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout != 0:  # else there is more to draw, and this only looks what came
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
    """As its own `run`, in an event loop that waits with it."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ScreenFirst())) as runner:
        runner.run(app.run_async())
