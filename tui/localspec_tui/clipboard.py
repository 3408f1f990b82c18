"""Copies text, and says where it went. No terminal reports whether it accepted a copy."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from textual.app import App

from localspec import environment
from localspec.paths import private_directory

if TYPE_CHECKING:
    from localspec_tui.app import ChatApp

TMUX_SECONDS = 2.0


def copied(text: str, file: Path | None) -> str:
    """Copy to tmux's buffer and to the desktop's clipboard. Return the result in one sentence.

    If both fail, the terminal may have accepted the copy or not. So the text is also written to `file`, if given,
    readable only by its owner.
    """
    arrived = [place for place, copy in (("the clipboard", _to_desktop), ("tmux's buffer", _to_tmux)) if copy(text)]
    if arrived:
        return f"Copied to {' and '.join(arrived)}."
    if file is not None and _to_file(text, file):
        return f"Sent to the terminal's clipboard. If you cannot paste it, the text is in {file}"
    return "Sent to the terminal's clipboard; paste to see whether it arrived."


def _to_desktop(text: str) -> bool:
    import pyperclip

    try:
        pyperclip.copy(text)
    except Exception:  # noqa: BLE001  # a machine may have no clipboard, or a broken one
        return False
    return True


def _to_tmux(text: str) -> bool:
    """Copy a text to tmux's buffer and, with `-w`, to the clipboard of tmux's terminal. Return whether that worked."""
    if not environment.inside_tmux():
        return False
    command = ["tmux", "load-buffer", "-w", "-"]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=TMUX_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _to_file(text: str, file: Path) -> bool:
    try:
        private_directory(file.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(file, flags, 0o600), "w", encoding="utf-8") as opened:
            if os.name == "posix":
                os.fchmod(opened.fileno(), 0o600)  # an existing one may be readable for others
            opened.write(text)
    except OSError:
        return False
    return True


class CodeBlock(NamedTuple):
    """The text between two fences, or an indented block, without its last line break. `language` may be empty."""

    language: str
    text: str


def code_blocks(source: str) -> list[CodeBlock]:
    """Return all code blocks of a message, in order."""
    from localspec_tui.growing_document import parser  # slow to import

    tokens = (token for token in parser().parse(source) if token.type in ("fence", "code_block"))
    # A line break at the end would run the last line in a shell that it is pasted into.
    return [CodeBlock(token.info, token.content.removesuffix("\n")) for token in tokens]


class CodeCopies:
    """A helper that copies one code block of a message per call: the last block first, then earlier ones."""

    def __init__(self) -> None:
        self._source, self._back = "", 0

    def next(self, source: str) -> tuple[CodeBlock, str] | None:
        """Return the next code block of `source`, and a label such as "code, block 2 of 3"; None without code."""
        blocks = code_blocks(source)
        if not blocks:
            return None
        self._back = self._back + 1 if source == self._source else 0
        self._source = source
        at = len(blocks) - 1 - self._back % len(blocks)
        label = blocks[at].language or "code"
        if len(blocks) > 1:
            number, count = at + 1, len(blocks)
            label = f"{label}, block {number} of {count}; press the key again for the previous block"
        return blocks[at], label

    def copy(self, app: App[Any], source: str) -> None:
        """Copy the next block to the clipboard."""
        if result := self.next(source):
            block, label = result
            cast("ChatApp", app).copy_to_clipboard(block.text, label)
        else:
            app.notify("There is no code to copy here.", markup=False)
