"""`localspec run`: the parts of the prompt, and their sources."""

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from cli.run.run_command import process, refused, tokens_of
from golden import matching, wording
from scripted_models import FRAME, scripted_model

from localspec.chat.attachments import joined
from localspec.cli import run as run_module
from localspec.cli.texts import read_file


@pytest.mark.slow
def test_where_the_prompt_comes_from(run, tmp_path, hello):
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("first\r\n")
    two.write_text("\nsécond\n\n")

    def asked(*arguments: object, piped: bytes = b"") -> int:
        return run("-m", hello.path, "--json", "-n", 1, *arguments, piped=piped).json["prompt_tokens"]

    assert asked("hi") == tokens_of("hi")
    assert asked("hi", piped=b"some text\n") == tokens_of("```\nsome text\n```\n\nhi")
    assert asked("-", piped=b"some text\n") == asked(piped=b"some text") == tokens_of("some text")
    assert asked("hi", piped=b" \n") == tokens_of("hi")
    assert asked("-f", one, "-f", two, "hi", piped=b"x") == tokens_of("first\n\nsécond\n\n```\nx\n```\n\nhi")
    assert asked("--file", one) == tokens_of("first")
    assert asked("-s", "Be kind.", "hi") == tokens_of("hi") + len("Be kind.") + 2
    assert asked("--system", "a\udcff", "b\udce9") == tokens_of("b\ufffd") + len("a\ufffd".encode()) + 2
    assert asked("--", "--help") == tokens_of("--help")


def test_the_words_of_the_prompt(monkeypatch, tmp_path):
    file = tmp_path / "notes"
    file.write_text("  indented\n")

    def prompt(argument: str | None, piped: bytes | None, files: tuple[Path, ...] = ()) -> str:
        stdin = None if piped is None else io.TextIOWrapper(io.BytesIO(piped))
        monkeypatch.setattr(sys, "stdin", stdin)
        return run_module._prompt(argument, joined(*map(read_file, files))).prompt

    assert prompt("hi", b"") == prompt("hi", None) == prompt(None, b"hi\n") == "hi"
    assert prompt("What is this?", b"\n  a table\n\n") == "```\n  a table\n```\n\nWhat is this?"
    assert prompt(None, b"\n  a table\n\n") == "  a table"
    assert prompt("hi", b"", (file,)) == "  indented\n\nhi"
    assert prompt("hi", b"a ```` b ```\n```") == "`````\na ```` b ```\n```\n`````\n\nhi"
    assert prompt("hi", b"piped", (file, file)) == "  indented\n\n  indented\n\n```\npiped\n```\n\nhi"
    assert prompt("\udcff\ud800x", b"piped") == "```\npiped\n```\n\n\ufffd\ufffdx"
    file.write_bytes(b"\xef\xbb\xbf\xef\xbb\xbfnotes")  # a second mark is part of the text
    assert prompt("hi", b"\xef\xbb\xbfpiped", (file,)) == "\ufeffnotes\n\n```\npiped\n```\n\nhi"
    for piped, said in ((b"\xe2\x82", wording("is_not_utf_8_text")), (b"a\0b", wording("holds_nul_bytes_text"))):
        with pytest.raises(run_module.UsageMistake, match=f"^Standard input {said}; pipe text in"):
            prompt("hi", piped)


def test_no_prompt(run, tmp_path, hello, monkeypatch):
    empty = tmp_path / "empty"
    empty.write_text("\n \n")
    for arguments in ((), ("-",), ("",), ("  ",), ("-f", empty)):
        refused(run("-m", hello.path, *arguments), 2, "no prompt")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stdin, argument, said in ((None, None, "no prompt"), (None, "-", "'-'"), (Terminal(), "-", "'-'")):
        monkeypatch.setattr(sys, "stdin", stdin)
        with pytest.raises(run_module.UsageMistake, match=said):
            run_module._prompt(argument, "")


def test_what_cannot_be_read(run, tmp_path, hello, monkeypatch):
    binary = tmp_path / "picture.png"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n")
    refused(run("-m", hello.path, "-f", binary, "hi"), 2, "picture.png", "UTF-8")
    binary.write_bytes(b"words\0")
    refused(run("-m", hello.path, "-f", binary, "hi"), 2, "picture.png", wording("holds_nul_bytes_text"))
    refused(run("-m", hello.path, "-f", "", "hi"), 2, wording("name_file"))
    refused(run("-m", hello.path, "-f", tmp_path / "gone.txt", "hi"), 2, "gone.txt", "No such file")
    refused(run("-m", hello.path, "-f", tmp_path, "hi"), 2, str(tmp_path), "directory")
    with open(tmp_path / "write-only", "wb") as stream:
        reader = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(stream.fileno()), "r")))
        monkeypatch.setattr(sys, "stdin", reader)
        with pytest.raises(run_module.UsageMistake, match=matching("standard_input_cannot_be_read")):
            run_module._prompt("hi", "")


@pytest.mark.slow
def test_bytes_that_are_no_text(home, hello):
    with process(home, "-m", hello.path, b"caf\xe9", b"-s", b"\xfe", "--json") as running:
        out, err = running.communicate()
    assert (running.returncode, err) == (0, b"")
    assert json.loads(out)["prompt_tokens"] == FRAME + len("caf\ufffd".encode()) + 2 + len("\ufffd".encode())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere such a name cannot be given to a directory")
def test_a_directory_whose_name_is_no_text(run, hello, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/m\xff")
    shutil.copytree(hello.path, name)
    refused(run("-m", name, "hi"), 1, "UTF-8", "rename")


@pytest.mark.slow
def test_a_model_without_a_chat_template_is_reported(run, tmp_path):
    base = scripted_model(tmp_path / "base", [b"and", b" so"], template="")
    assert run("-m", base.path, "Once", "--no-log") == (0, base.text + "\n", wording("localspec_model_chat_template"))
