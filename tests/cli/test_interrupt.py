"""Ctrl+C in a command: while libraries are imported, in code made of text, and where it is not ours."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from clocks import PATIENCE
from command import called, environment

from localspec.cli.interrupt import interrupt
from localspec.errors import LocalspecError

INTERRUPTED = (130, "", "localspec: Interrupted.\n")
PRESSED = "import signal\nsignal.raise_signal(signal.SIGINT)\n"
SWALLOWED = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    print("the second one was not raised")
except KeyboardInterrupt:
    pass
"""


@pytest.fixture
def ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """(exit code, output, errors) of a command that does this work, after importing a library of this code."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(library: str, work: Callable[[], object] = lambda: None) -> tuple[int, str, str]:
        (tmp_path / "imported_here.py").write_text(library)
        app = typer.Typer()

        @app.command()
        def command() -> None:
            import imported_here  # noqa: F401

            work()

        monkeypatch.setitem(sys.modules, "localspec.cli.path", SimpleNamespace(app=app))
        result = called(tmp_path, "path")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        return result.returncode, result.stdout, result.stderr

    yield run
    sys.modules.pop("imported_here", None)


def wait() -> None:
    time.sleep(PATIENCE)
    pytest.fail("the command went on")


def test_it_comes_when_the_import_has_ended(ends):
    """Native libraries swallow what is raised while they are imported, or abort."""
    began = time.monotonic()
    assert ends(PRESSED + "print('imported')", wait) == (130, "imported\n", "localspec: Interrupted.\n")
    assert time.monotonic() - began < PATIENCE  # it ends what waits


def test_an_import_that_takes_it_for_its_own_failure(ends, tmp_path):
    for library in (PRESSED, SWALLOWED):
        failing = "raise ImportError('cannot load module more than once per process')"
        assert ends(library + failing) == INTERRUPTED
    assert not (tmp_path / "state").exists()  # no log of an error


def test_the_second_one_does_not_wait_for_the_import(ends):
    assert ends(PRESSED + PRESSED + "print('imported')", wait) == INTERRUPTED


def test_what_an_import_swallows_ends_a_command_where_it_looks(ends):
    assert ends(SWALLOWED, interrupt.check) == INTERRUPTED


def test_nothing_comes_again_while_a_command_tidies_up(ends):
    """The import has ended, and the command has seen it before it came again."""

    def work() -> None:
        try:
            interrupt.check()
        finally:
            time.sleep(0.2)
            print("tidied up")

    assert ends(PRESSED, work) == (130, "tidied up\n", "localspec: Interrupted.\n")


def test_what_was_answered_explains_no_later_error(ends):
    def work() -> None:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        interrupt.forget()
        raise ValueError("odd")

    code, _, errors = ends("", work)
    assert code == 1 and "Unexpected ValueError: odd" in errors


@pytest.mark.parametrize(
    ("error", "said"), [(ValueError("odd"), "Unexpected ValueError: odd"), (LocalspecError("Full."), "Full.")]
)
def test_a_step_that_fails_says_so(ends, error, said):
    """Ctrl+C waits for the end of a step, so it is not why one fails: what it was to save may be lost."""

    def work() -> None:
        with interrupt.in_steps():
            interrupt.wait_for_step = True
            signal.raise_signal(signal.SIGINT)
            raise error

    code, _, errors = ends("", work)
    assert code == 1 and said in errors


def test_a_handler_of_somebody_else_stays(tmp_path):
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        assert called(tmp_path, "path").returncode == 0
        signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


# A command in the place of `path`, in a process of its own.
ALONE = """
import signal, sys, types, typer
{before}
module = types.ModuleType("localspec.cli.path")
module.app = typer.Typer()
@module.app.command()
def path():
    {body}
    print("went on")
sys.modules["localspec.cli.path"] = module
from localspec.cli.main import main
sys.exit(main(["path"]))
"""


def alone(home: Path, body: str, before: str = "") -> tuple[int, str, str]:
    code = ALONE.format(body=body, before=before)
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment(home), cwd=home, text=True, capture_output=True, timeout=PATIENCE
    )
    return result.returncode, result.stdout, result.stderr


@pytest.mark.slow
def test_the_exit_code_is_the_same_where_it_leaves_code_made_of_text(tmp_path):
    """CPython would end with the signal there, as dataclasses and named tuples are made of text."""
    assert alone(tmp_path, "exec('signal.raise_signal(signal.SIGINT)')") == INTERRUPTED


@pytest.mark.slow
def test_before_a_command_is_known(tmp_path):
    """While the program itself is imported."""
    before = "import localspec.cli; signal.raise_signal(signal.SIGINT); print('went on')"
    assert alone(tmp_path, "pass", before) == INTERRUPTED


@pytest.mark.slow
def test_what_is_ignored_stays_ignored(tmp_path):
    """As in the background of a shell."""
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    assert alone(tmp_path, "signal.raise_signal(signal.SIGINT)", ignored) == (0, "went on\n", "")
