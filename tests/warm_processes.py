"""Processes of the program that have imported torch when they begin: forked from one that did so once."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clocks import PATIENCE
from command import environment

# Each line asks for a process; what comes back are its number and, when it has ended, how.
SERVER = """
import json, os, sys
import localspec.training.job
from localspec.__main__ import run
for line in sys.stdin.buffer:
    asked = json.loads(line)
    child = os.fork()
    if child == 0:
        os.chdir(asked["home"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        for number, name in enumerate((os.devnull, "said", "errors")):
            file = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        sys.argv = ["localspec", *asked["arguments"]]
        sys.exit(run())
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class WarmProcesses:
    server: subprocess.Popen[bytes]

    def ended(self, home: Path, arguments: list[str], sent: int, when: Callable[[], object]) -> tuple[int, str]:
        """Runs `localspec ARGUMENTS` in `home`, and sends it a signal as soon as `when()` is true; (exit code, errors).

        One at a time.
        """
        assert self.server.stdin is not None
        asked = {"home": str(home), "arguments": arguments, "environment": environment(home, OMP_NUM_THREADS="1")}
        self.server.stdin.write(json.dumps(asked).encode() + b"\n")
        self.server.stdin.flush()
        child, ends = self._number(), time.monotonic() + PATIENCE
        while not select.select([self.server.stdout], [], [], 0.01)[0]:  # which tells that it has ended by itself
            assert time.monotonic() < ends, (home / "errors").read_text()
            if when():
                os.kill(child, sent)
                break
        return self._number(), (home / "errors").read_text()

    def _number(self) -> int:
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())


@contextmanager
def warm_processes(home: Path, before: str = "") -> Iterator[WarmProcesses]:
    """`before` is Python that runs once, ahead of all of them."""
    server = subprocess.Popen(
        [sys.executable, "-c", before + SERVER], env=environment(home, OMP_NUM_THREADS="1"), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, bufsize=0,
    )  # fmt: skip
    try:
        yield WarmProcesses(server)
    finally:
        server.kill()
        server.communicate()
