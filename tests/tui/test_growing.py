"""The cost of a growing reply for the screen: one layout and one picture."""

import threading

import pytest
from tui.scripted_engine import say, until

from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.xray_view import XRayView


@pytest.fixture
def counted(monkeypatch):
    """Return a function that counts the layouts and pictures of an application from its call on."""

    def count(app):
        layouts, pictures = [], []
        app.screen.screen_layout_refresh_signal.subscribe(app.screen, lambda _: layouts.append(1))
        monkeypatch.setattr(app, "post_display_hook", lambda: pictures.append(1))
        return layouts, pictures

    return count


async def test_a_reply_that_grows_is_laid_out_and_drawn_once(chat, counted):
    more, end = threading.Event(), threading.Event()
    talk = chat(["One. " * 600, more, f"{'Two. ' * 60}\n\n{'Two. ' * 20}", end])
    async with talk.playing(size=(120, 30)) as pilot:
        talk.app._chat.query_one(Prompt).cursor_blink = False
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One. " * 600])
        await pilot.pause(0.2)
        view = talk.app._chat.query_one(ConversationView)
        assert view.show_vertical_scrollbar, "or it would come now, and all be laid out once more"
        layouts, pictures = counted(talk.app)
        more.set()
        await until(pilot, lambda: talk.replies() and talk.replies()[0].endswith("Two. "))
        await pilot.pause(0.2)
        assert len(layouts) == 1 and len(pictures) <= 2, "also where a paragraph begins"
        assert view.is_vertical_scroll_end and "Two." in talk.screen_text() and "tok/s" in talk.screen_text()
        end.set()


async def test_xray_is_not_laid_out_as_the_reply_grows(chat, counted):
    more, end = threading.Event(), threading.Event()
    async with chat([*["One. "] * 600, more, *["Two. "] * 60, end]).opened(size=(90, 24)) as (talk, pilot):
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One. " * 600])
        await pilot.press("ctrl+t")
        await until(pilot, lambda: isinstance(talk.app.screen, XRayScreen) and "600 tokens" in talk.screen_text())
        view = talk.app.screen.query_one(XRayView)
        await until(pilot, lambda: len(view.pieces.all) == 600)
        await pilot.pause(0.2)
        layouts, _ = counted(talk.app)
        more.set()
        await until(pilot, lambda: "660 tokens" in talk.screen_text())
        await pilot.pause(0.2)
        assert layouts == [] and view.cursor == 659
        assert view.is_vertical_scroll_end and view.vertical_scrollbar.window_virtual_size == view.virtual_size.height
        end.set()
