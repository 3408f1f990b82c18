"""Every command of the chat: each entry of the palette, key and slash command, and its effect."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import pytest
from golden import wording
from textual.binding import Binding
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, OptionList
from tui.scripted_engine import ScriptedChat, Thought, back, say, talked, until

from localspec.chat.commands import COMMANDS
from localspec_tui import editor
from localspec_tui.app import ChatApp
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.screens.models import ModelsScreen
from localspec_tui.screens.palette import Palette
from localspec_tui.screens.phrases import PhrasesScreen
from localspec_tui.screens.race import RaceScreen
from localspec_tui.screens.settings_dialogs import SamplingScreen, SystemPromptScreen
from localspec_tui.screens.xray import XRayScreen
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.find_line import FindLine
from localspec_tui.widgets.keys_panel import KeysPanel, of_the_chat
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.reply_view import ReplyView
from localspec_tui.widgets.side_panel import SidePanel
from localspec_tui.widgets.suggestions import Suggestions

LONG = "word " * 300  # more than there are lines for
LAST = "Last:\n\n```sh\nls\n```"
ESCAPE = ("escape",)
EMPTY = ("f7", "backspace")  # the prompt

Seen = Callable[[ScriptedChat], object]


class Deed(NamedTuple):
    """A command, in the words of the palette and of F1 or as a typed line; and its effect, which is absent before.

    `first`: keys that make it possible; `after`: keys that lead back to the state before.
    """

    names: tuple[str, ...]
    so: Seen
    first: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def opens(kind: type[Screen[Any]], *names: str) -> Deed:
    return Deed(names, lambda talk: isinstance(talk.app.screen, kind), (), ESCAPE)


def scrolled_up(talk: ScriptedChat) -> bool:
    view = talk.app.query_one(ConversationView)
    return view.scroll_y < view.max_scroll_y


def at_the_prompt(talk: ScriptedChat) -> bool:
    return talk.app.focused is talk.app._chat.query_one(Prompt)


def at_the_last_reply(talk: ScriptedChat) -> bool:
    return talk.app.focused is talk.app._chat.query(ReplyView).last()


def told(text: str) -> Seen:
    return lambda talk: any(text in one.message for one in talk.app.toasts)


def cursor_at_the_end(talk: ScriptedChat) -> bool:
    prompt = talk.app._chat.query_one(Prompt)
    return bool(prompt.text) and prompt.cursor_at_end_of_line


def placeholder(talk: ScriptedChat) -> str:
    return talk.app.screen.query_one(Input).placeholder if isinstance(talk.app.screen, Palette) else ""


TABLE = {
    "screens": [
        Deed(
            (wording("every_command_to_search_in"),),
            lambda talk: "colour theme" not in placeholder(talk) != "",
            (),
            ESCAPE,
        ),
        Deed(("Choose other colours",), lambda talk: "colour theme" in placeholder(talk), (), ESCAPE),
        opens(ConversationsScreen, wording("go_earlier_conversation"), "/resume"),
        opens(ModelsScreen, wording("let_another_model_answer_2"), "/model"),
        opens(SystemPromptScreen, wording("set_the_system_prompt"), "/system"),
        opens(SamplingScreen, wording("change_how_replies_are_sampled"), "/set"),
        opens(XRayScreen, wording("see_who_proposed_each_token_reply"), "/xray"),
        opens(RaceScreen, wording("let_model_race_against_itself"), "/race"),
        opens(PhrasesScreen, wording("see_phrases_kept"), "/phrases"),
    ],
    "reading": [
        Deed((wording("show_hide_all_keys_commands"), "/help"), lambda talk: talk.app.query(KeysPanel), (), ESCAPE),
        Deed((wording("show_hide_panel_figures"),), lambda talk: talk.app.query_one(SidePanel).display, (), ("f4",)),
        Deed(
            (wording("find_words_in_this_conversation"), "/find"),
            lambda talk: talk.app._chat.query_one(FindLine).display,
            (),
            ESCAPE,
        ),
        Deed((wording("copy_last_reply_message_focus"),), lambda talk: talk.app.clipboard == LAST),
        Deed((wording("copy_code_reply_itself"),), lambda talk: talk.app.clipboard == "ls"),
        Deed((wording("show_fold_what_thought"),), lambda talk: "So it is." in talk.screen_text(), (), ("alt+t",)),
        Deed((wording("let_model_think_before_answers"),), lambda talk: "· thinking" in talk.screen_text()),
        Deed((wording("to_the_message_above"),), at_the_last_reply, (), ESCAPE),
        Deed((wording("to_the_message_below"), wording("back_to_where_one_types")), at_the_prompt, ("alt+up",)),
        Deed(("Scroll up",), scrolled_up, (), ("ctrl+end",)),
        Deed(
            ("Scroll down", wording("end_conversation")),
            lambda talk: not scrolled_up(talk),
            ("pageup",),
            ("ctrl+end",),
        ),
        Deed(("/title Of the sea",), lambda talk: "Of the sea" in talk.screen_text().splitlines()[0]),
        Deed(("/think auto",), told("From the next reply, thinking is auto.")),
    ],
    "typing": [
        Deed(("Insert a line break",), lambda talk: "\n" in talk.typed, ("a",), EMPTY),
        Deed((wording("line_up_or_earlier_prompt"),), lambda talk: talk.typed == "two", (), ("down",)),
        Deed((wording("line_down_or_later_prompt"),), lambda talk: talk.typed == "", ("up",)),
        Deed((wording("end_line_then_conversation"),), cursor_at_the_end, ("a", "b", "home"), EMPTY),
        Deed((wording("complete_command_path"),), lambda talk: talk.typed.strip() == "/new", ("/", "n"), EMPTY),
        Deed(
            (wording("close_the_list_of_commands"),),
            lambda talk: talk.typed and not talk.app._chat.query_one(Suggestions).display,
            ("/",),
            EMPTY,
        ),
        Deed(
            (wording("select_all_what_typed_next_takes"),),
            lambda talk: talk.app._chat.query_one(Prompt).selected_text == "ab",
            ("a", "b"),
            EMPTY,
        ),
        Deed(
            (wording("delete_beginning_line_then_line"),),
            lambda talk: talk.typed == "",
            ("a", "b"),
            EMPTY,
        ),
        Deed((wording("write_in_your_own_editor"),), lambda talk: talk.typed == "edited", (), EMPTY),
        Deed(("Send",), lambda talk: talk.prompts()[-1] == "hi", ("h", "i")),
    ],
    "another": [
        Deed((wording("change_last_prompt_one_focus"), "/edit"), lambda talk: talk.typed == "two", (), ESCAPE),
        Deed((wording("another_answer_last_prompt"), "/again"), lambda talk: talk.replies()[-1] == "Half."),
    ],
    "new": [Deed((wording("begin_a_new_conversation"), "/new"), lambda talk: talk.prompts() == [])],
    "stopping": [
        Deed(
            (wording("stop_reply_what_said_stays"), wording("copy_what_selected_stop")),
            lambda talk: talk.live == "stopping",
        ),
    ],
    "leaving": [
        Deed(
            (wording("leave_what_said_stays_kept"), wording("quit_on_an_empty_prompt"), "/quit"),
            lambda talk: not talk.app.is_running,
        ),
    ],
}


def keys() -> dict[str, list[str]]:
    """Return each key of the chat by its description in F1."""
    found = {"Search all commands": [ChatApp.COMMAND_PALETTE_BINDING]}
    for one in (*ChatScreen.BINDINGS, *Prompt.LISTED, *ChatApp.BINDINGS):
        if isinstance(one, Binding) and not one.action.startswith("screen."):
            found.setdefault(one.tooltip or one.description, []).extend(one.key.split(","))
    return found


def palette(app: ChatApp) -> list[str]:
    return [command.title for command in app.get_system_commands(app._chat)]


@pytest.mark.quick
def test_there_is_a_row_for_each(chat):
    talk = chat()
    try:
        sections = of_the_chat(talk.app, ChatScreen.BINDINGS)._sections
    finally:
        talk.thread.close(1)
    rows = [
        name.split()[0] if name.startswith("/") else name for deeds in TABLE.values() for d in deeds for name in d.names
    ]
    listed = [line for _, lines in sections for line in lines]
    assert len(rows) == len(set(rows))
    assert {*palette(talk.app)} <= {*rows}, "of the palette"
    assert {line.does for line in listed if not line.name.startswith("/")} <= {*rows} & {*keys()}, "of F1"
    assert {f"/{one.name}" for one in COMMANDS} == {row for row in rows if row.startswith("/")}
    assert {row for row in rows if not row.startswith("/")} <= {*palette(talk.app), *keys()}
    assert {one.tooltip or one.description for one in ChatScreen.BINDINGS} <= {*rows}


async def by_palette(talk: ScriptedChat, pilot: Pilot[None], name: str) -> None:
    await pilot.press("ctrl+p")
    talk.app.screen.query_one(Input).value = name
    found = talk.app.screen.query_one(OptionList)
    await until(pilot, lambda: found.option_count == 1 and name in str(found.get_option_at_index(0).prompt))
    await pilot.press("enter")


def ways(group: str, how: str, talk: ScriptedChat) -> list[tuple[Deed, str]]:
    """Return each command of the group, once for each of its names, keys or typed lines.

    The palette is made of the keys' actions, so of what has a key it is asked only for screens, which open over it.
    """
    keyless = {"screens": palette(talk.app)}.get(group, [name for name in palette(talk.app) if name not in keys()])
    found: dict[str, Callable[[str], list[str]]] = {
        "palette": lambda name: [name] if name in keyless else [],
        "key": lambda name: keys().get(name, []),
        "slash": lambda name: [name] if name.startswith("/") else [],
    }
    return [(deed, way) for deed in TABLE[group] for name in deed.names for way in found[how](name)]


ENDS = {"stopping", "leaving", "new"}  # these commands leave no chat to continue with


async def tell(talk: ScriptedChat, pilot: Pilot[None], deed: Deed, how: str, way: str) -> None:
    """Give the command, and check its effect."""
    await pilot.press(*deed.first)
    await until(pilot, lambda: not deed.so(talk))
    if how == "palette":
        await by_palette(talk, pilot, way)
    elif how == "key":
        await pilot.press(way)
    else:
        await say(pilot, way)
    await until(pilot, lambda: deed.so(talk))


def prepared(
    chat: Callable[..., ScriptedChat], monkeypatch: pytest.MonkeyPatch
) -> tuple[ScriptedChat, threading.Event]:
    """Return a chat with an editor and a switch for thinking; the gate is before the end of its third reply."""
    gate = threading.Event()
    talk = chat([LONG], [Thought("So it is."), LAST], ["Half", gate, "."])
    talk.engine.switch = False
    monkeypatch.setenv("VISUAL", "any")
    monkeypatch.setattr(editor, "edited", lambda *_: "edited")
    monkeypatch.setattr(talk.app, "suspend", nullcontext)
    return talk, gate


@pytest.mark.parametrize(
    ("group", "how"),
    [
        (group, how)
        for group in TABLE
        for how in ("palette", "key", "slash")
        if group in {"palette": ("screens", "reading"), "slash": {*TABLE} - {"typing", "stopping"}}.get(how, TABLE)
    ],
)
def test_it_is_done(chat, models, monkeypatch, group, how):
    models("scripted")
    talk, gate = prepared(chat, monkeypatch)
    every = ways(group, how, talk)
    assert every
    for number, here in enumerate([[one] for one in every] if group in ENDS else [every]):
        if number:
            talk, gate = prepared(chat, monkeypatch)

        async def story(pilot, talk=talk, gate=gate, here=here):
            await talked(talk, pilot, "one", "two")
            if group == "stopping":
                await say(pilot, "three")
                await until(pilot, lambda: talk.replies()[-1:] == ["Half"])
            else:
                gate.set()
            for deed, way in here:
                await tell(talk, pilot, deed, how, way)
                gate.set()
                if group not in ENDS:
                    await pilot.press(*deed.after)
                    await until(pilot, lambda: back(talk)() and talk.idle())

        talk.play(story, size=(100, 20))
        assert not any(said["content"].startswith("/") for asked in talk.engine.asked for said in asked)
