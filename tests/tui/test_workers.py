"""Work in the background can be stopped before it began."""

import re
from pathlib import Path

import localspec_tui

SOURCES = sorted(Path(localspec_tui.__file__).parent.rglob("*.py"))


def test_workers_are_made_by_textuals_decorator():
    """run_worker takes a coroutine; if that never starts, Python prints a warning in the terminal."""
    assert [file.name for file in SOURCES if "run_worker" in file.read_text("utf-8")] == []
    assert any(re.search(r"^ +@work\b", file.read_text("utf-8"), re.MULTILINE) for file in SOURCES)
