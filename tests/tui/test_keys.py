"""Every key of the chat screen."""

import stat
import threading
from importlib import import_module
from inspect import isclass
from pkgutil import iter_modules

import pytest
from golden import wording
from textual.binding import Binding
from textual.events import Paste
from textual.screen import Screen
from textual.widgets import OptionList
from tui.scripted_engine import say, talked, until

from localspec.config import Settings
from localspec.paths import Paths
from localspec.store.store import Store
from localspec_tui import screens
from localspec_tui.app import ChatApp
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.palette import ALSO
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.message_view import MessageView, PromptView
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.reply_view import ReplyView
from localspec_tui.widgets.xray_view import XRayView

LONG = "\n\n".join(f"Paragraph {number}." for number in range(60))


def test_all_that_has_a_key_has_a_name_of_its_own():
    modules = [import_module(f"{screens.__name__}.{found.name}") for found in iter_modules(screens.__path__)]
    every = {one for module in modules for one in vars(module).values() if isclass(one) and issubclass(one, Screen)}
    own = sorted((one for one in every if one.__module__.startswith(screens.__name__)), key=lambda one: one.__name__)
    assert {ChatScreen} < {*own}
    owners = [ChatApp, Prompt, MessageView, XRayView, *own]
    bindings = [binding for owner in owners for binding in vars(owner).get("BINDINGS", ())]
    assert all(isinstance(binding, Binding) for binding in bindings)
    named = {(binding.id, binding.action.removeprefix("app.")) for binding in bindings}
    ids = [name for name, _ in named]
    assert None not in ids
    assert sorted(set(ids)) == sorted(ids), "what is done in two places has one name, and a name means one thing"


# -- the prompt --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["ctrl+j", "alt+enter", "shift+enter"])
async def test_a_line_can_be_broken(chat, key):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*"ab", key, "c", "enter")
        await until(pilot, talk.idle)
        assert talk.prompts() == ["ab\nc"]


async def test_the_prompt_grows_up_to_eight_lines(chat):
    talk = chat()
    async with talk.playing() as pilot:
        prompt = talk.app.query_one(Prompt)
        assert prompt.size.height == 1
        await pilot.press(*["ctrl+j"] * 2)
        await until(pilot, lambda: prompt.size.height == 3)
        await pilot.press(*["ctrl+j"] * 20)
        await until(pilot, lambda: prompt.size.height == 8)


async def test_a_paste_keeps_its_lines_does_not_send_and_commands_nothing(chat):
    talk = chat()
    async with talk.playing() as pilot:
        talk.app.post_message(Paste("one\r\ntwo\rthree\n\x1b]0;title\x07\x9b31m\u202e"))
        await until(pilot, lambda: talk.typed)
        assert talk.typed == "one\ntwo\nthree\n␛]0;title␇\ufffd31m"
        assert talk.prompts() == []


async def test_arrow_keys_go_through_earlier_prompts_and_keep_the_draft(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await talked(talk, pilot, "first", "second\nline", "third")
        await pilot.press(*"draft", "up")
        assert talk.typed == "third"
        await pilot.press("up")
        assert talk.typed == "second\nline"
        await pilot.press("up")  # within its two lines
        assert talk.typed == "second\nline"
        await pilot.press("up")
        assert talk.typed == "first"
        await pilot.press("up")
        assert talk.typed == "first"
        await pilot.press("down", "down")
        assert talk.typed == "third"
        await pilot.press("down")
        assert talk.typed == "draft"
        await pilot.press("down")
        assert talk.typed == "draft"


async def test_an_earlier_prompt_is_shown_once_and_may_be_changed(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one", "two", "one")
        await pilot.press("up", "up")
        assert talk.typed == "two"
        await pilot.press("up")
        assert talk.typed == "two"
        await pilot.press("!", "enter")
        await until(pilot, talk.idle)
        assert talk.prompts()[-1] == "two!"
        await pilot.press(*"new", "up")
        assert talk.typed == "two!"
        await pilot.press("down")
        assert talk.typed == "new"


async def test_prompts_of_earlier_chats_are_there_too(chat):
    before = chat(["Kept."])
    async with before.playing() as pilot:
        await talked(before, pilot, "long ago", "from before")
    talk = chat()
    async with talk.playing() as pilot:
        await talked(talk, pilot, "now")
        seen = []
        for _ in range(3):
            await pilot.press("up")
            seen.append(talk.typed)
        assert seen == ["now", "from before", "long ago"]


async def test_an_earlier_prompt_commands_nothing(chat):
    talk = chat()
    with Store.open(talk.database, print) as store:
        store.history.say(None, "two\nlines\x1b]0;title\x07", model="scripted", system=None)

    async with talk.playing() as pilot:
        await pilot.press("up")
        assert talk.typed == "two\nlines␛]0;title␇"


async def test_a_wrapped_line_is_gone_through_before_earlier_prompts(chat):
    talk = chat()
    async with talk.playing(size=(44, 20)) as pilot:
        await talked(talk, pilot, "earlier")
        await pilot.press(*"word " * 12)
        await pilot.press("up")
        assert talk.typed == "word " * 12
        await pilot.press("up")
        assert talk.typed == "earlier"


async def test_ctrl_d_deletes_and_on_an_empty_prompt_quits(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*"ab", "home", "ctrl+d")
        assert talk.typed == "b"
        await pilot.press("ctrl+d")
        assert talk.app.is_running
        await pilot.press("ctrl+d")
        assert not talk.app.is_running
    assert talk.app.return_code == 0


@pytest.mark.parametrize("before", [[], ["ctrl+s"], ["ctrl+r"], ["ctrl+o"], ["f1"], list("typed")])
async def test_ctrl_q_quits_from_anywhere(chat, before):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*before, "ctrl+q")
        assert not talk.app.is_running
    assert talk.app.return_code == 0
    assert talk.app.failure is None


# -- the conversation --------------------------------------------------------------------------------------------------


async def test_page_keys_scroll_the_conversation_while_one_types(chat):
    talk = chat([LONG])
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Go")
        view = talk.app.query_one(ConversationView)
        end = view.max_scroll_y
        await until(pilot, lambda: view.scroll_y == end > 0)
        await pilot.press("pageup")
        await until(pilot, lambda: view.scroll_y < end)
        await pilot.press("x", "pagedown")
        await until(pilot, lambda: view.scroll_y == end)
        assert talk.typed == "x"


async def test_who_scrolls_up_is_not_disturbed_and_asking_goes_to_the_end(chat):
    gate, over = threading.Event(), threading.Event()
    talk = chat([LONG, gate, LONG, over, "."])
    async with talk.playing() as pilot:
        await say(pilot, "Go")
        view = talk.app.query_one(ConversationView)
        await until(pilot, lambda: view.max_scroll_y > 50 and view.scroll_y == view.max_scroll_y)
        await pilot.press("pageup", "pageup")
        await until(pilot, lambda: view.scroll_y < view.max_scroll_y)
        place, end = view.scroll_y, view.max_scroll_y
        gate.set()
        await until(pilot, lambda: view.max_scroll_y > end)
        assert view.scroll_y == place
        over.set()
        await until(pilot, talk.idle)
        assert view.scroll_y == place
        await talked(talk, pilot, "More")
        await until(pilot, lambda: view.scroll_y == view.max_scroll_y)


async def test_messages_are_walked_and_copied(chat, clipboard):
    talk = chat(["**bold** `code`"], ["second"])
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one", "two")
        seen = []
        for _ in range(4):
            await pilot.press("alt+up")
            seen.append((type(talk.app.focused), talk.app.focused.source))
        assert seen == [
            (ReplyView, "second"),
            (PromptView, "two"),
            (ReplyView, "**bold** `code`"),
            (PromptView, "one"),
        ]
        await pilot.press("alt+down", "ctrl+l")
        assert talk.app.clipboard == "**bold** `code`"
        await until(pilot, lambda: clipboard == ["**bold** `code`"])
        await until(pilot, lambda: "Copied to the clipboard." in talk.screen_text())
        await pilot.press("escape", *"typed")
        assert talk.typed == "typed"


async def test_letters_belong_to_the_prompt_whatever_has_the_focus(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one")
        await pilot.press("alt+up", "alt+up", *"copy")
        assert talk.typed == "copy"
        await pilot.press("alt+up")
        talk.app.post_message(Paste("!"))
        await until(pilot, lambda: talk.typed == "copy!")


async def test_below_the_last_message_is_the_prompt(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await talked(talk, pilot, "one")
        await pilot.press("alt+up", "alt+down")
        assert talk.app.focused is talk.app.query_one(Prompt)
        await pilot.press("alt+down")
        assert talk.app.focused is talk.app.query_one(Prompt)


async def test_a_click_on_a_message_chooses_it_and_what_is_typed_is_still_a_prompt(chat, clipboard):
    talk = chat(["First."], ["Second."], ["Third."])
    async with talk.playing() as pilot:
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


async def test_ctrl_l_copies_the_last_reply(chat, clipboard):
    talk = chat(["# Source *text*"])
    async with talk.playing() as pilot:
        await pilot.press("ctrl+l")
        await until(pilot, lambda: wording("no_reply_to_copy") in talk.screen_text())
        await talked(talk, pilot, "one")
        await pilot.press("ctrl+l")
        assert talk.app.clipboard == "# Source *text*"
        await until(pilot, lambda: clipboard == ["# Source *text*"])


@pytest.mark.parametrize("log", [True, False])
async def test_without_a_clipboard_a_file_holds_what_was_copied(chat, monkeypatch, tmp_path, log):
    import pyperclip

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


async def test_how_much_is_cleared_of_several_lines(chat):
    """Ctrl+U does what it does in a shell; F7 and Delete take all."""
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*"one", "ctrl+j", *"two", "ctrl+j", *"three")
        seen = []
        for _ in range(3):
            await pilot.press("ctrl+u")
            seen.append(talk.typed)
        assert seen == ["one\ntwo\n", "one\ntwo", "one\n"]
        await pilot.press(*"more", "f7", "delete")
        assert talk.typed == ""


async def test_ctrl_c_copies_what_is_selected_in_the_prompt(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*"word", "f7", "ctrl+c")
        assert talk.app.clipboard == "word"
        assert "Ctrl+Q" not in talk.screen_text()


async def test_ctrl_c_copies_what_is_selected_in_a_reply(chat):
    gate = threading.Event()
    talk = chat(["Something selected", gate, "."])
    async with talk.playing() as pilot:
        await say(pilot, "one")
        await until(pilot, lambda: talk.replies() == ["Something selected"])
        talk.app.query_one(ReplyView).text_select_all()
        await pilot.pause()
        await pilot.press("ctrl+c")
        assert talk.app.clipboard == "Something selected"
        assert talk.live != "stopping"
        gate.set()
        await until(pilot, talk.idle)


# -- help and commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [44, 60, 80, 100])
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


async def test_the_keys_that_stop_copy_and_clear_are_listed(chat):
    talk = chat()
    async with talk.playing(size=(240, 100)) as pilot:
        await pilot.press("f1")
        await until(pilot, lambda: wording("typed_in_the_prompt") in talk.screen_text())
        page = " ".join(talk.screen_text().split())
        assert wording("f7_select_all_what_typed_next") in page
        assert wording("delete_beginning_line_then_line").partition(", ")[0] in page  # the rest is on the next row
        assert wording("ctrl_c_copy_what_selected_stop") in page


def test_what_every_field_for_text_does_is_no_help():
    bindings = {binding.action: binding for binding in Prompt.BINDINGS}
    assert all(bindings[action].system for action in ("cursor_word_left", "cursor_left", "delete_left", "paste"))
    assert not any(bindings[action].system for action in ("send", "break_line", "up", "delete_word_left", "undo"))


@pytest.mark.parametrize(
    ("typed", "first"),
    [
        ("theme", "Choose other colours"),
        ("temp", wording("change_how_replies_are_sampled")),
        ("f8", wording("see_phrases_kept")),
    ],
)
async def test_the_palette_finds_words_and_no_scattered_letters(chat, typed, first):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press("ctrl+p", *typed)
        found = talk.app.screen.query_one(OptionList)
        await until(pilot, lambda: found.option_count == 1 and first in talk.screen_text())
        await pilot.press("x", "x")
        await until(pilot, lambda: "No matches found" in talk.screen_text())


async def test_what_else_commands_are_found_by_is_of_commands_that_there_are(chat):
    talk = chat()
    async with talk.playing():
        assert {*ALSO} <= {command.title for command in talk.app.get_system_commands(talk.app.screen)}


async def test_the_palette_has_the_same_commands(chat):
    talk = chat(["Hello."])
    async with talk.playing() as pilot:
        names = {command.title for command in talk.app.get_system_commands(talk.app.screen)}
        keys = {binding.tooltip for binding in ChatScreen.BINDINGS if binding.show}
        assert names >= keys
        await talked(talk, pilot, "one")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: wording("begin_a_new_conversation") in talk.screen_text())
        await pilot.press(*"new begin")
        await until(pilot, lambda: "Let another model" not in talk.screen_text())
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == [])
