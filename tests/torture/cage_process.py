"""The process of cage.py: it imports everything once, and runs each command in a child that starts within milliseconds.

An order is a line of JSON on standard input, its result a line on standard output.
"""

import atexit
import contextlib
import ctypes
import io
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from clocks import PATIENCE

LOOK = 1.0  # seconds between looks at one that takes long
MOST = 10  # times its limit, however busy the machine is
MEMORY = 6 * 2**30  # bytes of address space for a command: a damaged length must not exhaust the machine's memory


def import_what_commands_use(*more: str) -> Any:
    from localspec.__main__ import run
    from localspec.cli.main import COMMANDS

    for command in COMMANDS:
        import_module(f"localspec.cli.{command}")
    for name in ("engine.engine", "engine.importing", "native.target", "hub.client", "bench.race", "store.store"):
        import_module(f"localspec.{name}")
    for name in ("tokenizers", *more):
        import_module(name)
    return run


def command(run: Any, order: dict[str, Any], faults: Any) -> int:
    """Run a command in the child as if it had just been started in a shell."""
    for descriptor, name in enumerate(("input", "out", "errors")):
        flags = os.O_RDONLY if name == "input" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        os.dup2(os.open(order[name], flags, 0o600), descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        io.TextIOWrapper(os.fdopen(n, m), line_buffering=n == 2) for n, m in ((0, "rb"), (1, "wb"), (2, "wb"))
    )  # type: ignore[arg-type]
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["home"])
    os.umask(0o022)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which it is when the program comes to itself
    sys.argv = ["localspec", *order["arguments"]]
    if faults is None:
        return int(run())
    faults.faults_begin(os.fsencode(order["home"]), order["at"], order["error"], order["stays"])
    code = int(run())
    count = faults.faults_end()
    Path(order["report"]).write_text(
        json.dumps([count, os.fsdecode(faults.faults_failed()), faults.faults_failed_at()])
    )
    return code


def end(code: int) -> NoReturn:
    """End as the interpreter does, but without unloading every library, which takes a second of CPU time."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def kept_waiting(process: int) -> float:
    """Return the seconds that one of its threads waited for a CPU: on a busy machine a command is slow, and does not
    hang."""
    longest = 0
    for place in Path(f"/proc/{process}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            longest = max(longest, int(place.read_text().split()[1]))
    return longest / 1e9


def cued(cue: str, ended: int) -> bool:
    """Wait for the file, if one is expected. Return False if the child or the wait ends before it exists."""
    gives_up = time.monotonic() + PATIENCE
    while cue and not os.path.exists(cue):
        if select.select([ended], [], [], 0.01)[0] or time.monotonic() > gives_up:
            return False
    return True


def watched(child: int, order: dict[str, Any]) -> dict[str, Any]:
    """Send the requested signal at the requested moment, and end a child that takes too long."""
    began, ended = time.monotonic(), os.pidfd_open(child)
    try:
        if order.get("signal") and not select.select([ended], [], [], order["after"])[0] and cued(order["cue"], ended):
            os.kill(child, order["signal"])
        hung = False
        while not hung and not select.select([ended], [], [], min(order["limit"], LOOK))[0]:
            took = time.monotonic() - began
            hung = took - kept_waiting(child) > order["limit"] or took > MOST * order["limit"]
        if hung:
            os.kill(child, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status, used = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status), "hung": hung, "seconds": time.monotonic() - began,
        "peak": 1024 * used.ru_maxrss,
    }  # fmt: skip


def serve() -> None:
    run = import_what_commands_use(*sys.argv[1:])
    faults = ctypes.CDLL(None) if "LD_PRELOAD" in os.environ else None
    if faults is not None:
        faults.faults_failed.restype = ctypes.c_char_p
        faults.faults_end.restype = faults.faults_failed_at.restype = ctypes.c_long
        faults.faults_begin.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        if (child := os.fork()) == 0:
            end(command(run, order, faults))
        print(json.dumps(watched(child, order)), file=answers, flush=True)


if __name__ == "__main__":
    serve()
