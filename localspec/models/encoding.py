"""A text becomes token ids on a thread of its own: its tokenizer may be long over it, and nothing ends that.

Whoever waits can go: Ctrl+C does so on the main thread, and elsewhere what `given_up_unless` was given.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

THREAD = "encoding"  # its name
LOOK = 0.1  # seconds of waiting, after which it is asked again whether anybody wants the ids
PATIENCE = 60.0  # seconds that any text may take
PACE = 20_000  # characters a second beyond that; tokenizers that work read a million

Result = TypeVar("Result")
_wanted: ContextVar[Callable[[], bool]] = ContextVar("wanted", default=lambda: True)


class Unwanted(Exception):  # nothing is wrong
    """Whoever asked has left."""


@contextmanager
def given_up_unless(wanted: Callable[[], bool]) -> Iterator[None]:
    """Meanwhile this thread waits for no text to be encoded any more, soon after `wanted` says no."""
    before = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(before)


def patience(text: str) -> float:
    """Seconds that a text may take."""
    return PATIENCE + len(text) / PACE


def waited_for(work: Callable[[], Result], seconds: float) -> Result:
    """What `work` returns or raises on its thread, which is left behind where nobody waits for it any more.

    `work` must let go of Python's interpreter. Raises Unwanted, and TimeoutError after so many seconds.
    """
    done: SimpleQueue[tuple[Result | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            done.put((None, error))

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    deadline, wanted = time.monotonic() + seconds, _wanted.get()
    while True:
        try:
            result, error = done.get(timeout=LOOK)
        except Empty:
            if not wanted():
                raise Unwanted from None
            if time.monotonic() > deadline:
                raise TimeoutError from None
        else:
            if error is not None:
                raise error
            return cast(Result, result)


def is_left_behind() -> bool:
    """Whether something is still encoded that nobody waits for."""
    return any(thread.name == THREAD for thread in threading.enumerate())
