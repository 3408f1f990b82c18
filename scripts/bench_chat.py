"""What the terminal interface costs: time to the first paint, gaps while typing, and tokens/s against `localspec run`.

    python scripts/bench_chat.py --rounds 5 -m demo

Every round starts `localspec run` and `localspec chat` on the same prompt, greedily and without stored phrases, in a
terminal of its own; tokens/s are the engine's own, decoding only. Linux and macOS.
"""

import argparse
import contextlib
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyte

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.history import Saved
from localspec.store.store import Store

COLUMNS, LINES = 120, 40
PROMPT = "Tell me a long story about a lighthouse keeper, a storm and a dog."
KEY_SECONDS = 0.05


class Terminal:
    """A program on a terminal that is drawn nowhere; `screen` is what a person would see."""

    def __init__(
        self, command: list[str], environment: dict[str, str], size: tuple[int, int] = (COLUMNS, LINES)
    ) -> None:
        self.screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self.screen)
        self.began = time.perf_counter()
        self._file, theirs = pty.openpty()
        self._resize(theirs, *size)
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)

    @staticmethod
    def _resize(terminal: int, columns: int, lines: int) -> None:
        import fcntl
        import termios

        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def until(self, seen: Callable[[str], bool], seconds: float = 120, every: float = 0.0) -> float:
        """Reads until the screen shows it; returns when that was, in seconds since the start.

        It looks `every` so many seconds: looking takes time from the program that is measured.
        """
        looked = -every
        while True:
            now = time.perf_counter() - self.began
            if now - looked >= every:
                looked = now
                if seen("\n".join(self.screen.display)):
                    return time.perf_counter() - self.began
            if now > seconds:
                raise SystemExit("the screen never showed it:\n" + "\n".join(self.screen.display))
            if select.select([self._file], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self._stream.feed(os.read(self._file, 1 << 16))


def headless(command: list[str], home: Path, alike: list[str]) -> float:
    """Tokens/s of `localspec run`."""
    answer = subprocess.run(
        [*command, "run", PROMPT, "--json", *alike], env=environment(home), capture_output=True, text=True, check=True
    )
    return float(json.loads(answer.stdout)["timings"]["tokens_per_second"])


def in_the_terminal(command: list[str], home: Path, alike: list[str]) -> tuple[float, float, float]:
    """(tokens/s, seconds to the first paint, longest wait for a typed key while the model loads) of `localspec chat`."""
    before = last(home).info.id
    terminal = Terminal([*command, "chat", *alike], environment(home))
    painted = terminal.until(lambda screen: screen.strip() != "")
    longest = 0.0
    for typed in range(1, 61):
        pressed = time.perf_counter()
        terminal.send("x")
        terminal.until(lambda screen: "x" * typed in screen)
        longest = max(longest, time.perf_counter() - pressed)
        time.sleep(KEY_SECONDS)
    terminal.send("\x15")  # deletes the line
    terminal.until(lambda screen: "xxxx" not in screen)
    terminal.send(PROMPT + "\r")
    terminal.until(lambda _: last(home).info.id > before and last(home).turns[-1].reason is not None, every=0.5)
    terminal.send("\x11")
    terminal.process.wait(30)
    return float(last(home).turns[-1].figures["tokens_per_second"]), painted, longest


def last(home: Path) -> Saved:
    """The conversation used last."""
    with Store.open(Paths(home).database, lambda _: None) as store:
        return saved_conversation(store.history, "last")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "LOCALSPEC_HOME": str(home), "TERM": "xterm-256color"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-n", "--max-tokens", type=int, default=400)
    arguments = parser.parse_args()
    alike = ["-m", arguments.model, "-n", str(arguments.max_tokens), "--temp", "0", "--pool", "off"]
    command, rounds = [sys.executable, "-m", "localspec"], []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        headless(command, home, alike)  # measures what is measured once
        for _ in range(arguments.rounds):
            alone = headless(command, home, alike)
            rounds.append((alone, *in_the_terminal(command, home, alike)))
            print(
                "{:.1f} tokens/s headless, {:.1f} in the terminal; painted after {:.3f} s; longest wait {:.3f} s".format(
                    *rounds[-1]
                )
            )
    shares = [inside / alone for alone, inside, _, _ in rounds]
    print(
        f"in the terminal, of headless: median {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
    )
    print(f"first paint: median {statistics.median(row[2] for row in rounds):.3f} s")
    print(f"longest wait for a typed key while the model loads: {max(row[3] for row in rounds):.3f} s")


if __name__ == "__main__":
    main()
