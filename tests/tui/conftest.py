"""Fixtures of the terminal interface: an application over a scripted engine, with a store of its own."""

from collections.abc import Callable
from typing import Any

import pyperclip
import pytest
from tui.scripted_engine import ScriptedChat


@pytest.fixture
def chat(tmp_path, monkeypatch) -> Callable[..., ScriptedChat]:
    """chat(script, script, …): the application, whose engine answers with these."""
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path))
    monkeypatch.delenv("NO_COLOR", raising=False)

    def make(*scripts: Any, **about: Any) -> ScriptedChat:
        return ScriptedChat(tmp_path, *scripts, **about)

    return make


@pytest.fixture(autouse=True)
def clipboard(monkeypatch) -> list[str]:
    """What was copied; the machine's own clipboard is left alone."""
    copied: list[str] = []
    monkeypatch.setattr(pyperclip, "copy", copied.append)
    return copied
