"""Other scripts, run for so long and no longer: all that they started ends with them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_stages.asked import ROOT

GRACE = 20.0  # seconds in which a script may write down where it is


def run_script(
    words: Sequence[str], seconds: float, log: Path, environment: Mapping[str, str] | None = None, cwd: Path = ROOT
) -> int | None:
    """The exit code of a Python program with these arguments; None where its time ran out.

    It is asked to end by SIGTERM first. What it says is added to a file.
    """
    paths = os.pathsep.join([str(ROOT), str(ROOT / "scripts"), str(ROOT / "tui")])
    settings = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
    with log.open("a", encoding="utf-8") as out:
        child = subprocess.Popen(
            [sys.executable, *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=settings,
            start_new_session=True,
        )
        try:
            return child.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(child)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Ends a process, and whatever of its group is left."""
    if child.poll() is None:
        child.terminate()
        ends = time.monotonic() + GRACE
        while child.poll() is None and time.monotonic() < ends:
            time.sleep(0.1)
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def last_line(log: Path) -> str:
    """The last thing that a script said."""
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""
