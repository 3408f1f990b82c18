"""Every script can be imported, and says what it does: none may fall behind the package."""

import runpy
import sys

import pytest
from command import ROOT

FILES = sorted((ROOT / "scripts").glob("*.py"))
PROGRAMS = [file for file in FILES if "__main__" in file.read_text("utf-8")]


@pytest.mark.parametrize("script", PROGRAMS, ids=lambda path: path.stem)
def test_it_answers_to_help(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(script), run_name="__main__")
    assert left.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {script.name} ")


@pytest.mark.parametrize("script", [file for file in FILES if file not in PROGRAMS], ids=lambda path: path.stem)
def test_what_scripts_share_can_be_imported(script):
    runpy.run_path(str(script))


def test_every_program_is_listed():
    listed = (ROOT / "docs" / "scripts.md").read_text("utf-8")
    assert [file.name for file in PROGRAMS if f"`{file.name}`" not in listed] == []
