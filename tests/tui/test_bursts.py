"""Keys that come faster than the lists they are meant for are drawn."""

import asyncio
import threading

import pytest
from clocks import PATIENCE
from golden import wording
from textual.events import Key, MouseDown
from textual.widgets import Input, OptionList
from tui.scripted_engine import talked, until

from localspec_tui.screens import conversations
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.screens.palette import Palette
from localspec_tui.widgets.message_view import NoticeView, PromptView


def in_one_read(talk, keys):
    for key in keys:
        talk.app.post_message(Key(key, key if len(key) == 1 else None))


FIELDS = [["ctrl+f"], ["ctrl+r"], ["f9"], ["f3"], ["ctrl+o"], ["ctrl+p"], ["ctrl+r", "f2"]]


@pytest.mark.parametrize("openings", [FIELDS[::2], FIELDS[1::2]], ids=["one half", "the other"])
async def test_letters_do_not_overtake_the_keys_before_them(chat, openings):
    async with chat(["A reply."]).opened() as (talk, pilot):
        await talked(talk, pilot, "Geography")
        for opening in openings:
            for key in opening:
                await pilot.press(key)
                await until(pilot, lambda: isinstance(talk.app.focused, Input))
                await until(pilot, lambda: "Geography" in talk.screen_text())
            field = talk.app.focused
            for keys, left in (
                (["1", "2", "backspace", "3"], "13"),
                (["1", "2", "left", "left", "9"], "912"),
                (["1", *["backspace"] * 5, "1", "1"], "11"),
                (["a", "b", "home", "delete", "c"], "cb"),
            ):
                field.value = ""
                in_one_read(talk, keys)
                await until(pilot, lambda field=field, left=left: field.value == left)
                await pilot.pause()
                assert field.value == left
            while talk.app.screen is not talk.app._chat or isinstance(talk.app.focused, Input):
                await pilot.press("escape")
                await pilot.pause()


async def test_each_key_is_a_step_and_each_list_is_opened_and_left_once(chat):
    talk = chat(*[["A reply."]] * 5)

    def opened(kind):
        return [type(screen) for screen in talk.app.screen_stack].count(kind)

    async with talk.playing() as pilot:
        await talked(talk, pilot, *(f"prompt {number}" for number in range(5)))
        in_one_read(talk, ["alt+up"] * 8)
        await until(pilot, lambda: isinstance(talk.app.focused, PromptView) and talk.app.focused.source == "prompt 1")
        await pilot.press("escape", *"half")
        in_one_read(talk, ["ctrl+r", "ctrl+r", "enter"])
        await until(pilot, lambda: wording("search_in_what_was_said") in talk.screen_text())
        await pilot.pause()
        assert opened(ConversationsScreen) == 1
        assert talk.prompts()[-1] == "prompt 4" and talk.typed == "half", "Enter right after it sends nothing"
        await pilot.press("escape", "f7", "delete")
        for opening in ("ctrl+r", "ctrl+o"):
            await pilot.press(opening)
            await until(pilot, lambda: talk.app.screen is not talk.app._chat)
            await until(pilot, lambda: talk.app.screen.query_one(OptionList).option_count)
            in_one_read(talk, ["enter"] * 2)  # the second would close the chat itself
            await until(pilot, lambda: talk.app.screen is talk.app._chat)
            await until(pilot, talk.idle)
        await pilot.press("ctrl+p")
        talk.app._chat.action_system()
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "System prompt" in talk.screen_text())
        assert opened(Palette) == 1


async def test_down_and_enter_choose_the_next_model(chat):
    talk = chat()
    talk.models["demo"] = talk.engine
    async with talk.playing() as pilot:
        await pilot.press("ctrl+o")
        await until(pilot, lambda: "demo-draft" in talk.screen_text())
        talk.app.simulate_key("down")  # from the model that answers now, which is the first
        talk.app.simulate_key("enter")
        await until(pilot, lambda: "demo" in talk.loaded)


async def test_enter_right_behind_the_last_letter_resumes_what_was_looked_for(chat, monkeypatch):
    talk = chat(["The capital is Vienna."], ["A poem."])
    looked_for, found = [], threading.Event()

    def entries(history, words, real=conversations._entries):
        looked_for.append(words)
        if looked_for.count("vie") == 2:  # as the letters came, and for Enter
            found.set()
        assert not words or found.wait(PATIENCE)
        return real(history, words)

    monkeypatch.setattr(conversations, "_entries", entries)
    async with talk.playing() as pilot:
        for prompt in ("Geography", "Write"):
            await talked(talk, pilot, prompt)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and "Write" in talk.screen_text())
        for letter in "vie":
            talk.app.post_message(Key(letter, letter))
        talk.app.simulate_key("enter")
        await until(pilot, lambda: talk.prompts() == ["Geography"])


async def test_the_palette_takes_keys_before_it_is_drawn(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("ctrl+p", *"new conv")
        options = talk.app.screen.query_one(OptionList)
        await until(
            pilot, lambda: options.option_count == 1 and wording("begin_a_new_conversation") in talk.screen_text()
        )
        options.highlighted = 0
        options._index_to_line.clear()  # as before it is laid out
        await pilot.press("pageup")
        for _ in range(2):
            talk.app.post_message(Key("enter", None))
        await until(pilot, lambda: talk.app.screen is talk.app._chat)


async def test_letters_that_arrive_when_the_palette_is_closed_begin_no_search(chat, monkeypatch):
    """Its results would be shown in a list that is closing, which would end the chat."""
    talk = chat()
    searched: list[str] = []
    async with talk.playing() as pilot:
        await pilot.press("ctrl+p")
        palette = talk.app.screen
        await until(pilot, lambda: palette.query_one(OptionList).option_count)
        monkeypatch.setattr(Palette, "_gather_commands", lambda _, words: searched.append(words))
        palette.dismiss()
        palette.post_message(Input.Changed(palette.query_one(Input), "cop"))
        await until(pilot, lambda: not palette.is_attached)
    assert not searched


async def test_a_click_on_a_removed_widget_is_ignored(chat, monkeypatch):
    async with chat().opened() as (talk, pilot):
        screen = talk.app._chat
        await screen.view.tell("Something of no importance.")
        await until(pilot, lambda: "no importance" in talk.screen_text())
        notice = screen.query_one(NoticeView)
        x, y = notice.region.offset
        with monkeypatch.context() as removed:
            removed.setattr(notice, "_parent", None)  # as it is then; the layout comes later
            screen._forward_event(MouseDown(None, x + 1, y, 0, 0, 1, False, False, False))
        await pilot.pause()
        assert screen.selections == {}


async def test_the_palette_is_closed_before_it_is_there(chat, monkeypatch):
    talk, compose = chat(), Palette._compose

    async def slowly(palette):
        await asyncio.sleep(0.05)
        await compose(palette)

    async with talk.playing() as pilot:
        monkeypatch.setattr(Palette, "_compose", slowly)
        talk.app.action_command_palette()
        talk.app.screen.dismiss()
        await until(pilot, lambda: talk.app.screen is talk.app._chat)
        await asyncio.sleep(0.1)
