"""Run thousands of replies as one user would have them, with phrases and restarts, and report what grows.

    python research/soak.py --prompts data/eval --replies 10000 --home /tmp/soak

`localspec chat --plain` answers. Now and then its process is ended, every third time by SIGKILL, and a new process
continues the last conversation. For each tenth of the run a line is printed: the process's resident memory, open files
and threads, the seconds per reply (median, worst) and the size of the database. At the end: how many finished replies
were saved.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median

import psutil
from experiment import questions

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.store import Store

FIGURES = b"context "  # in the line after a finished reply


class Chat:
    """A process of `localspec chat`."""

    def __init__(self, options: argparse.Namespace, resumed: bool) -> None:
        words = ["chat", "--plain", "-m", options.model, "-n", str(options.max_tokens), *(["-c"] if resumed else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localspec", *words],
            env={**os.environ, "LOCALSPEC_HOME": str(options.home)},
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.watched = psutil.Process(self.process.pid)

    def asks(self, line: str) -> float:
        """Send a prompt, and return the seconds until its reply ended. Raises RuntimeError with the output if it fails."""
        assert self.process.stdin and self.process.stderr
        began, output = time.perf_counter(), b""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        while not (heard := self.process.stderr.readline()).startswith(b"(") or FIGURES not in heard:
            output += heard
            if not heard:
                raise RuntimeError(f"{line!r} was not answered: {output.decode('utf-8', 'replace')}")
        return time.perf_counter() - began

    def ends(self, killed: bool) -> None:
        if killed:
            self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def figures(self) -> str:
        memory = self.watched.memory_info().rss / 2**20
        return f"{memory:7.1f} MiB  {self.watched.num_fds():3} files  {self.watched.num_threads():3} threads"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="demo")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--home", type=Path, required=True, help="an empty directory")
    parser.add_argument("--replies", type=int, default=10_000)
    parser.add_argument("--restart", type=int, default=250, help="replies of one process, about")
    parser.add_argument("--conversation", type=int, default=10, help="turns of one conversation, about")
    parser.add_argument("-n", "--max-tokens", type=int, default=24)
    options = parser.parse_args()
    chance = random.Random(0)
    prompts = [question.text.splitlines()[0] for question in questions(options.prompts, None)]
    chat, left, ended = Chat(options, resumed=False), options.restart, 0
    times: list[float] = []
    sent: list[str] = []
    for number in count(1):
        prompt = f"{number}: {chance.choice(prompts)[:80]}."
        times.append(chat.asks(prompt))
        sent.append(prompt)
        if number % max(1, options.replies // 10) == 0:
            stored = sum(file.stat().st_size for file in Paths(options.home).database.parent.glob("localspec.db*"))
            print(f"{number:6}  {chat.figures()}  {median(times):.3f} s, at most {max(times):.3f}  "
                  f"database {stored / 2**20:.1f} MiB", flush=True)  # fmt: skip
            times.clear()
        if number == options.replies:
            break
        left -= 1
        if left <= 0 and chance.random() < 0.1:
            ended, left = ended + 1, options.restart
            chat.ends(killed=ended % 3 == 0)
            chat = Chat(options, resumed=True)
        elif chance.random() < 1 / options.conversation:
            assert chat.process.stdin
            chat.process.stdin.write(b"/new\n")
    chat.ends(killed=False)
    with Store.open(Paths(options.home).database, print) as store:
        turns = (t for i in store.history.conversations() for t in saved_conversation(store.history, i.id).turns)
        saved = {turn.prompt for turn in turns if turn.reason in ("stop", "length")}
    print(
        f"{ended} restarts, {ended // 3} by SIGKILL; of {len(sent)} finished replies {len(saved & set(sent))} are kept"
    )


if __name__ == "__main__":
    main()
