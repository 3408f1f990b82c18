"""Fixtures of the terminal interface: an application over a scripted engine, with a store of its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyperclip
import pytest
from tui.scripted_engine import ScriptedChat

HERE = Path(__file__).parent


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Half a second each is too much for all of them together; a `quick` few stand for the others in `make check`."""
    for item in items:
        plays = item.path.parent == HERE and "chat" in getattr(item, "fixturenames", ())
        if plays and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)
