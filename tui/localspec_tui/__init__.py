"""The terminal interface. It uses only localspec's public names."""

import atexit
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, TextIO

from localspec import environment
from localspec.config import Settings
from localspec.marks import drawable
from localspec.paths import Paths
from localspec.text import one_line
from localspec_tui import background

if TYPE_CHECKING:
    from localspec.chat.answerer import Answerer
    from localspec.chat.start import StartedChat
    from localspec.serving.server_engine import NamedServer

CLOSE_SECONDS = 2.0  # for the current step and the store
BUSY_SECONDS = 0.5  # in which the screen begins to end after a signal; otherwise the process ends without it


def chat(
    settings: Settings, prompt: str | None, files: str, resume: int | Literal["last"] | None, hint: str = ""
) -> int:
    """Run the full-screen chat until the user leaves it. Return the exit code of the command.

    `files` is the text of given files, which goes before the first prompt. `hint` is shown as the first notice. Raises
    the errors of opening the conversation and of loading its model, and UsageMistake for invalid colours or keys in the
    settings. Internal errors are raised after the terminal is restored and the conversation saved.
    """
    gc.disable()  # until the first paint, which a collection would delay by a tenth of a second
    with background.queried(settings.theme) as answer:
        return _chat(settings, prompt, files, resume, answer, hint)


def _chat(
    settings: Settings,
    prompt: str | None,
    files: str,
    resume: int | Literal["last"] | None,
    answer: background.Answer,
    hint: str,
) -> int:
    from localspec_tui import interpreter, loading, messages, terminal
    from localspec_tui.app import ChatApp
    from localspec_tui.engine_thread import EngineThread

    def opening(at_the_end: ExitStack, notice: Callable[[str], None]) -> "StartedChat":
        gc.freeze()  # existing objects stay to the end, so later collections need not scan them
        gc.enable()
        if hint:
            notice(hint)
        if settings.elsewhere is not None:
            return named_server().start(resume, at_the_end, notice, say_what_is_saved=False)
        from localspec.chat.start import start_chat  # on the engine's thread: the first paint does not wait for it

        return start_chat(settings, resume, at_the_end, notice, say_what_is_saved=False)

    @cache
    def named_server() -> "NamedServer":
        from localspec.serving.server_engine import NamedServer  # opens connections

        return NamedServer(settings)

    def load(*arguments: Any, **options: Any) -> "Answerer":
        engine = (
            loading.load(*arguments, **options)
            if settings.elsewhere is None
            else named_server().load(*arguments, **options)
        )
        gc.freeze()  # otherwise a scan of all objects would delay keys in the middle of a reply
        return engine

    terminal.prepare()
    engine = EngineThread(settings, opening, load)
    app = ChatApp(engine, settings, first=prompt, files=files)
    app.meant = answer.without
    answer.tell = lambda light: app.post_message(messages.BackgroundKnown(light))
    log, hang_up = Paths(environment.home()).logs / "native.log", partial(app.leave, terminal.HANGUP)

    def overdue(code: int) -> None:
        """End the process if the screen stays too busy to end the chat. First save the conversation and the draft."""
        if app.ends.wait(BUSY_SECONDS) or over.is_set():
            return
        sys.setswitchinterval(interpreter.AT_ONCE)  # the busy screen gets the interpreter last
        with suppress(Exception):
            app.keep_unsent()
        engine.close(CLOSE_SECONDS)
        with suppress(Exception):
            if app.driver is not None:
                app.driver.give_back()
            answer.show_again()
        say_farewell(code, sys.__stderr__)
        terminal.end_without_waiting(code)

    def say_farewell(code: int, stream: TextIO | None) -> None:
        """Print the last notice of the chat, unless its terminal is gone."""
        farewell = engine.farewell(app.unsent_lost)
        # A hangup may be sent by hand.
        if farewell and stream is not None and (code != terminal.HANGUP or terminal.is_there()):
            with suppress(OSError):  # there may be no reader
                print(drawable(farewell, stream), file=stream, flush=True)

    over = threading.Event()
    with terminal.guarded(log, hang_up), terminal.signals(app.leave, overdue):
        try:
            interpreter.run(app)
        finally:
            over.set()
            gc.enable()
            app.keep_unsent()
            ended = engine.close(CLOSE_SECONDS)
            app.end_download(CLOSE_SECONDS)
    code = 1 if app.failure else app.code
    if not ended:
        atexit.register(terminal.end_without_waiting, code)
    if app.failure:
        for sentence in engine.outlet.held_back or ():  # damage found earlier may be the cause
            print(drawable(f"localspec: {one_line(sentence)}", sys.stderr), file=sys.stderr)
        raise app.failure
    say_farewell(code, sys.stderr)
    return code
