"""A process of its own for what models bring along that computes; it can be stopped, and it can die alone.

Chat templates are programs, and a tokenizer may end the process that reads it. `confined.py` is what runs there.
"""

import atexit
import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event, RLock, Timer
from typing import Any

from localspec.errors import LocalspecError

MOST_SECONDS = 5.0  # of computing, for one answer; a template takes milliseconds
_PATIENCE = 120.0  # seconds, by the clock, where the system cannot count a process's own
_START = "import sys; sys.path[:] = sys.argv[1:]; from localspec.models.confined import serve; serve()"


class Stopped(Exception):
    """What was asked for took too long, or ended the process. The message is a clause that says which."""


class NoProcess(LocalspecError):
    """There can be none now, which is no fault of what was asked for."""


class Confinement:
    """The process, started when it is needed and again where it was stopped. It may be asked from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = RLock()

    def start(self) -> None:
        """Begins the process, so that it is there when something is asked. Raises NoProcess where there can be none."""
        with self._lock:
            if self._process is not None and self._owner == os.getpid():  # a forked child has one of its own
                if self._process.poll() is None:
                    return
                self.end()  # somebody killed it meanwhile, such as the system that ran out of memory
            here = str(Path(__file__).parents[2])
            apart: dict[str, Any] = (
                {"process_group": 0}  # Ctrl+C is for those who wait, not for it
                if os.name == "posix"
                else {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
            )
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-c", _START, *(place for place in sys.path if place), here],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    **apart,
                )
            except OSError as error:
                raise NoProcess(_why_none(error)) from error
            self._owner = os.getpid()

    def ask(self, request: Mapping[str, Any], seconds: float = MOST_SECONDS) -> dict[str, Any]:
        """Returns what `confined.py` answers. Raises Stopped after so many seconds of computing, and what `start`
        raises."""
        with self._lock:
            line, code, killed = self._asked(request, seconds)
            if killed:  # by somebody else, such as the system that ran out of memory; once that is no fault of its own
                line, code, _ = self._asked(request, seconds)
            if not line.endswith(b"\n"):
                raise Stopped(f"it ended the process that it ran in, with {code}" if code not in _TOO_LONG else _LONG)
            answer: dict[str, Any] = json.loads(line)
            return answer

    def _asked(self, request: Mapping[str, Any], seconds: float) -> tuple[bytes, int, bool]:
        """The line that answers; without a whole one the exit code, and whether somebody else killed the process."""
        self.start()
        process, late = self._process, Event()
        assert process is not None and process.stdin is not None and process.stdout is not None

        def give_up() -> None:
            late.set()
            process.kill()

        watch = Timer(_PATIENCE + seconds, give_up)
        watch.daemon = True
        watch.start()
        try:
            process.stdin.write(json.dumps({**request, "seconds": seconds}).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        except BaseException:  # an answer that nobody waits for must not be taken for the next one
            self.end()
            raise
        finally:
            watch.cancel()
        if line.endswith(b"\n"):
            return line, 0, False
        code = self.end(kill=False)
        return line, code, code == _KILLED and not late.is_set()

    def end(self, kill: bool = True) -> int:
        """Ends the process, if it is ours; returns its exit code."""
        with self._lock:
            process, self._process = self._process, None
            if process is None or self._owner != os.getpid():
                return 0
            if kill:
                process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:  # what was not sent is not needed any more
                        pass
            return process.wait()


def _why_none(error: OSError) -> str:
    """Why there can be none, and what to do about just that."""
    what = f"No process can be started for what models bring along ({error.strerror})"
    match error.errno:
        case errno.EAGAIN:
            return f"{what}; close other programs, or raise the limit of this shell (`ulimit -u`)."
        case errno.EMFILE:
            return f"{what}; raise the limit of this shell (`ulimit -n 1024`)."
        case errno.ENFILE | errno.ENOMEM:
            return f"{what}; close other programs."
    return f"{what}: {sys.executable} must be there, and be a program that you may run."


_LONG = "it takes too long"
_KILLED = -9
_TOO_LONG = (_KILLED, -24, -27)  # killed, or by the system's own clocks of computing: SIGXCPU, SIGPROF

confinement = Confinement()
atexit.register(confinement.end)
