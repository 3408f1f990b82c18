"""`localspec run --keep TIME`: a server of one's own is left behind, until nobody has asked for so long."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from typing import Any

from localspec import environment
from localspec.config import LOADED_BY, PREFIX, Settings
from localspec.errors import LocalspecError, UsageMistake
from localspec.events import Reporter
from localspec.models import registry
from localspec.models.registry import TargetCard
from localspec.quantities import short_seconds_of
from localspec.text import one_line

START_SECONDS = 120.0
LOOK = 0.2


def kept_seconds(length: str, settings: Settings) -> int:
    """The seconds of `--keep`. Raises UsageMistake, LocalspecError where there can be no such server."""
    if settings.server is not None:
        raise UsageMistake(f"--keep {length} has no effect with {settings.shown('server')}; leave one of them out.")
    if sys.platform == "win32":
        raise LocalspecError(
            "--keep needs sockets that nobody but their user can open, which Windows lacks; use WSL, or leave it out."
        )
    return short_seconds_of(length)


def leave_behind(settings: Settings, card: TargetCard, seconds: int, reporter: Reporter) -> str:
    """Starts a server that would load this model as this process would, and waits until it listens.

    Returns why there is none, where it ends at once or does not begin in time; else an empty text.
    """
    reporter.progress("starting localspec serve")
    length = f"{seconds}s"
    with tempfile.TemporaryFile() as errors:  # no pipe: the server outlives whoever would read it
        process = subprocess.Popen(
            [sys.executable, "-m", "localspec", "serve", "--idle", length, "--keep-alive", length],
            cwd=os.path.abspath(os.sep), env=_environment(settings, card), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        assert process.stdout is not None
        with process.stdout as stream:
            until, said = time.monotonic() + START_SECONDS, b""
            while time.monotonic() < until:
                if select.select([stream], [], [], LOOK)[0]:
                    said += (piece := os.read(stream.fileno(), 2**12))
                    if b"\n" in said:  # all of its line: it would be ended by a pipe that nobody reads
                        return ""
                    if not piece:
                        errors.seek(0)
                        return _last_sentence(errors.read(2**16))
    process.terminate()
    return f"It did not begin in {START_SECONDS:.0f} s."


def _last_sentence(said: bytes) -> str:
    """The last thing that a process said that has ended."""
    found = said.decode("utf-8", "replace").splitlines() or ["It ended without a word."]
    return one_line(found[-1].removeprefix("localspec: "))


def _environment(settings: Settings, card: TargetCard) -> dict[str, str]:
    """This process's variables, with what decides how a model is loaded as it is here, wherever that came from."""
    known = {f"{PREFIX}{name.upper()}": _written(getattr(settings, name)) for name in LOADED_BY}
    own = {**known, f"{PREFIX}MODEL": registry.reference(card)}
    home = {} if environment.home() is None else {environment.HOME: str(environment.home())}
    return {**os.environ, **{name: value for name, value in own.items() if value}, **home}


def _written(value: Any) -> str:
    """A value as a variable has it; an empty one counts as unset."""
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
