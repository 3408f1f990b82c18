"""The terminal interface: a client of localspec's public names."""

import atexit
import gc
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Literal

from localspec import config
from localspec.config import Settings
from localspec.paths import Paths

if TYPE_CHECKING:
    from localspec.chat.start import StartedChat

CLOSE_SECONDS = 2.0  # for the step under way and the store
SWITCH_SECONDS = 0.0005


def chat(settings: Settings, prompt: str | None, files: str, resume: int | Literal["last"] | None) -> int:
    """Runs the full-screen chat until it is left; returns its exit code.

    `files` is text that goes before the first prompt. Raises what opening the conversation or loading its model raises
    as a mistake of the command line, and what went wrong inside, when the terminal is whole again and what was said is
    kept.
    """
    gc.disable()  # until the first paint, which would come a tenth later
    from localspec_tui import terminal
    from localspec_tui.app import ChatApp
    from localspec_tui.engine_thread import EngineThread, load

    def opening(at_the_end: ExitStack, notice: Callable[[str], None]) -> "StartedChat":
        gc.freeze()  # what is there by now stays to the end, and need not be looked through again
        gc.enable()
        from localspec.chat.start import start_chat  # on the engine's thread: the first paint does not wait for it

        return start_chat(settings, resume, at_the_end, notice)

    terminal.prepare()
    # A step is hundreds of short operations, and after each one the engine's thread asks for the interpreter again:
    # while the screen draws, it would wait 5 ms each time.
    sys.setswitchinterval(SWITCH_SECONDS)
    engine = EngineThread(settings, opening, load)
    app = ChatApp(engine, first=prompt, files=files, kept=settings.log)
    log, gone = Paths(config.home()).logs / "native.log", partial(app.leave, terminal.HANGUP)
    with terminal.guarded(log, gone), terminal.signals(app.leave):
        try:
            app.run()
        finally:
            gc.enable()
            app.keep_unsent()
            ended = engine.close(CLOSE_SECONDS)
    code = 1 if app.failure else app.return_code or 0
    if not ended:
        atexit.register(terminal.end_without_waiting, code)
    if app.failure:
        raise app.failure
    return code
