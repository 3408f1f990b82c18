"""As if somebody read what this process prints at a terminal."""

import os
import sys

import pytest


def read_at_a_terminal(patch: pytest.MonkeyPatch, stream: str, columns: int, lines: int = 20) -> None:
    """`stream`, "stdout" or "stderr", is a terminal of that size; one that does not know its size says 0."""
    patch.delenv("COLUMNS", raising=False)
    patch.delenv("LINES", raising=False)
    patch.setattr("os.get_terminal_size", lambda *_: os.terminal_size((columns, lines)))
    patch.setattr(getattr(sys, stream), "isatty", lambda: True)
    patch.setattr(getattr(sys, stream), "fileno", lambda: ("stdin", "stdout", "stderr").index(stream))
