"""Runs other scripts with a time limit. A script and all processes that it started end together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpu_stages.request import ROOT

GRACE = 20.0  # seconds in which a script may save its progress


def run_script(
    words: Sequence[str],
    seconds: float,
    log: Path,
    environment: Mapping[str, str] | None = None,
    grace: float = GRACE,
) -> int | None:
    """Run a Python script, and return its exit code; None if its time ran out.

    The script and its children then get SIGTERM, and after `grace` seconds SIGKILL. Their output is appended to `log`.
    """
    # These are before the directories that may have other packages.
    folders = [str(ROOT), str(ROOT / "research"), str(ROOT / "tui")]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {**os.environ, "PYTHONPATH": paths, **(environment or {})}
    with log.open("a", encoding="utf-8") as out:
        child = subprocess.Popen(
            [sys.executable, *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=settings,
            start_new_session=True,
        )
        try:
            return child.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(child, grace)


def _end(child: "subprocess.Popen[bytes]", grace: float) -> None:
    """End a process and its group with SIGTERM, or with SIGKILL after `grace` seconds."""
    _tell(child, signal.SIGTERM)
    ends = time.monotonic() + grace
    try:
        while time.monotonic() < ends:
            child.poll()  # otherwise it stays in its group for ever
            if not _tell(child, 0):
                break
            time.sleep(0.1)
    finally:  # even if the caller does not wait for it
        _tell(child, signal.SIGKILL)
        child.wait()


def _tell(child: "subprocess.Popen[bytes]", signal_number: int) -> bool:
    """Send a signal to the process's group. Return whether the group still has processes."""
    try:
        os.killpg(child.pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def last_line(log: Path) -> str:
    """Return the last line of a script's output."""
    lines = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""
