"""One file a command: arguments, one call, print. `main.py` wires them; each command's file holds its `app`."""

import os
import signal
from contextlib import suppress


def end_at_once(*_: object) -> None:
    """What Ctrl+C does until main() hears it: nothing is open yet, and what is raised into imports may be swallowed."""
    with suppress(OSError):
        os.write(2, b"localspec: Interrupted.\n")
    os._exit(130)


if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, end_at_once)
