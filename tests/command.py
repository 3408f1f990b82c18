"""Run the program as a user does: with a separate home, and in a separate process where that matters."""

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from unittest.mock import patch

from clocks import PATIENCE
from golden import wording

from localspec.cli.main import main

ROOT = Path(__file__).parent.parent
HEAVY = {"torch", "transformers", "numpy", "accelerate"}  # what models are computed and trained with


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return this process's environment without its terminal's size, switches of Python (such as PYTHONUNBUFFERED,
    which would flush what the program forgot to) and any LOCALSPEC_* but the given ones."""
    foreign = ("LOCALSPEC_", "COLUMNS", "LINES", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tui"))),
        "LOCALSPEC_HOME": str(home),
        **variables,
    }


def localspec(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `localspec ARGUMENTS` in `home`, with `variables` added to the environment."""
    return subprocess.run(
        [sys.executable, "-m", "localspec", *arguments],
        cwd=home,
        env=environment(home, **variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=PATIENCE,
    )


def called(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Do the same in this process, which saves a quarter of a second."""
    out, errors = io.StringIO(), io.StringIO()
    own = patch.dict(os.environ, environment(home, **variables), clear=True)
    with (
        own,
        chdir(home),
        patch("sys.stdin", io.TextIOWrapper(io.BytesIO())),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


def reaching(terminal: int) -> Iterator[bytes]:
    """Yield the output to a terminal until the program closes its end, which closes ours."""
    with suppress(OSError):  # how Linux says it
        while piece := os.read(terminal, 65536):
            yield piece
    os.close(terminal)


def what_is_kept(home: Path) -> str:
    """Return the notice about the first conversation that is saved in this home."""
    return wording("localspec_what_said_kept_readable", home=home / "data" / "localspec.db")


def sentence(result: subprocess.CompletedProcess[str]) -> str:
    """Return the line of an error. Assert that there is no output and no traceback."""
    assert result.stdout == ""
    assert result.stderr.startswith("localspec: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr


def light_help(home: Path, *commands: str) -> str:
    """Return the output of `--help` of these commands in a new process, which must load nothing that a model needs."""
    code = (
        "import sys; from localspec.cli.main import main; "
        f"codes = [main([command, '--help']) for command in {commands!r}]; "
        f"assert not any(codes) and not {HEAVY!r} & set(sys.modules), sorted({HEAVY!r} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(home), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
