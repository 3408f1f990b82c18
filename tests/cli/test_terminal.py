"""Neither a model's text nor a file's name can send control codes to the terminal."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from clocks import PATIENCE
from command import environment, reaching, what_is_kept
from each import each
from hostile_text import NAME, commands
from pretended_terminal import read_at_a_terminal
from scripted_models import Script, scripted_model

from localspec.cli.console import Progress
from localspec.cli.main import main

pty = pytest.importorskip("pty")
termios = pytest.importorskip("termios")

PIECES = [
    *(bytes([byte]) for byte in range(256)),
    *(b"\xc2%c" % byte for byte in range(0x80, 0xA0)),  # C1 as UTF-8
    b"\xc2", b"\x9b", b"31m", b"\xc2", b"\x9d", b"52;c;aGk=", b"\xc2", b"\x9c",  # C1 split over tokens
    b"\x1b", b"]52;c;", b"aGk=", b"\x07", b"\x1b]52;c;aGk=\x1b\\", b"\x1b", b"[", b"2J", b"\x1b[31mred\x1b[0m",
    *("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c".encode()[n : n + 1] for n in range(35)),
    "\u2028\u2029".encode(), b"\r", b"\n", b"over\rwritten\r\n", b"\x08\x08\x7f", "tab\there 世\n".encode(), b"end",
]  # fmt: skip

# The few sequences of our own, on standard error only: back to the start of the line, and clear it.
PROGRESS = re.compile(r"\r\x1b\[K")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Script:
    return scripted_model(tmp_path_factory.mktemp("hostile") / "model", PIECES)


@pytest.fixture
def home(lived_in: Callable[..., Path], fresh_home: Path, hostile: Script) -> Path:
    return lived_in(fresh_home, hostile.path)


def at_terminal(home: Path, *arguments: object, stderr: bool = False, **variables: str) -> tuple[int, bytes, bytes]:
    """Run `localspec run ARGUMENTS` with a terminal as standard output: exit code, what reached it, standard error.

    With `stderr` that goes to the terminal as well. Standard input is the terminal too, and nobody types.
    """
    ours, theirs = pty.openpty()
    mode = termios.tcgetattr(theirs)
    mode[1] &= ~termios.OPOST  # the terminal itself adds no \r
    termios.tcsetattr(theirs, termios.TCSANOW, mode)
    process = subprocess.Popen(
        [sys.executable, "-m", "localspec", "run", *map(str, arguments)],
        env=environment(home, **{"TERM": "xterm", **variables}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if stderr else subprocess.PIPE,
    )
    os.close(theirs)
    shown = b"".join(reaching(ours))
    _, said = process.communicate(timeout=PATIENCE)
    return process.returncode, shown, said or b""


@pytest.mark.slow
def test_the_reply_at_a_terminal(home, hostile):
    code, shown, said = at_terminal(home, "-m", hostile.path, "hi")
    assert (code, said) == (0, b"")
    assert commands(shown) == set()
    text = shown.decode()
    escaped = ("\u241b[2J", "\u241b]52;c;aGk=\u2407", "\u241b[31mred", "\ufffd31m")
    assert [part for part in (*escaped, "overwritten\n", "tab\there 世\nend\n") if part not in text] == []
    assert "".join(map(chr, range(0x20, 0x7F))) in text and text.endswith("end\n")


@pytest.mark.slow
def test_progress_is_gone_before_anything_stays(home, tmp_path, hostile):
    path = tmp_path / NAME
    shutil.copytree(hostile.path, path)
    (home / "data" / "localspec.db").write_bytes(b"no database " * 500)
    code, shown, _ = at_terminal(home, "-m", path, "hi", "--stats", stderr=True)
    text = shown.decode()
    assert code == 0 and PROGRESS.search(text) and "loading" in text
    assert commands(PROGRESS.sub("", text).encode()) == set()
    lines = [PROGRESS.split(line)[-1] for line in text.split("\n")]  # the final text of each line
    assert lines[0].startswith("localspec: ") and "set aside" in lines[0]
    assert lines[1] + "\n" == what_is_kept(home)
    assert lines[2].startswith("␀␁")
    assert "first token" in lines[-3] and "on cpu" in lines[-2] and lines[-1] == ""


@each("columns", [80, 30, 12])
def test_a_line_of_progress_never_continues_in_the_next(monkeypatch, capsys, columns):
    """Only the second of two lines would be erased, so each step of a training would leave a line."""
    read_at_a_terminal(monkeypatch, "stderr", columns)
    monkeypatch.delenv("TERM", raising=False)
    Progress().show("27 %  step 8  loss 12.765  346 tokens/s  39 s left")
    before, shown = capsys.readouterr().err.split("\x1b[K")
    assert before == "\r" and len(shown) < columns and shown.endswith(" …")
    assert shown.startswith("27 %  step 8"[: columns - 3]), "what matters most stands first"


@pytest.mark.slow
def test_a_dumb_terminal_gets_no_progress(home, hostile):
    code, shown, _ = at_terminal(home, "-m", hostile.path, "hi", stderr=True, TERM="dumb")
    assert code == 0 and commands(shown) == set() and b"loading" not in shown


@pytest.mark.slow
def test_an_error_takes_the_place_of_progress(home, tmp_path, hostile):
    path = tmp_path / NAME
    shutil.copytree(hostile.path, path)
    (path / "tokenizer.json").write_text("{")
    code, shown, _ = at_terminal(home, "-m", path, "hi", stderr=True)
    lines = [PROGRESS.split(line)[-1] for line in shown.decode().split("\n")]
    assert code == 1 and len(lines) == 2 and lines[0].startswith("localspec: ") and "tokenizer" in lines[0]
    assert commands(lines[0].encode()) == set()


@pytest.fixture
def quiet(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set this process's environment for `main`, and close standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    return tmp_path


@pytest.mark.slow
def test_every_form_is_safe_in_process(quiet, hostile, capfdbinary):
    for form in ((), ("--json",), ("--stream-json",), ("--no-spec",), ("--stop", "\x1b[31m")):
        assert main(["run", "-m", str(hostile.path), "hi", *form]) == 0
        out, err = capfdbinary.readouterr()
        assert commands(out) == set() and err == b"" and len(out) > 300


@pytest.mark.slow
def test_these_tests_would_notice(quiet, hostile, capfdbinary, monkeypatch):
    monkeypatch.setattr("localspec.cli.run.safe", lambda text: text)
    assert main(["run", "-m", str(hostile.path), "hi"]) == 0
    found = commands(capfdbinary.readouterr().out)
    assert found >= set("\x00\x07\x08\r\x1b\x7f\x9b\x9d\u202e\u2067\u200f\u2028")


@each(
    "arguments",
    [
        ["-m", NAME, "hi"],
        ["-m", f"./{NAME}", "hi"],
        ["-m", "{directory}", "hi"],
        ["-f", NAME, "hi"],
        [f"--{NAME}", "hi"],
        ["hi", NAME],
        ["--temp", NAME, "hi"],
        ["--drafter", NAME, "hi"],
        ["--device", NAME, "hi"],
        ["--dtype", NAME, "hi"],
        ["--draft-max", NAME, "hi"],
        ["--pool", NAME, "hi"],
        ["--no-spec", "--drafter", NAME, "hi"],
    ],
)
def test_hostile_names_in_errors(quiet, hostile, capfdbinary, arguments):
    (quiet / NAME).mkdir(exist_ok=True)
    arguments = [argument.replace("{directory}", str(quiet / NAME)) for argument in arguments]
    model = [] if "-m" in arguments else ["-m", str(hostile.path)]
    assert main(["run", *model, *arguments]) in (2, 3)
    out, err = capfdbinary.readouterr()
    assert out == b"" and err.startswith(b"localspec: ") and err.count(b"\n") == 1
    assert commands(err) == set() and b"evil" in err


def test_hostile_names_in_files(quiet, hostile, capfdbinary):
    config = quiet / "home" / "config"
    config.mkdir(parents=True)
    toml = json.dumps(NAME).replace("\x7f", "\\u007f")
    model = quiet / "model"
    shutil.copytree(hostile.path, model)
    said = {**json.loads((model / "config.json").read_text()), "architectures": [NAME]}
    (model / "config.json").write_text(json.dumps(said))
    for file, content in (
        ("config.toml", f"{toml} = 1\n"),
        ("config.toml", f"drafter = {toml}\n"),
        ("models.toml", f"[{toml}]\nlicence = {toml}\n"),
        (None, None),
    ):
        for old in config.iterdir():
            old.unlink()
        if file:
            (config / file).write_text(content)
        assert main(["run", "-m", str(hostile.path if file else model), "hi"]) in (1, 2)
        out, err = capfdbinary.readouterr()
        assert out == b"" and err.startswith(b"localspec: ") and err.count(b"\n") == 1
        assert commands(err) == set() and b"evil" in err
