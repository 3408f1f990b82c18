"""The entry points: `python -m localspec` and the command `localspec`."""

import os
import signal
import sys

from localspec import environment
from localspec.cli.interrupt import end_at_once
from localspec.cli.main import main


def run() -> int:
    """Run one command, and return its exit code. After that, Ctrl+C ends the interpreter at once."""
    environment.one_command = True
    try:
        code = main()
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, end_at_once)
        encoding = sys.modules.get("localspec.models.encoding")  # most commands never encode anything
        # The interpreter would unload modules under a thread that it cannot stop. After a training that would take a
        # second of computing, more on a busy machine, which `--hours` does not include.
        if (encoding is not None and encoding.is_abandoned()) or "localspec.training.job" in sys.modules:
            os._exit(code)
    except KeyboardInterrupt:
        end_at_once()
    return code


if __name__ == "__main__":
    sys.exit(run())
