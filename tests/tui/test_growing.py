"""What it costs the screen that a reply grows: one layout, one picture, and what has changed of it."""

import threading

import pytest
from textual._compositor import Compositor
from textual._styles_cache import StylesCache
from textual.geometry import Region
from tui.scripted_engine import say, talked, until

from localspec_tui.screens.front_first import FrontFirst
from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.lean_scroll_bar import LeanScrollBar
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
    talk = chat(["One. " * 600, more, f"{'Two. ' * 60}\n\n{'Two. ' * 20}", end])
    pictures, drawn = [], set()
    update, render, bar = FrontFirst.render_partial_update, StylesCache.render_widget, LeanScrollBar.render_lines
    monkeypatch.setattr(FrontFirst, "render_partial_update", lambda *given: pictures.append(1) or update(*given))
    monkeypatch.setattr(
        StylesCache, "render_widget", lambda *given: drawn.add(type(given[1]).__name__) or render(*given)
    )
    monkeypatch.setattr(LeanScrollBar, "render_lines", lambda *given: drawn.add("ScrollBar") or bar(*given))

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
        assert len(layouts) == len(pictures) == 1, "also where a paragraph begins; and the scrollbar is part of it"
        assert "ScrollBar" in drawn
        assert not drawn & {"ReplyView", "Horizontal", "Vertical", "ChatScreen"}, "they are covered"
        assert view.is_vertical_scroll_end and "Two." in talk.screen_text() and "tok/s" in talk.screen_text()
        end.set()

    talk.play(story, size=(120, 30))


@pytest.mark.parametrize("dialog", [None, "f1", "ctrl+r", "ctrl+t"])
def test_what_is_covered_is_not_drawn_and_the_picture_is_textual_s_own(chat, dialog):
    talk = chat(["One. " * 300 + "\n\n- two\n\n```python\nthree = 3\n```\n"])

    async def story(pilot):
        await talked(talk, pilot, "Hi")
        if dialog is not None:
            await pilot.press(dialog)
            await pilot.pause(0.1)
        ours = talk.app.screen._compositor
        assert isinstance(ours, FrontFirst)
        for crop in (ours.size.region, Region(0, 3, ours.size.width, 5), Region(60, 2, 20, 12)):
            drawn, theirs = (one._render_chops(ours, crop, lambda y: y % 3 != 1) for one in (FrontFirst, Compositor))
            for y in range(crop.y, crop.bottom):
                assert drawn[y].keys() == theirs[y].keys()
                seen = [x for x in drawn[y] if crop.x <= x < crop.right]
                assert [drawn[y][x] for x in seen] == [theirs[y][x] for x in seen], y

    talk.play(story, size=(120, 30))


def test_xray_is_not_laid_out_as_the_reply_grows_and_draws_its_new_lines_alone(chat, layouts, monkeypatch):
    marked, mark = [], XRayView._mark
    whole, update = [], FrontFirst.render_full_update
    monkeypatch.setattr(
        FrontFirst, "render_full_update", lambda *given, **how: whole.append(1) or update(*given, **how)
    )
    monkeypatch.setattr(XRayView, "_mark", lambda view, piece: marked.append(piece) or mark(view, piece))
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
        talk.app._chat.query_one(ConversationView).refresh()  # it is covered
        for seen in (layouts, marked, whole):
            seen.clear()
        more.set()
        await until(pilot, lambda: "660 tokens" in talk.screen_text())
        await pilot.pause(0.2)
        assert layouts == whole == [] and view.cursor == 659
        last_of_before = view._layout.line(view._layout.line_of(599))[0].piece
        assert min(marked) >= last_of_before > 580, "lines that are whole stay as they were drawn"
        assert view.is_vertical_scroll_end and view.vertical_scrollbar.window_virtual_size == view.virtual_size.height
        end.set()

    talk.play(story, size=(90, 24))
