"""Runs tokenizers and chat templates on a thread, because either may take long.

A caller can stop waiting: by Ctrl+C on the main thread, and on other threads by the function given to
`stopping_unless`.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

THREAD = "encoding"  # its name
LOOK = 0.1  # seconds of waiting between checks whether the result is still wanted
PATIENCE = 60.0  # seconds that any text may take
PACE = 20_000  # characters per second beyond that; working tokenizers read a million

Result = TypeVar("Result")
_wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class Unwanted(Exception):  # not an error
    """A signal that the caller no longer waits for the result."""


@contextmanager
def stopping_unless(wanted: Callable[[], bool]) -> Iterator[None]:
    """Stop waiting for tokenizers and templates, within this context, once `wanted` returns False."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def patience(text: str) -> float:
    """Return the number of seconds that tokenizing a text may take."""
    return PATIENCE + len(text) / PACE


def run_with_timeout(work: Callable[[], Result], seconds: float, end: bool = False) -> Result:
    """Run `work` on another thread. Return its result, or raise its error.

    Raises TimeoutError after `seconds`, and Unwanted if the caller stops waiting. The thread then continues, so `work`
    must release Python's interpreter lock. With `end` the thread is ended instead; `work` must then be Python code.
    """
    done: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            done.put((None, error))

    thread = threading.Thread(target=run, name=THREAD, daemon=True)
    thread.start()
    try:
        result, error = _awaited(done, seconds)
    except BaseException:
        for _ in range(10 if end else 0):  # if it is inside a library, SystemExit is raised afterwards
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
            thread.join(LOOK)
            if not thread.is_alive():
                break
        raise
    if error is not None:
        raise error
    return cast("Result", result)


def _awaited(done: SimpleQueue[Result], seconds: float) -> Result:
    deadline, wanted = time.monotonic() + seconds, _wanted.get()
    while True:
        try:
            return done.get(timeout=LOOK)
        except Empty:
            if not wanted():
                raise Unwanted from None
            if time.monotonic() > deadline:
                raise TimeoutError from None


def is_abandoned() -> bool:
    """Return whether a thread that `run_with_timeout` gave up on still runs."""
    return any(thread.name == THREAD for thread in threading.enumerate())
