"""Run commands of localspec in isolation, a few each second, with disk faults, signals and limits."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command import ROOT, environment

HERE = Path(__file__).parent
LIMIT = 60.0  # seconds after which a command counts as hung, without the time that it waits for a CPU
KINDS = {"ENOSPC": 28, "EIO": 5, "EINTR": 4}


@dataclass(frozen=True)
class Fault:
    """A failing change: the change of that number below the home, and if it `stays`, all later ones. 0: none fails."""

    at: int = 0
    kind: str = "EIO"
    stays: bool = False

    def __str__(self) -> str:
        return f"{self.kind} at change {self.at}{' and from then on' if self.stays else ''}"


@dataclass(frozen=True)
class Signal:
    """A signal that is sent `after` some seconds, or as soon as `when` is true, if it is given."""

    number: signal.Signals
    after: float = 0.0
    when: Callable[[], object] | None = None

    def __str__(self) -> str:
        return f"{self.number.name} after {self.after * 1000:.1f} ms"


@dataclass(frozen=True)
class Ended:
    """How a command ended. `changes`: how many it made below the home; `failed`, `failed_at`: the first that was made to
    fail, and its number. Of one that a signal ended nothing is known of them."""

    code: int
    hung: bool
    seconds: float
    out: str
    errors: str
    changes: int = 0
    failed: str = ""
    failed_at: int = 0
    peak: int = 0  # most bytes of memory that it used


class Cage:
    """One process from which every command is forked; make it with `open_cage`."""

    def __init__(self, process: subprocess.Popen[str], scratch: Path) -> None:
        self._process, self._scratch = process, scratch

    def run(
        self,
        home: Path,
        *arguments: str,
        typed: str = "",
        fault: Fault | None = None,
        sent: Signal | None = None,
        **variables: str,
    ) -> Ended:
        """`localspec ARGUMENTS` in `home`, `typed` on standard input. Raises RuntimeError where the cage has ended."""
        places = {name: self._scratch / name for name in ("input", "out", "errors", "report")}
        for place in places.values():
            place.write_text(typed if place.name == "input" else "")
        cue = self._scratch / "cue"
        cue.unlink(missing_ok=True)
        fault = fault or Fault()
        order: dict[str, Any] = {
            **{name: str(place) for name, place in places.items()},
            "home": str(home), "arguments": arguments, "environment": environment(home, **variables),
            "at": fault.at, "error": KINDS[fault.kind], "stays": fault.stays, "limit": LIMIT,
        }  # fmt: skip
        if sent:
            order |= {"signal": int(sent.number), "after": sent.after, "cue": str(cue) if sent.when else ""}
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        with _given(cue, sent.when) if sent and sent.when else nullcontext():
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"The process that runs the commands has ended with {self._process.wait()}.")
        out, errors, report = (places[name].read_text(errors="replace") for name in ("out", "errors", "report"))
        changes, failed, at = json.loads(report) if report else (0, "", 0)
        return Ended(**json.loads(answer), out=out, errors=errors, changes=changes, failed=failed, failed_at=at)


@contextmanager
def _given(cue: Path, when: Callable[[], object]) -> Iterator[None]:
    """Meanwhile, the file is made as soon as `when` is true."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            if when():
                cue.touch()
                return

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def faults_library(directory: Path) -> Path:
    """Compile disk_faults.c, for Linux only: other systems cannot preload libraries in this way."""
    made = directory / "disk_faults.so"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden")
    zig = (sys.executable, "-m", "ziglang", "cc")
    subprocess.run([*zig, *flags, str(HERE / "disk_faults.c"), "-o", str(made), "-ldl"], check=True)
    return made


@contextmanager
def open_cage(preload: Path | None = None, *modules: str) -> Iterator[Cage]:
    """Yield a cage; with `preload`, of `faults_library`, its disk can fail. `modules` are imported beforehand, too."""
    with tempfile.TemporaryDirectory() as scratch:
        own = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tui", ROOT / "tests"))),
            "OMP_NUM_THREADS": "1",
        }
        if preload:
            own["LD_PRELOAD"] = str(preload)
        process = subprocess.Popen(
            [sys.executable, str(HERE / "cage_process.py"), *modules],
            env=own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield Cage(process, Path(scratch))
        finally:
            assert process.stdin
            process.stdin.close()
            process.wait()
