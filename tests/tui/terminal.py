"""A program on an emulated terminal: the screen that a user would see, and every byte that was sent."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyte
from clocks import PATIENCE
from command import environment
from wcwidth import wcwidth

FAREWELL = r"“[^\x00-\x1f]*” is saved; continue with: localspec chat --conversation \d+"
LEAVE = "\x1b[?1049l"  # back to the screen of the shell
RUN = "import sys; from localspec.cli.main import main; sys.exit(main())"

# Modes that a terminal must not have after a program has left it: full screen, mouse reports, focus reports, bracketed
# paste, reports of its size.
TEMPORARY = {1000, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 1047, 1049, 2004, 2026, 2048}
USUAL = {7, 25}  # lines wrap, the cursor is shown


# All that Textual sends: modes that it sets at the beginning and resets at the end, and drawing in between.
BACKGROUND = r"\x1b\]11;\?\x1b\\"  # asked once
MODES = (
    BACKGROUND + r"|\x1b\[\?(?:7|25|1000|1003|1004|1006|1015|1049|2004)[hl]|\x1b\[(?:>25|<)u|\x1b\[\?(?:2026|2048)\$p"
)
COLOUR = r"[34]8;2;\d{1,3};\d{1,3};\d{1,3}"
STYLE = rf"\x1b\[(?:0|(?:[123479]|{COLOUR})(?:;(?:[123479]|{COLOUR}))*)m"
PLACE = r"\x1b\[(\d+);(\d+)H"
POINTER = r"\x1b\]22;[a-z-]+\x07"
DRAWING = rf"{STYLE}|{PLACE}|{POINTER}|\r\n(?=\x1b\[\d+;\d+H)"
COMMANDING = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # and what reorders a line


class _Screen(pyte.Screen):
    def draw(self, data: str) -> None:
        """Draw text; pyte drops what comes after a character without width."""
        super().draw("".join(char for char in data if wcwidth(char) > 0 or unicodedata.combining(char)))


class Terminal:
    """A program on an emulated terminal, as a context manager: at its end the program is ended, by force if necessary."""

    def __init__(
        self, command: Sequence[str | bytes], variables: dict[str, str], size: tuple[int, int] = (100, 30)
    ) -> None:
        self.raw = bytearray()
        self.screen = _Screen(*size)
        self._stream, self._unfinished = pyte.ByteStream(self.screen), b""
        self._file, theirs = pty.openpty()
        self._most = size  # columns and lines
        self._tell_size(*size)
        self.attributes = termios.tcgetattr(self._file)  # as they were before
        self.began = time.monotonic()
        self.process = subprocess.Popen(command, env=variables, preexec_fn=partial(os.login_tty, theirs))
        os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()

    # -- what a person does -------------------------------------------------------------------------------------------

    def send(self, keys: str | bytes) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:
            data = data[os.write(self._file, data[:1024]) :]
            self._read(0)

    def paste(self, text: str) -> None:
        self.send(f"\x1b[200~{text}\x1b[201~")

    def click(self, words: str) -> None:
        """Click with the mouse on the first letter of these words."""
        line = next(n for n, text in enumerate(self.screen.display) if words in text)
        column = self.screen.display[line].index(words)
        for motion in ("35;{}M", "0;{}M", "0;{}m"):  # the mouse moves there, and its button is pressed and released
            self.send("\x1b[<" + motion.format(f"{column + 1};{line + 1}"))

    def resize(self, columns: int, lines: int) -> None:
        self._most = max(columns, self._most[0]), max(lines, self._most[1])
        self.screen.resize(lines, columns)
        self.screen.erase_in_display(2)
        self._tell_size(columns, lines)

    def _tell_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the window."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- what a person sees -------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        # pyte's `display` fails if the first half of a wide character was overwritten, and the second half not yet.
        columns, lines = range(self.screen.columns), range(self.screen.lines)
        return "\n".join("".join(self.screen.buffer[line][column].data for column in columns) for line in lines)

    @property
    def words(self) -> str:
        """Return the text of the screen without blanks, line ends and bars."""
        return re.sub(r"[\s\u2500-\u259f]+", "", self.text)

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Run the program until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"it never came to pass:\n{self.text}"
            if not self._read(0.05):
                assert self.process.poll() is None or condition(), f"the program has ended:\n{self.afterwards}"
            while self._read(0) and time.monotonic() < end:  # reading the screen is slow
                pass

    def shows(self, *parts: str, seconds: float = PATIENCE) -> None:
        """Wait until all of these texts are on the screen."""

        def shown() -> bool:
            text = self.text
            return all(part in text for part in parts)

        self.until(shown, seconds)

    def ends(self, seconds: float = PATIENCE) -> int:
        """Wait for the end. Return the exit code, as in subprocess."""
        end = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            self._read(0.02)
        while self._read(0):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if self._file < 0:
            time.sleep(seconds)
            return False
        if not select.select([self._file], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._file, 1 << 16)
        except OSError:  # no process has it open any more
            return False
        self.raw += data
        drawn, unfinished = re.fullmatch(rb"(.*?)(\x1b[^A-Za-z\x07]*)?", self._unfinished + data, re.DOTALL).groups(b"")
        self._stream.feed(re.sub(rb"\x1b\[[\d;]*m", b"", drawn))  # pyte is slow, and colours are of no interest
        self._unfinished = unfinished
        return bool(data)

    # -- what reached it ----------------------------------------------------------------------------------------------

    @property
    def sent(self) -> str:
        """Return all output, which must be UTF-8."""
        return self.raw.decode("utf-8")

    def check_that_nobody_else_commands(self) -> None:
        """Check after the end that every sequence is one with which Textual begins, draws or ends."""
        begin = re.split(PLACE, self.sent, maxsplit=1)[0]
        drawn, mark, end = self.sent[len(begin) :].rpartition("\x1b[?2004l")
        assert mark
        for part, own in ((begin, rf"{MODES}|{POINTER}"), (drawn, DRAWING), (mark + end, rf"{MODES}|{DRAWING}|\r\n\Z")):
            rest = re.sub(own, "", part)
            foreign = [rest[max(found.start() - 30, 0) :][:60] for found in re.finditer(COMMANDING, rest)]
            assert not foreign, [text.encode("unicode_escape") for text in foreign[:5]]
        places = re.findall(PLACE, drawn)
        assert all(int(line) <= self._most[1] and int(column) <= self._most[0] for line, column in places)

    # -- what is left behind ------------------------------------------------------------------------------------------

    @property
    def afterwards(self) -> str:
        """Return the output after the full screen was left."""
        return re.sub(MODES, "", self.sent.rpartition(LEAVE)[2])

    def check_that_it_is_whole(self) -> None:
        """Check that the program has undone every terminal mode that it set."""
        modes = dict.fromkeys(TEMPORARY, False) | dict.fromkeys(USUAL, True)
        keyboard = 0
        for group, switch in re.findall(r"\x1b\[\?([\d;]+)([hl])", self.sent):
            modes |= {int(mode): switch == "h" for mode in group.split(";")}
        for switch in re.findall(r"\x1b\[([<>])[\d;]*u", self.sent):
            keyboard += 1 if switch == ">" else -1
        assert not {mode for mode in modes if modes[mode] != (mode in USUAL)}
        assert keyboard == 0
        assert re.findall(r"\x1b\[[\d;]*m", self.sent)[-1:] in ([], ["\x1b[0m"])
        assert termios.tcgetattr(self._file) == self.attributes


def chat(
    home: Path, *arguments: str | bytes, before: str = "", size: tuple[int, int] = (100, 30), **variables: str
) -> Terminal:
    """`localspec chat ARGUMENTS` in `home`. `before` is Python that runs in its process first."""
    known = {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "TEXTUAL_ANIMATIONS": "none"}
    return Terminal(
        [sys.executable, "-c", f"{before}\n{RUN}", "chat", *arguments], environment(home, **known, **variables), size
    )


def scripted_chat(home: Path, scripts: str, *arguments: str, before: str = "", **options: Any) -> Terminal:
    """Do the same with the demo model's name and an engine that replies with `scripts`, Python code for ScriptedEngine.

    It needs no torch, so it starts at once. `closed` is an event that never happens.
    """
    prepared = f"""
import sys, threading
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from localspec_tui import loading
from tui.scripted_engine import ScriptedEngine
closed = threading.Event()
loading.load = lambda *_, **__: ScriptedEngine(*{scripts})
{before}
"""
    return chat(home, *arguments, before=prepared, **options)
