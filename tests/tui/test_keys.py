"""Every key of the chat screen."""

import stat
import threading

import pyperclip
import pytest
from golden import wording
from textual.events import Paste
from textual.widgets import OptionList
from tui.scripted_engine import say, talked, until

from localspec.config import Settings
from localspec.paths import Paths
from localspec.store.store import Store
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.palette import ALSO
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.message_view import PromptView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.reply_view import ReplyView

LONG = "\n\n".join(f"Paragraph {number}." for number in range(60))


def test_what_every_field_for_text_does_is_no_help():
    bindings = {binding.action: binding for binding in Prompt.BINDINGS}
    assert all(bindings[action].system for action in ("cursor_word_left", "cursor_left", "delete_left", "paste"))
    assert not any(bindings[action].system for action in ("send", "break_line", "up", "delete_word_left", "undo"))


async def test_three_keys_break_a_line_and_the_prompt_grows_up_to_eight_lines(chat):
    async with chat().opened() as (talk, pilot):
        prompt = talk.app.query_one(Prompt)
        assert prompt.size.height == 1
        await pilot.press("a", "ctrl+j", "b", "alt+enter", "c")
        await until(pilot, lambda: prompt.size.height == 3)
        await pilot.press("shift+enter", "d", "enter")
        await until(pilot, talk.idle)
        assert talk.prompts() == ["a\nb\nc\nd"]
        await pilot.press(*["ctrl+j"] * 20)
        await until(pilot, lambda: prompt.size.height == 8)


async def test_pastes_and_prompts_of_earlier_chats_command_nothing(chat):
    talk = chat()
    with Store.open(talk.database, print) as store:
        for prompt in ("long ago", "two\nlines\x1b]0;title\x07"):
            store.history.say(None, prompt, model="scripted", system=None)
    async with talk.playing() as pilot:
        talk.app.post_message(Paste("one\r\ntwo\rthree\n\x1b]0;title\x07\x9b31m\u202e"))
        await until(pilot, lambda: talk.typed)
        assert talk.typed == "one\ntwo\nthree\n␛]0;title␇\ufffd31m"
        assert talk.prompts() == [], "nothing is sent"
        await pilot.press("f7", "delete")
        await talked(talk, pilot, "now")
        seen = []
        for _ in range(4):
            await pilot.press("up")
            seen.append(talk.typed)
        assert [*dict.fromkeys(seen)] == ["now", "two\nlines␛]0;title␇", "long ago"]


async def test_arrow_keys_go_through_earlier_prompts_and_keep_the_draft(chat):
    async with chat().opened() as (talk, pilot):
        await talked(talk, pilot, "again", "second\nline", "third", "again")
        await pilot.press(*"draft")
        for key, shown in (
            ("up", "again"),
            ("up", "third"),
            ("up", "second\nline"),
            ("up", "second\nline"),  # within its two lines
            ("up", "second\nline"),  # a repeated prompt is shown once
            ("down", "second\nline"),
            ("down", "third"),
            ("down", "again"),
            ("down", "draft"),
            ("down", "draft"),
            ("up", "again"),
        ):
            await pilot.press(key)
            assert talk.typed == shown, key
        await pilot.press("!", "enter")
        await until(pilot, talk.idle)
        assert talk.prompts()[-1] == "again!"


async def test_a_wrapped_line_is_gone_through_before_earlier_prompts(chat):
    async with chat().opened(size=(44, 20)) as (talk, pilot):
        await talked(talk, pilot, "earlier")
        await pilot.press(*"word " * 12)
        await pilot.press("up")
        assert talk.typed == "word " * 12
        await pilot.press("up")
        assert talk.typed == "earlier"


async def test_how_much_is_cleared_of_several_lines(chat):
    """Ctrl+U clears as in a shell; F7 and Delete clear all lines."""
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"one", "ctrl+j", *"two", "ctrl+j", *"three")
        seen = []
        for _ in range(3):
            await pilot.press("ctrl+u")
            seen.append(talk.typed)
        assert seen == ["one\ntwo\n", "one\ntwo", "one\n"]
        await pilot.press("f7", "delete", *"word", "f7", "ctrl+c")
        assert talk.typed == talk.app.clipboard == "word"
        assert "Ctrl+Q" not in talk.screen_text()


async def test_ctrl_d_deletes_and_on_an_empty_prompt_quits(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"ab", "home", "ctrl+d")
        assert talk.typed == "b"
        await pilot.press("ctrl+d")
        assert talk.app.is_running
        await pilot.press("ctrl+d")
        assert not talk.app.is_running
    assert talk.app.return_code == 0


@pytest.mark.parametrize("before", ["ctrl+s", "ctrl+o", "f1"])
async def test_ctrl_q_quits_from_anywhere(chat, before):
    async with chat().opened() as (talk, pilot):
        await pilot.press(before, "ctrl+q")
        assert not talk.app.is_running
    assert talk.app.return_code == 0
    assert talk.app.failure is None


async def test_who_scrolls_up_is_not_disturbed_and_asking_goes_to_the_end(chat):
    gate, over = threading.Event(), threading.Event()
    async with chat([LONG, gate, LONG, over, "."]).opened() as (talk, pilot):
        await say(pilot, "Go")
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: view.max_scroll_y > 50 and view.scroll_y == view.max_scroll_y)
        end = view.max_scroll_y
        await pilot.press("pageup")
        await until(pilot, lambda: view.scroll_y < end)
        await pilot.press("x", "pagedown")
        await until(pilot, lambda: view.scroll_y == end)
        assert talk.typed == "x"
        await pilot.press("backspace", "pageup", "pageup")
        await until(pilot, lambda: view.scroll_y < end)
        place = view.scroll_y
        gate.set()
        await until(pilot, lambda: view.max_scroll_y > end)
        assert view.scroll_y == place
        over.set()
        await until(pilot, talk.idle)
        assert view.scroll_y == place
        await talked(talk, pilot, "More")
        await until(pilot, lambda: view.scroll_y == view.max_scroll_y)


async def test_messages_are_walked_and_copied_and_letters_belong_to_the_prompt(chat, clipboard):
    async with chat(["**bold** `code`"], ["second"]).opened() as (talk, pilot):
        await pilot.press("ctrl+l")
        await until(pilot, lambda: wording("no_reply_to_copy") in talk.screen_text())
        await talked(talk, pilot, "one", "two")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: clipboard == ["second"] == [talk.app.clipboard])
        seen = []
        for _ in range(4):
            await pilot.press("alt+up")
            seen.append((type(talk.app.focused), talk.app.focused.source))
        assert seen == [(ReplyView, "second"), (PromptView, "two"), (ReplyView, "**bold** `code`"), (PromptView, "one")]
        await pilot.press("alt+down", "ctrl+l")
        await until(pilot, lambda: clipboard[1:] == ["**bold** `code`"] == [talk.app.clipboard])
        await until(pilot, lambda: "Copied to the clipboard." in talk.screen_text())
        await pilot.press("escape", *"ty", "alt+up", *"ped")
        assert talk.typed == "typed"
        await pilot.press("alt+up")
        talk.app.post_message(Paste("!"))
        await until(pilot, lambda: talk.typed == "typed!")
        for keys in (["alt+up", "alt+down"], ["alt+down"]):  # below the last message is the prompt
            await pilot.press(*keys)
            assert talk.app.focused is talk.app.query_one(Prompt)


async def test_a_click_on_a_message_chooses_it_and_what_is_typed_is_still_a_prompt(chat, clipboard):
    async with chat(["First."], ["Second."], ["Third."]).opened() as (talk, pilot):
        await talked(talk, pilot, "one", "two")
        await pilot.click(ReplyView)  # the first one
        await pilot.press("ctrl+l")
        await until(pilot, lambda: clipboard == ["First."])
        await pilot.click(PromptView)
        await pilot.press("f2")
        assert talk.typed == "one" and talk.app.focused is talk.app.query_one(Prompt)
        await pilot.press("escape", *"three")
        await pilot.click(PromptView)
        await pilot.press("backspace", "enter")
        await until(pilot, lambda: talk.idle() and talk.prompts() == ["one", "two", "thre"])


@pytest.mark.parametrize("log", [True, False])
async def test_without_a_clipboard_a_file_holds_what_was_copied(chat, monkeypatch, tmp_path, log):
    def fail(text):
        raise pyperclip.PyperclipException("no clipboard")

    monkeypatch.setattr(pyperclip, "copy", fail)
    talk = chat(["Text ‹é›"], settings=Settings(log=log))
    file = Paths(tmp_path).copied
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one")
        await pilot.press("ctrl+l")
        await until(pilot, lambda: wording("sent_terminal_s_clipboard") in talk.screen_text())
        assert (wording("text_is_in") in talk.screen_text()) is log
        assert talk.app.clipboard == "Text ‹é›"
    assert file.exists() is log
    if log:
        assert file.read_text("utf-8") == "Text ‹é›" and stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_ctrl_c_copies_what_is_selected_in_a_reply(chat):
    gate = threading.Event()
    async with chat(["Something selected", gate, "."]).opened() as (talk, pilot):
        await say(pilot, "one")
        await until(pilot, lambda: talk.replies() == ["Something selected"])
        talk.app.query_one(ReplyView).text_select_all()
        await pilot.pause()
        await pilot.press("ctrl+c")
        assert talk.app.clipboard == "Something selected"
        assert talk.live != "stopping"
        gate.set()
        await until(pilot, talk.idle)


@pytest.mark.parametrize("width", [44, 100])
async def test_no_key_of_the_footer_is_cut_and_stop_is_offered_while_there_is_something_to_stop(chat, width):
    gate = threading.Event()
    talk = chat(["Half", gate, "."])

    def footer() -> str:
        return talk.screen_text().splitlines()[-1]

    async with talk.playing(size=(width, 24)) as pilot:
        await until(pilot, lambda: "Keys" in footer())
        assert "Stop" not in footer()
        await say(pilot, "Go")
        await until(pilot, lambda: "Stop" in footer())
        labels = {one.description for one in (*ChatScreen.BINDINGS, *Prompt.OWN) if one.show}
        shown = {word for word in footer().split() if word[:1].isupper()}
        assert shown <= labels and "palette" in footer()
        gate.set()
        await until(pilot, talk.idle)
        await until(pilot, lambda: "Stop" not in footer())


async def test_the_palette_has_the_same_commands_and_finds_words_and_no_scattered_letters(chat):
    async with chat(["Hello."]).opened() as (talk, pilot):
        names = {command.title for command in talk.app.get_system_commands(talk.app.screen)}
        assert names >= {binding.tooltip for binding in ChatScreen.BINDINGS if binding.show} | {*ALSO}
        await talked(talk, pilot, "one")
        for typed, found in (
            ("theme", "Choose other colours"),
            ("temp", wording("change_how_replies_are_sampled")),
            ("f8", wording("see_phrases_kept")),
            ("new begin", wording("begin_a_new_conversation")),
        ):
            await pilot.press("ctrl+p", *typed)
            options = talk.app.screen.query_one(OptionList)
            await until(pilot, lambda o=options, f=found: o.option_count == 1 and f in talk.screen_text())
            if typed != "new begin":
                await pilot.press("x", "x")
                await until(pilot, lambda: "No matches found" in talk.screen_text())
                await pilot.press("escape")
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == [])
