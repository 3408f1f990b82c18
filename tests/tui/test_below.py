"""New text below while the user reads above, and the key that leads there."""

import threading

import pytest
from golden import wording
from tui.scripted_engine import say, talked, until

from localspec.config import Settings
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.status_line import BelowLine

LONG = "\n\n".join(f"Paragraph {number}." for number in range(60))


def new_lines(talk):
    line = talk.app.query_one(BelowLine)
    return str(line.render()) if line.display else ""


@pytest.mark.parametrize("how", ["f12", "click"])
async def test_new_lines_are_counted_and_gone_to(chat, how):
    gates = threading.Event(), threading.Event()
    script = [LONG, gates[0], "\n\nOne more.\n\nAnd one.", gates[1], "\n\n" + LONG]
    key, keys = ("f12", {"chat.end": "f12"}) if how == "f12" else ("end", {})
    async with chat(script, settings=Settings(keymap=keys)).opened(size=(80, 24)) as (talk, pilot):
        view = talk.app.query_one(ConversationView)
        await say(pilot, "tell me")
        await until(pilot, lambda: view.max_scroll_y > 60 and view.is_vertical_scroll_end)
        assert new_lines(talk) == ""
        await pilot.press("pageup")
        await until(pilot, lambda: not view.is_vertical_scroll_end)
        assert new_lines(talk) == ""
        gates[0].set()
        await until(pilot, lambda: new_lines(talk) == f"↓ 4 new lines ({key})")
        place = view.scroll_y
        await pilot.pause(0.05)
        assert view.scroll_y == place
        await (pilot.click(BelowLine) if how == "click" else pilot.press(how))
        await until(pilot, lambda: new_lines(talk) == "" and view.is_vertical_scroll_end)
        gates[1].set()
        await until(pilot, lambda: talk.idle() and view.is_vertical_scroll_end)  # it follows again
        assert new_lines(talk) == "" and isinstance(talk.app.focused, Prompt)


async def test_end_is_first_the_end_of_the_line(chat):
    async with chat([LONG]).opened(size=(80, 24)) as (talk, pilot):
        view = talk.app.query_one(ConversationView)
        await say(pilot, "tell me")
        await until(pilot, lambda: talk.idle() and view.is_vertical_scroll_end)
        await pilot.press(*"abc", "home", "pageup", "end")
        await pilot.pause()
        assert talk.app.query_one(Prompt).cursor_location == (0, 3) and not view.is_vertical_scroll_end
        await pilot.press("end")
        await until(pilot, lambda: view.is_vertical_scroll_end)


async def test_what_is_refused_while_one_reads_above_is_seen(chat):
    async with chat([LONG], [LONG]).opened(size=(80, 24)) as (talk, pilot):
        await talked(talk, pilot, "first", "second")
        for _ in range(2):  # the same sentence is already there
            await pilot.press("alt+up", "alt+up")
            await until(
                pilot,
                lambda: wording("there_is_no_command") not in talk.screen_text() and "second" in talk.screen_text(),
            )
            await say(pilot, "/nwe")
            await until(pilot, lambda: wording("no_command_nwe") in talk.screen_text())
        assert new_lines(talk) == ""
