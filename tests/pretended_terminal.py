"""A stand-in for a user who reads this process's output at a terminal."""

import os
import sys

import pytest


def read_at_a_terminal(patch: pytest.MonkeyPatch, stream: str, columns: int, lines: int = 20) -> None:
    """Make `stream`, "stdout" or "stderr", a terminal of that size; size 0 is a terminal that does not know it."""
    patch.delenv("COLUMNS", raising=False)
    patch.delenv("LINES", raising=False)
    patch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((columns, lines)))
    patch.setattr(getattr(sys, stream), "isatty", lambda: True)
    patch.setattr(getattr(sys, stream), "fileno", lambda: ("stdin", "stdout", "stderr").index(stream))
