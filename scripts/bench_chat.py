"""What looking costs: tokens/s in the chat against `localspec run`, the first paint, and how long typed keys wait.

    python scripts/bench_chat.py --rounds 5 -m demo
    python scripts/bench_chat.py --rounds 5 -m DIR --replies 200

Every round answers the same prompt with `localspec run`, and in a chat as each of LOOKS looks at it, in a terminal of its
own; greedily, without stored phrases, after so many `--replies` in the same conversation. Tokens/s are the engine's own,
decoding only. Keys are typed while the model loads, and in a reply that is not timed. Linux and macOS.
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
from localspec.store.conversations import Saved
from localspec.store.store import Store

COLUMNS, LINES = 120, 40
PROMPT = "Tell me a long story about a lighthouse keeper, a storm and a dog."
KEY_SECONDS = 0.05  # between two keys
SETTLE = 10  # as long as so many keys more, until the last ones are shown
LOOKS = {"with the panel": "", "without it": "\x1bOS", "x-ray": "\x14"}  # keys typed when a reply has begun: F4, Ctrl+T


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
            if data := self.read(0.05):
                self.feed(data)

    def read(self, seconds: float) -> bytes:
        """What the program sends next, if it sends anything within so many seconds."""
        if select.select([self._file], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                return os.read(self._file, 1 << 16)
        return b""

    def feed(self, data: bytes) -> None:
        """Draws it. That takes longer than most programs need to send it."""
        self._stream.feed(data)

    def leave(self) -> None:
        """Ctrl+Q; what is still drawn is read, or the program would wait."""
        self.send("\x11")
        self.until(lambda _: self.process.poll() is not None, time.perf_counter() - self.began + 60, every=0.05)


def headless(command: list[str], home: Path, alike: list[str]) -> float:
    """Tokens/s of `localspec run`."""
    answer = subprocess.run(
        [*command, "run", PROMPT, "--json", *alike], env=environment(home), capture_output=True, text=True, check=True
    )
    return float(json.loads(answer.stdout)["timings"]["tokens_per_second"])


def in_the_terminal(command: list[str], home: Path, alike: list[str], keys: str) -> tuple[float, float, float]:
    """(tokens/s, seconds to the first paint, longest wait for a key while the model loads) of `localspec chat`.

    `keys` are typed when the reply has begun.
    """
    terminal, before = Terminal([*command, "chat", *alike], environment(home)), state(home)
    painted = terminal.until(lambda screen: screen.strip() != "")
    longest = typed(terminal, 60)
    terminal.send("\x15")  # deletes the line
    terminal.until(lambda screen: "xxxx" not in screen)
    terminal.send(PROMPT + "\r")
    terminal.until(lambda _: state(home) != before, every=0.5)
    terminal.send(keys)
    terminal.until(lambda _: state(home) != before and last(home).turns[-1].reason is not None, 600, every=0.5)
    terminal.leave()
    return float(last(home).turns[-1].figures["tokens_per_second"]), painted, longest


def typing_in_a_reply(command: list[str], home: Path, alike: list[str]) -> float:
    """The longest wait for a typed key while the model answers."""
    terminal, before = Terminal([*command, "chat", *alike], environment(home)), state(home)
    terminal.until(lambda screen: screen.strip() != "")
    terminal.send(PROMPT + "\r")
    terminal.until(lambda _: state(home) != before and last(home).turns[-1].reply != "", 600, every=0.5)
    longest = typed(terminal, 40)
    terminal.send("\x15")  # what was typed and not sent would be there in the next chat
    terminal.until(lambda screen: "xxxx" not in screen)
    terminal.leave()
    return longest


def typed(terminal: Terminal, keys: int) -> float:
    """The longest that one of so many keys had to wait until what shows it was sent.

    What comes is drawn here only afterwards: a key would wait for the drawing of all that came before it.
    """
    pressed: list[float] = []
    came: list[tuple[float, bytes]] = []
    for _ in range(keys + SETTLE):
        now = time.perf_counter()
        if len(pressed) < keys:
            pressed.append(now)
            terminal.send("x")
        while (left := now + KEY_SECONDS - time.perf_counter()) > 0:
            if data := terminal.read(left):
                came.append((time.perf_counter(), data))
    waits: list[float] = []
    for moment, data in came:
        terminal.feed(data)
        screen = "\n".join(terminal.screen.display)
        while len(waits) < keys and "x" * (len(waits) + 1) in screen:
            waits.append(moment - pressed[len(waits)])
    if len(waits) < keys:
        raise SystemExit(f"{keys - len(waits)} keys were not shown:\n{screen}")
    return max(waits)


def transcript(home: Path, model: str, replies: int) -> list[str]:
    """The flags that go on with a conversation of so many short replies; none where there are to be none."""
    if not replies:
        return []
    number = None
    with Store.open(Paths(home).database, lambda _: None) as store:
        for at in range(replies):
            number, turn = store.history.say(number, f"And {at}?", model=model, system=None)
            store.history.write(turn, f"Yes, {at}.", "stop")
    return ["--conversation", str(number)]


def state(home: Path) -> tuple[int, int]:
    """The conversation used last, and how many turns it has."""
    found = last(home)
    return found.info.id, len(found.turns)


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
    parser.add_argument("--replies", type=int, default=0, help="that the conversation has before")
    arguments = parser.parse_args()
    alike = ["-m", arguments.model, "-n", str(arguments.max_tokens), "--temp", "0", "--pool", "off"]
    command = [sys.executable, "-m", "localspec"]
    rounds: list[dict[str, float]] = []
    painted, loading, answering = [], [], []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        headless(command, home, alike)  # measures what is measured once
        alike += transcript(home, arguments.model, arguments.replies)
        for _ in range(arguments.rounds):
            row = {"headless": headless(command, home, alike)}
            for look, keys in LOOKS.items():
                row[look], paint, wait = in_the_terminal(command, home, alike, keys)
                painted.append(paint)
                loading.append(wait)
            answering.append(typing_in_a_reply(command, home, alike))
            rounds.append(row)
            print(", ".join(f"{look} {speed:.1f} tokens/s" for look, speed in row.items()), flush=True)
    for look in LOOKS:
        shares = [row[look] / row["headless"] for row in rounds]
        print(f"{look}, of headless: median {statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f})")
    print(f"first paint: median {statistics.median(painted):.3f} s")
    print(
        f"longest wait for a typed key while the model loads: {max(loading):.3f} s, while it answers: {max(answering):.3f} s"
    )


if __name__ == "__main__":
    main()
