"""What looking costs: tokens/s in the chat against `localspec run`, the first paint, and how long typed keys wait.

    python research/bench_chat.py --rounds 5 -m demo
    python research/bench_chat.py --rounds 5 -m DIR --replies 200
    python research/bench_chat.py --rounds 5 -m DIR -n 800 --temp 2.5

Every round answers the same prompt with `localspec run`, and in a chat as each of LOOKS looks at it, in a terminal of its
own; greedily, without stored phrases, each in a new conversation after `--replies` replies. Tokens/s are the
engine's own, decoding only, and what the terminal itself would take to draw is not counted. Where the reply takes a
second, what is done once counts most: a key typed into it opens X-ray. A hot `--temp` (of one seed) makes it go on to
its limit. Keys are typed while the model loads, and in a reply that is not timed. Linux and macOS.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import checkout  # noqa: F401
from pseudo_terminal import Terminal

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.conversations import Saved, Turn
from localspec.store.store import Store

PROMPT = "Tell me a long story about a lighthouse keeper, a storm and a dog."
KEY_SECONDS = 0.05  # between two keys
SETTLE = 10  # this many more keys, until the last ones are shown
LOOKS = {"with the panel": "", "without it": "\x1bOS", "x-ray": "\x14"}  # keys typed when a reply has begun: F4, Ctrl+T


def headless(command: list[str], home: Path, alike: list[str]) -> float:
    """Tokens/s of `localspec run`."""
    answer = subprocess.run(
        [*command, "run", PROMPT, "--json", *alike], env=environment(home), capture_output=True, text=True, check=True
    )
    return float(json.loads(answer.stdout)["timings"]["tokens_per_second"])


class Kept:
    """The conversation used last, read again only where something was written since: looking takes time, too."""

    def __init__(self, store: Store, home: Path) -> None:
        self._store, self._file = store, Paths(home).database
        self._seen: tuple[int, ...] = ()
        self._last: Saved | None = None

    def last(self) -> Saved | None:
        """Return the last one, or None where there is none yet."""
        files = (self._file, self._file.with_name(f"{self._file.name}-wal"))
        seen = tuple(file.stat().st_mtime_ns for file in files if file.exists())
        if seen != self._seen:
            self._seen, latest = seen, self._store.history.latest()
            self._last = None if latest is None else self._store.history.read(latest)
        return self._last


def in_the_terminal(command: list[str], home: Path, alike: list[str], keys: str) -> tuple[float, float]:
    """Tokens/s of `localspec chat`, and what its screen took meanwhile, as a share of a core.

    `keys` are typed when the reply has begun. Until it has ended what the program sends is read and not drawn.
    """
    with Store.open(Paths(home).database, lambda _: None) as store:
        kept, before = Kept(store, home), state(home)
        terminal = Terminal([*command, "chat", PROMPT, *alike], environment(home))

        def asked() -> Turn | None:
            last = kept.last()
            return last.turns[-1] if last is not None and (last.info.id, len(last.turns)) != before else None

        terminal.skim(lambda: asked() is not None)
        terminal.send(keys)
        began, took = time.perf_counter(), terminal.seconds_of_the_screen()
        terminal.skim(lambda: (turn := asked()) is not None and turn.reason is not None)
        share = (terminal.seconds_of_the_screen() - took) / (time.perf_counter() - began)
        terminal.leave()
    return float(last(home).turns[-1].figures["tokens_per_second"]), share


def typing(command: list[str], home: Path, alike: list[str]) -> tuple[float, float, float]:
    """(seconds to the first paint, longest wait for a key while the model loads, the same while it answers)."""
    terminal, before = Terminal([*command, "chat", *alike], environment(home)), state(home)
    painted = terminal.until(lambda screen: screen.strip() != "")
    loading = typed(terminal, 60)
    terminal.send("\x15")  # deletes the line
    terminal.until(lambda screen: "xxxx" not in screen)
    terminal.send(PROMPT + "\r")
    terminal.until(lambda _: state(home) != before and last(home).turns[-1].reply != "", 600, every=0.5)
    answering = typed(terminal, 40)
    terminal.send("\x15")  # what was typed and not sent would be there in the next chat
    terminal.until(lambda screen: "xxxx" not in screen)
    terminal.leave()
    return painted, loading, answering


def typed(terminal: Terminal, keys: int) -> float:
    """Return the longest time from a key to the output that shows it, of `keys` keys.

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
    """Return the flags that continue a conversation of `replies` short replies; no flags for 0."""
    if not replies:
        return []
    number = None
    with Store.open(Paths(home).database, lambda _: None) as store:
        for at in range(replies):
            number, turn = store.history.say(number, f"And {at}?", model=model, system=None)
            store.history.write(turn, f"Yes, {at}.", "stop")
    return ["--conversation", str(number)]


def state(home: Path) -> tuple[int, int]:
    """Return the number of the latest chat and of its turns, or zeros where there is no chat."""
    with Store.open(Paths(home).database, lambda _: None) as store:
        if store.history.latest(lambda info: info.for_a_chat) is None:
            return 0, 0
    found = last(home)
    return found.info.id, len(found.turns)


def last(home: Path) -> Saved:
    """Return the conversation used last."""
    with Store.open(Paths(home).database, lambda _: None) as store:
        return saved_conversation(store.history, "last")


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "LOCALSPEC_HOME": str(home), "TERM": "xterm-256color"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("-n", "--max-tokens", type=int, default=400)
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--temp", type=float, default=0.0)
    parser.add_argument("--replies", type=int, default=0, help="that the conversation has before")
    arguments = parser.parse_args()
    alike = [
        "-m",
        arguments.model,
        "--drafter",
        arguments.drafter,
        "-n",
        str(arguments.max_tokens),
        "--temp",
        str(arguments.temp),
        "--seed",
        "7",
        "--pool",
        "off",
    ]
    command = [sys.executable, "-m", "localspec"]
    rounds: list[dict[str, float]] = []
    screens: dict[str, list[float]] = {look: [] for look in LOOKS}
    painted: list[float] = []
    loading: list[float] = []
    answering: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        headless(command, home, alike)  # measures what is measured once

        def again() -> list[str]:
            """Return the flags for one more reply, in a new conversation without the last reply."""
            return [*alike, *transcript(home, arguments.model, arguments.replies)]

        for _ in range(arguments.rounds):
            row = {"headless": headless(command, home, again())}
            for look, keys in LOOKS.items():
                row[look], screen = in_the_terminal(command, home, again(), keys)
                screens[look].append(screen)
            for figures, figure in zip((painted, loading, answering), typing(command, home, again()), strict=True):
                figures.append(figure)
            rounds.append(row)
            print(", ".join(f"{look} {speed:.1f} tokens/s" for look, speed in row.items()), flush=True)
    for look in LOOKS:
        shares = [row[look] / row["headless"] for row in rounds]
        print(
            f"{look}, of headless: median {statistics.median(shares):.3f} ({min(shares):.3f} to {max(shares):.3f}); "
            f"the screen takes {statistics.median(screens[look]):.1%} of a core"
        )
    print(f"first paint: median {statistics.median(painted):.3f} s")
    print(
        f"longest wait for a typed key while the model loads: {max(loading):.3f} s, while it answers: {max(answering):.3f} s"
    )


if __name__ == "__main__":
    main()
