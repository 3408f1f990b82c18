"""F1: the keys and commands of the chat."""

import re

import pytest
from golden import wording
from tui.scripted_engine import say, talked, until

from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.keys_panel import KeysPanel
from localspec_tui.widgets.prompt import Prompt


@pytest.mark.parametrize("size", [(100, 40), (80, 24), (44, 20)])
async def test_every_key_and_command_of_f1_is_within_reach_of_the_keyboard_once_and_whole(chat, size):
    async with chat(["Well.\n\n" * 40]).opened(size=size) as (talk, pilot):
        await talked(talk, pilot, "Hi")
        await pilot.press("f1")
        await until(pilot, lambda: "Begin a new" in talk.screen_text())
        conversation, panel = talk.app.query_one(ConversationView), talk.app.query_one(KeysPanel)
        at = conversation.scroll_y
        lines: list[str] = []  # in the order of the panel
        while not lines or panel.scroll_y < panel.max_scroll_y:
            if lines:
                await pilot.press("pagedown")
                await pilot.pause()
            shown = talk.screen_text().splitlines()
            x, y, _, height = panel.region
            lines[round(panel.scroll_y) :] = [line[x:].rstrip(" ▁▂▃▄▅▆▇") for line in shown[y : y + height]]
        words = "\n".join(lines)
        if size == (80, 24):
            assert panel.virtual_size.height <= 2 * panel.size.height, "two pages at most"
        assert "…" not in words and conversation.scroll_y == at
        more = ("f4 ", "f8 ", "f9 ", "alt+c", "alt+t", "ctrl+g", "ctrl+p")
        for name in ("shift+enter", "/set [KEY [VALUE]]", "/quit", "/help", *more):
            assert words.count(name) == 1, name
        assert [len(re.findall(rf"(?m)(?:^|  ?){key}  ", words)) for key in ("pgup", "pgdn", "f1")] == [1, 1, 1]
        assert shown[-1].strip().startswith("⏎ Send")  # the footer is not covered
        await pilot.press("pageup")
        await until(pilot, lambda: panel.scroll_y < panel.max_scroll_y)
        await pilot.press("f1", "pageup")
        await until(pilot, lambda: conversation.scroll_y < at)


@pytest.mark.parametrize("size", [(100, 40), (44, 20)])
async def test_what_comes_of_a_line_is_seen_also_where_the_keys_were_shown(chat, size):
    async with chat(["Well."]).opened(size=size) as (talk, pilot):
        for line, seen in (("/bogus", wording("there_is_no_command")), ("Hi", "Well.")):
            if not talk.app._chat.query(KeysPanel):
                await pilot.press("f1")
            await until(pilot, lambda: "Begin a new" in talk.screen_text())
            assert talk.app.query_one(Prompt).region.width > 25
            await pilot.press(*"still")
            assert talk.typed == "still"
            await pilot.press("f7")
            await say(pilot, line)
            await until(pilot, lambda seen=seen: seen in talk.screen_text())
            assert bool(talk.app._chat.query(KeysPanel)) == (size[0] == 100), "where there is room they stay"
