"""Edits a text in the user's editor, which uses the terminal meanwhile."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from textual.app import App, SuspendNotSupported

from localspec import environment
from localspec.errors import LocalspecError, UsageMistake
from localspec.outside_files import MIB, read_bytes
from localspec.text import one_line
from localspec_tui import interpreter
from localspec_tui.widgets.typed_text import TypedText

if TYPE_CHECKING:
    from localspec_tui.app import ChatApp

LONGEST = 64 * MIB  # bytes of the result
LOOK_SECONDS = 0.2
NONE_NAMED = "No editor is named; set VISUAL or EDITOR to one, for example export EDITOR=nano."


def edited(text: str, command: str | None, leaving: Callable[[], bool]) -> str:
    """Return the text as the user changed it in the editor.

    This waits for the editor. When `leaving` returns True, the editor is ended, and the text in its file is returned.

    Raises UsageMistake if `command` is empty or cannot be started, and LocalspecError if the editor fails.
    """
    if not command or not (words := _words(command)):
        raise UsageMistake(NONE_NAMED)
    # A temporary directory is readable only by its owner.
    with tempfile.TemporaryDirectory(prefix="localspec-", ignore_cleanup_errors=True) as folder:
        file, name = Path(folder, "prompt.md"), Path(words[0]).name
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
        try:
            code = _run([*words, str(file)], leaving)
        except OSError as error:
            raise UsageMistake(
                f"The editor {name!r} cannot be started ({error.strerror}); set VISUAL or EDITOR to one that can."
            ) from None
        if code and not leaving():
            if code < 0:
                raise LocalspecError(f"The editor {name!r} was ended by signal {-code}, so the prompt is unchanged.")
            raise LocalspecError(f"The editor {name!r} ended with exit code {code}, so the prompt is unchanged.")
        try:
            return read_bytes(file, LONGEST).decode("utf-8", "replace").removesuffix("\n")
        except OSError as error:
            raise LocalspecError(
                f"The text from the editor {name!r} cannot be read ({error.strerror}), so the prompt is unchanged."
            ) from None


def edit_prompt(app: App[Any], prompt: TypedText) -> None:
    """Let the user edit the prompt in the editor, which has the terminal meanwhile. If that fails, change nothing."""
    text, mistake = prompt.text, ""
    if environment.editor() is None:
        app.notify(NONE_NAMED, markup=False)
        return
    try:
        with _interrupts_ignored(), app.suspend():  # `suspend` would not take the terminal back after an exception
            interpreter.borrow_core(None)  # nothing is drawn until the editor ends, and a reply may continue
            try:
                text = edited(text, environment.editor(), lambda: cast("ChatApp", app).leaving)
            except LocalspecError as error:
                mistake = str(error)
    except SuspendNotSupported:
        mistake = "This terminal cannot run an editor; write in the prompt."
    if mistake:
        app.notify(one_line(mistake), severity="error", markup=False)
    else:
        prompt.put(text)


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command, posix=os.name == "posix")
    except ValueError:  # an unclosed quote
        return [command]


def _run(words: list[str], leaving: Callable[[], bool]) -> int:
    """Run the editor, and return its exit code. The editor gets the real terminal, not the redirected streams."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    process = subprocess.Popen(words, **dict(zip(("stdin", "stdout", "stderr"), streams, strict=True)))  # type: ignore[call-overload]
    while True:
        try:
            return int(process.wait(LOOK_SECONDS))
        except subprocess.TimeoutExpired:
            if leaving():
                process.terminate()


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl+C in this process while the editor, which handles Ctrl+C itself, has the terminal.

    The signal gets an empty handler, because the editor would inherit SIG_IGN.
    """
    previous = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
