"""A process that is killed during a reply loses no finished work."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest
from clocks import PATIENCE
from command import environment

from localspec.chat.conversation import saved_conversation
from localspec.paths import Paths
from localspec.store.store import Store

FIGURES = b"(", b"context "  # how the line after a finished reply begins


class Chat:
    """`localspec chat --plain` in a process. A thread reads its output."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "chat", "--plain", "-m", "demo", "-n", "150", *arguments],
            env=environment(home), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        )  # fmt: skip
        self._said, self.told = bytearray(), Queue[bytes]()
        assert self.process.stdout and self.process.stderr
        os.set_blocking(self.process.stdout.fileno(), False)
        self._thread = Thread(target=lambda lines: [self.told.put(line) for line in lines], args=(self.process.stderr,))
        self._thread.start()

    @property
    def said(self) -> bytes:
        """Return all output since the last call."""
        self._hear()
        return bytes(self._said)

    def _hear(self) -> None:
        assert self.process.stdout
        while part := self.process.stdout.read(4096):
            self._said += part

    def ask(self, prompt: str) -> None:
        assert self.process.stdin
        self._hear()
        self._said.clear()
        self.process.stdin.write(prompt.encode() + b"\n")

    def wait_for(self, *words: bytes) -> bytes:
        while True:
            line = self.told.get(timeout=PATIENCE)
            if all(word in line for word in words):
                return line

    def wait_for_text(self) -> None:
        while not self.said:
            assert self.process.poll() is None
            time.sleep(0.001)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._thread.join()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_every_finished_turn_is_there_on_resume(tmp_path, kills):
    chance = random.Random(4)
    finished: list[tuple[str, str]] = []
    parts = 0
    for number in itertools.count():
        if number >= kills and parts >= kills // 4:
            break
        assert number < 10 * kills  # most kills come too late to matter
        afresh = number % 4 == 0  # conversations must stay short enough for the model's context
        chat = Chat(tmp_path, *([] if afresh else ["-c"]))
        if afresh:
            finished.clear()
        else:
            greeting = chat.wait_for(b"Continuing a conversation of")
            assert int(greeting.split()[4]) - len(finished) in (0, 1)  # a part of the killed reply may be saved
        chat.ask(f"Tell me a story about the number {number}.")
        chat.wait_for_text()
        began = time.monotonic()
        chat.wait_for(*FIGURES)
        lasted = time.monotonic() - began
        finished.append((f"Tell me a story about the number {number}.", chat.said.decode().removesuffix("\n")))
        chat.ask(f"And now a long one about {number} dogs.")
        chat.wait_for_text()
        time.sleep(chance.uniform(0, lasted))
        killed = chat.process.poll() is None and chat.told.empty()
        chat.kill()
        with Store.open(Paths(tmp_path).database, pytest.fail) as store:
            turns = saved_conversation(store.history, "last run").turns
        whole = [(turn.prompt, turn.reply.removesuffix("\n")) for turn in turns if turn.reason in ("stop", "length")]
        part = [turn for turn in turns if turn.reason is None]
        if whole[-1][0].startswith("And now"):  # the reply was finished before the kill
            finished.append(whole[-1])
        assert whole == finished
        if killed and part:
            parts += 1
            assert part[-1].prompt == f"And now a long one about {number} dogs."
            assert part[-1].reply == "" or chat.said.decode("utf-8", "ignore").startswith(part[-1].reply)
