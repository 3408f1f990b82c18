"""Which thread gets the interpreter: the screen's first, both in turn during a reply; and which core each runs on."""

import selectors
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from tui.scripted_engine import ScriptedEngine, talked
from tui.terminal import scripted_chat

from localspec_tui import editor, interpreter
from localspec_tui.interpreter import AT_ONCE, KEPT, SHARED, ScreenFirst


@pytest.fixture
def waited(monkeypatch):
    """Yield the intervals while the event loop waits."""
    seen, before = [], sys.getswitchinterval()
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda *_: seen.append(sys.getswitchinterval()) or [])
    yield seen
    sys.setswitchinterval(before)


def test_the_screen_gets_it_at_once_and_keeps_it_until_it_waits(waited):
    with ScreenFirst() as selector:
        selector.select()
        assert waited == [pytest.approx(AT_ONCE)] and sys.getswitchinterval() == pytest.approx(KEPT)
        with interpreter.shared(ScriptedEngine()):
            selector.select()
            assert waited[1:] == [pytest.approx(SHARED)] and sys.getswitchinterval() == pytest.approx(SHARED)
        selector.select()
        assert waited[2:] == [pytest.approx(AT_ONCE)] and sys.getswitchinterval() == pytest.approx(KEPT)
    assert sys.getswitchinterval() == pytest.approx(SHARED)


def test_others_get_it_at_once_while_it_only_looks_what_came(waited):
    with ScreenFirst() as selector:
        selector.select(0)
        assert waited == [pytest.approx(AT_ONCE)] and sys.getswitchinterval() == pytest.approx(KEPT)


@pytest.fixture
def had(monkeypatch):
    """Yield an engine, and whether the screen has its core each time the event loop waits or polls."""
    engine, seen = ScriptedEngine(), []
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda *_: seen.append(engine.lent[-1:]) or [])
    interval = sys.getswitchinterval()
    yield engine, seen
    sys.setswitchinterval(interval)


def test_the_screen_has_a_core_of_the_engine_while_it_draws(had):
    engine, seen = had
    with ScreenFirst() as selector:
        selector.select()
        assert engine.lent == []  # no reply is running
        with interpreter.shared(engine):
            selector.select()  # it began to answer while the screen was drawn; the next drawing has a core
            assert engine.lent == [True]
            selector.select(0)
            assert engine.lent == [True] and seen[-1] == [True]  # the drawing is not finished yet
            selector.select(0.1)
            assert engine.lent == [True, False, True] and seen[-1] == [False]
        selector.select(0.1)
        assert engine.lent == [True, False, True, False] and seen[-1] == [False]


def test_a_core_is_given_back_where_the_reply_ends_in_the_middle_of_a_picture(had):
    engine, _ = had
    with ScreenFirst() as selector:
        with interpreter.shared(engine):
            selector.select()
        selector.select(0)
        assert engine.lent == [True, False]


def test_a_core_is_given_back_to_whom_it_was_taken_from(had):
    engine, _ = had
    other = ScriptedEngine()
    with ScreenFirst() as selector:
        with interpreter.shared(engine):
            selector.select()
        with interpreter.shared(other):
            selector.select(0)
            assert engine.lent == [True, False] and other.lent == [True]
    assert other.lent == [True, False]  # after the screen has ended


def test_a_core_is_given_back_while_an_editor_has_the_terminal(had, monkeypatch):
    engine, _ = had
    seen: list[str] = []
    app, prompt = SimpleNamespace(suspend=nullcontext), SimpleNamespace(text="", put=seen.append)
    monkeypatch.setenv("VISUAL", "anything")
    monkeypatch.setattr(editor, "edited", lambda *_: str(engine.lent))
    with ScreenFirst() as selector, interpreter.shared(engine):
        selector.select()
        editor.edit_prompt(app, prompt)
    assert seen == ["[True, False]"]


async def test_it_is_shared_while_the_engine_answers_and_not_while_it_loads(chat):
    talk, shared = chat(), {}

    def note(name):
        shared[name] = interpreter._Answering.engine is talk.engine

    talk.models["scripted"] = [lambda *_: note("loading"), talk.engine]
    events = talk.engine._events

    def answer(script):
        note("answering")
        yield from events(script)

    talk.engine._events = answer
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Hi")
    assert shared == {"loading": False, "answering": True} and interpreter._Answering.engine is None


NOTE = """
from localspec_tui import interpreter
def select(selector, timeout, own=interpreter.ScreenFirst.select):
    open({file!r}, "w").close()
    return own(selector, timeout)
interpreter.ScreenFirst.select = select
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_the_chat_waits_with_it(tmp_path):
    file = tmp_path / "waited"
    with scripted_chat(tmp_path, '(["Yes."],)', before=NOTE.format(file=str(file))) as terminal:
        terminal.shows("❯")
        terminal.send("\x11")
        assert terminal.ends() == 0
    assert file.exists()
