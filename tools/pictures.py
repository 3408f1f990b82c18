"""Take the pictures of the README from the real program on a pseudo-terminal: docs/figures/pictures/.

    python tools/pictures.py [NAME …] -m MODEL --drafter KIND

Each scene is a command, the keys that somebody types, and a pattern that the screen must show before the picture is
taken. The model must be in the directories of LOCALSPEC_HOME, or in your own; the scenes save nothing. The model
answers greedily, so the text is the same each time, but not the speeds. Linux and macOS.
"""

import argparse
import contextlib
import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyte
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import TerminalTheme
from rich.text import Text


class Terminal:
    """A program on a pseudo-terminal. `screen` is the text that a person would see."""

    def __init__(self, command: list[str], environment: dict[str, str], size: tuple[int, int] = (120, 40)) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.began = time.perf_counter()
        self._file, child = pty.openpty()
        self._resize(child, *size)
        self.process = subprocess.Popen(
            command, stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True
        )
        os.close(child)

    @staticmethod
    def _resize(terminal: int, columns: int, lines: int) -> None:
        import fcntl
        import termios

        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def until(self, test: Callable[[str], bool], seconds: float = 120, every: float = 0.0) -> float:
        """Read the program's output until `test` accepts the text on the screen; return the seconds since the start.

        Exit after `seconds`. `test` is called at most once in `every` seconds, because it takes time from the program.
        """
        looked = -every
        while True:
            now = time.perf_counter() - self.began
            if now - looked >= every:
                looked = now
                if test("\n".join(self.screen.display)):
                    return time.perf_counter() - self.began
            if now > seconds:
                raise SystemExit("the screen never showed it:\n" + "\n".join(self.screen.display))
            if data := self.read(0.05):
                self.feed(data)

    def read(self, seconds: float) -> bytes:
        """Return the next bytes of the program, or none after `seconds`."""
        if select.select([self._file], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                return os.read(self._file, 1 << 16)
        return b""

    def feed(self, data: bytes) -> None:
        """Draw the program's output on the screen. Drawing takes longer than most programs need to send the output."""
        self._stream.feed(data)

    def leave(self) -> None:
        """Press Ctrl+Q, and read until the program has ended. It would wait for ever if nobody read its output."""
        self.send("\x11")
        self.until(lambda _: self.process.poll() is not None, time.perf_counter() - self.began + 60, every=0.05)


DRAWN = Path(__file__).parent.parent / "docs" / "figures" / "pictures"
QUESTION = "Write a Python function that returns the longest word of a sentence."
THEME = TerminalTheme(
    (24, 26, 31), (220, 223, 228),
    [(40, 44, 52), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194), (220, 223, 228)],
    [(92, 99, 112), (224, 108, 117), (152, 195, 121), (229, 192, 123), (97, 175, 239), (198, 120, 221), (86, 182, 194), (255, 255, 255)],
)  # fmt: skip


@dataclass(frozen=True)
class Scene:
    """A command line after `localspec`, keys that are typed when a pattern is seen, and the pattern at the end."""

    arguments: Sequence[str]
    size: tuple[int, int]
    steps: Sequence[tuple[str, str]]  # a pattern to wait for, and the keys to type then
    end: str


CHAT = ("chat", "--temp", "0", "--no-log", "-n", "160")
SCENES = {
    "chat": Scene(CHAT, (100, 30), [("quit|Quit|keys", f"{QUESTION}\r")], rf"(?s){re.escape(QUESTION)}.*faster"),
    "xray": Scene(
        CHAT,
        (100, 30),
        [("quit|Quit|keys", f"{QUESTION}\r"), (r"s · \d+ tokens", "\x14"), ("token 1 of", "\t\t")],
        "step 2 (drafted|gave)",
    ),
    "race": Scene(
        ["race", QUESTION, "--temp", "0", "-n", "80", "--cast", "race.cast"],
        (100, 24),
        [],
        "both texts are the same|The texts differ",
    ),
}


def take(name: str, scene: Scene, flags: Sequence[str]) -> None:
    """Play a scene with the flags that name model and drafter, and draw the screen at its end."""
    command = [sys.executable, "-m", "localspec", *scene.arguments, *flags]
    terminal = Terminal(command, {**os.environ, "TERM": "xterm-256color"}, scene.size)
    try:
        for pattern, keys in scene.steps:
            terminal.until(_shows(pattern))
            terminal.send(keys)
        terminal.until(_shows(scene.end))
        _settle(terminal)
    finally:
        terminal.process.kill()
        terminal.process.wait()
    (DRAWN / f"{name}.svg").write_text(drawing(terminal.screen, f"localspec {scene.arguments[0]}"), encoding="utf-8")


def _shows(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.search(pattern, text) is not None


def _settle(terminal: Terminal) -> None:
    """Wait until nothing on the screen has changed for a second."""
    shown, since = "", time.monotonic()

    def still(text: str) -> bool:
        nonlocal shown, since
        if text != shown:
            shown, since = text, time.monotonic()
        return time.monotonic() - since > 1

    terminal.until(still)


def drawing(screen: pyte.Screen, title: str) -> str:
    """Return an SVG document of a screen. It loads no fonts."""
    console = Console(record=True, width=screen.columns, file=io.StringIO(), force_terminal=True)
    used = max((line for line in range(screen.lines) if screen.display[line].strip()), default=0)
    for line in range(used + 1):
        console.print(_text(screen, line), no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title=title, theme=THEME)
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)


def _text(screen: pyte.Screen, line: int) -> Text:
    row, text = screen.buffer[line], Text()
    for style, run in groupby((row[column] for column in range(screen.columns)), _style):
        text.append("".join(char.data for char in run), style)
    return text


def _style(char: Any) -> Style:
    return Style(
        color=_colour(char.fg), bgcolor=_colour(char.bg), bold=char.bold, italic=char.italics,
        underline=char.underscore, reverse=char.reverse,
    )  # fmt: skip


def _colour(name: str) -> str | None:
    """Convert a colour of pyte, the emulated terminal, to rich, which draws; None for the default colour."""
    if name == "default":
        return None
    if re.fullmatch("[0-9a-f]{6}", name):
        return f"#{name}"
    return name.replace("brown", "yellow").replace("bright", "bright_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SCENES, []], help="else all of them")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--drafter", default="auto")
    arguments = parser.parse_args()
    DRAWN.mkdir(exist_ok=True)
    os.chdir(DRAWN)  # so that recordings name no directory of this machine
    for name in arguments.names or SCENES:
        take(name, SCENES[name], ["-m", arguments.model, "--drafter", arguments.drafter])
        print(f"docs/figures/pictures/{name}.svg")


if __name__ == "__main__":
    main()
