"""Which thread the interpreter goes to first: the screen's, and for the time of a reply both in turn."""

import selectors
import sys

import pytest
from tui.scripted_engine import say, until
from tui.terminal import scripted_chat

from localspec_tui import interpreter
from localspec_tui.interpreter import AT_ONCE, KEPT, SHARED, ScreenFirst


@pytest.fixture
def waited(monkeypatch):
    """The interval while the event loop waits."""
    seen, before = [], sys.getswitchinterval()
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda *_: seen.append(sys.getswitchinterval()) or [])
    yield seen
    sys.setswitchinterval(before)


def test_the_screen_gets_it_at_once_and_keeps_it_until_it_waits(waited):
    with ScreenFirst() as selector:
        selector.select()
        assert waited == [pytest.approx(AT_ONCE)] and sys.getswitchinterval() == pytest.approx(KEPT)
        with interpreter.shared():
            selector.select()
            assert waited[1:] == [pytest.approx(SHARED)] and sys.getswitchinterval() == pytest.approx(SHARED)
        selector.select()
        assert waited[2:] == [pytest.approx(AT_ONCE)] and sys.getswitchinterval() == pytest.approx(KEPT)
    assert sys.getswitchinterval() == pytest.approx(SHARED)


def test_it_is_shared_while_the_engine_answers_and_not_while_it_loads(chat):
    talk, shared = chat(), {}

    def note(name):
        shared[name] = interpreter._answering.is_set()

    talk.models["scripted"] = [lambda *_: note("loading"), talk.engine]
    events = talk.engine._events

    def answer(script):
        note("answering")
        yield from events(script)

    talk.engine._events = answer

    async def story(pilot):
        await say(pilot, "Hi")
        await until(pilot, talk.idle)

    talk.play(story)
    assert shared == {"loading": False, "answering": True} and not interpreter._answering.is_set()


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
