"""What it costs the screen that a reply grows: one layout, one picture, and what has changed of it."""

import threading

import pytest
from textual._compositor import Compositor
from textual._styles_cache import StylesCache
from tui.scripted_engine import say, until

from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.xray_view import XRayView


@pytest.fixture
def layouts(monkeypatch):
    """One for each time that the screen is laid out."""
    seen, reflow = [], Compositor.reflow
    monkeypatch.setattr(Compositor, "reflow", lambda *given: seen.append(1) or reflow(*given))
    return seen


def test_a_reply_that_grows_is_laid_out_and_drawn_once(chat, layouts, monkeypatch):
    more, end = threading.Event(), threading.Event()
    talk = chat(["One. " * 600, more, "Two. " * 60, end])
    pictures, drawn = [], set()
    update, render = Compositor.render_partial_update, StylesCache.render_widget
    monkeypatch.setattr(Compositor, "render_partial_update", lambda *given: pictures.append(1) or update(*given))
    monkeypatch.setattr(
        StylesCache, "render_widget", lambda *given: drawn.add(type(given[1]).__name__) or render(*given)
    )

    async def story(pilot):
        talk.app._chat.query_one(Prompt).cursor_blink = False
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One. " * 600])
        await pilot.pause(0.2)
        view = talk.app._chat.query_one(ConversationView)
        assert view.show_vertical_scrollbar, "or it would come now, and all be laid out once more"
        for seen in (layouts, pictures, drawn):
            seen.clear()
        more.set()
        await until(pilot, lambda: talk.replies() and talk.replies()[0].endswith("Two. "))
        await pilot.pause(0.2)
        assert view.is_vertical_scroll_end and "Two." in talk.screen_text() and "a step" in talk.screen_text()
        assert len(layouts) == 1 and len(pictures) <= 2, "Textual draws a scrollbar by itself"
        assert "MarkdownParagraph" in drawn and not drawn & {"ReplyView", "ReplyMarkdown"}
        end.set()

    talk.play(story, size=(120, 30))


def test_xray_is_not_laid_out_as_the_reply_grows(chat, layouts):
    more, end = threading.Event(), threading.Event()
    talk = chat([*["One. "] * 600, more, *["Two. "] * 60, end])

    async def story(pilot):
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One. " * 600])
        await pilot.press("ctrl+t")
        await until(pilot, lambda: isinstance(talk.app.screen, XRayScreen) and "600 tokens" in talk.screen_text())
        view = talk.app.screen.query_one(XRayView)
        await until(pilot, lambda: len(view.pieces.all) == 600)
        await pilot.pause(0.2)
        layouts.clear()
        more.set()
        await until(pilot, lambda: "660 tokens" in talk.screen_text())
        await pilot.pause(0.2)
        assert layouts == [] and view.cursor == 659
        assert view.is_vertical_scroll_end and view.vertical_scrollbar.window_virtual_size == view.virtual_size.height
        end.set()

    talk.play(story, size=(90, 24))
