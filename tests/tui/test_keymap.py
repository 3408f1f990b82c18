"""The user's own keys: shown wherever keys are shown, and refused where they cannot work."""

import re
from importlib import import_module

import pytest
from each import each
from golden import wording
from textual.binding import Binding
from tui.scripted_engine import talked, until

from localspec.config import Settings
from localspec.errors import UsageMistake
from localspec_tui import keymap


def settings(**keys):
    return Settings(
        keymap={name.replace("__", "."): key for name, key in keys.items()}, origins={"keymap": "config.toml"}
    )


async def test_the_users_keys_do_it_and_ours_no_longer(chat):
    talk = chat(
        ["One."], settings=settings(chat__new="f19", chat__help="f18", chat__resume="F20", conversations__rename="f19")
    )
    async with talk.playing() as pilot:
        await until(pilot, talk.idle)
        await talked(talk, pilot, "first")
        await pilot.press("ctrl+n", "f1")
        assert talk.prompts() == ["first"] and wording("typed_in_the_prompt") not in talk.screen_text()
        foot = talk.screen_text().splitlines()[-1]
        assert "f19 New" in foot and "f18 Keys" in foot and "f20 Resume" in foot and "^n" not in foot
        await pilot.press("f18")
        await until(pilot, lambda: wording("typed_in_the_prompt") in talk.screen_text())
        assert re.search(r"f18 +Show or hide all keys", talk.screen_text())
        await pilot.press("escape", "f20")
        await until(pilot, lambda: "f19 Rename" in talk.screen_text().splitlines()[-1])
        await pilot.press("escape", "f19")
        await until(pilot, lambda: talk.prompts() == [])
        commands = {one.title: one.help for one in talk.app.get_system_commands(talk.app.screen)}
        assert commands["Begin a new conversation"] == "f19"


async def test_quitting_has_one_name_and_leaves_its_key(chat):
    async with chat(settings=settings(app__quit="f20", chat__new="ctrl+q")).opened() as (talk, pilot):
        await until(pilot, talk.idle)
        foot = talk.screen_text().splitlines()[-1]
        assert "^q New" in foot and "f20 Quit" in foot and "^q Quit" not in foot
        await pilot.press("f20")
        await until(pilot, lambda: not talk.app.is_running)


async def test_what_shares_a_key_keeps_it(chat):
    """Textual would take Escape from both."""
    async with chat(settings=settings(chat__stop="f19")).opened() as (talk, pilot):
        await until(pilot, talk.idle)
        await pilot.press("f1")
        await until(pilot, lambda: wording("typed_in_the_prompt") in talk.screen_text())
        await pilot.press("escape")
        await until(pilot, lambda: wording("typed_in_the_prompt") not in talk.screen_text())


@each(
    "keys, sentence",
    [
        ({"chat.nwe": "f19"}, wording("nothing_called_chat_nwe_did_mean")),
        ({"conversations.renam": "f19"}, wording("did_you_mean_conversations_rename")),
        ({"new": "f19"}, wording("nothing_is_called_new")),
        ({"chat.new": "ctrl+qq"}, wording("chat_new_ctrl_qq_key")),
        ({"chat.new": "control+n"}, "is not a key"),
        ({"chat.new": "escpe"}, wording("key_did_mean_escape_give_one_such")),
        ({"chat.new": "f19,"}, wording("chat_new_is_no_key")),
        ({"chat.new": "n"}, wording("typing_give_key_such_f12")),
        ({"chat.new": "shift+N"}, "is for typing"),
        ({"chat.new": "?"}, "is for typing"),
        ({"chat.new": "space"}, "is for typing"),
        ({"chat.new": "ctrl+o"}, wording("ctrl_o_chat_new_chat_models")),
        ({"chat.new": "Ctrl+M"}, "enter is assigned to chat.new and to prompt.send"),
        ({"chat.new": "esc"}, "escape is assigned to chat.new and to chat.stop"),
        ({"chat.new": "ctrl+p"}, "ctrl+p is assigned to chat.new and to palette"),
        ({"chat.new": "tab"}, "tab is assigned to chat.new and to app.focus_next"),
        ({"chat.new": "ctrl+k"}, "to prompt.delete_to_end_of_line_or_delete_line"),
        ({"chat.new": "f19", "chat.copy": "f20,f19"}, "f19 is assigned to chat.new and to chat.copy"),
        ({"prompt.send": "ctrl+q"}, "ctrl+q is assigned to prompt.send and to app.quit"),
        ({"conversations.rename": "ctrl+a"}, "ctrl+a is assigned to conversations.rename and to home"),
    ],
)
def test_what_cannot_be_is_refused(keys, sentence):
    with pytest.raises(UsageMistake) as refused:
        keymap.effective(Settings(keymap=keys, origins={"keymap": "config.toml"}))
    assert str(refused.value).startswith("config.toml: ") and sentence in str(refused.value)


@each(
    "keys, made",
    [
        ({"chat.new": "ctrl+o", "chat.models": "ctrl+n"}, {"chat.new": "ctrl+o", "chat.models": "ctrl+n"}),
        ({"prompt.newline": "shift+enter, ctrl++"}, {"prompt.newline": "shift+enter,ctrl+plus"}),
        ({"prompt.send": "ctrl+ENTER"}, {"prompt.send": "ctrl+enter"}),
        ({"chat.above": "Shift+Alt+PgUp"}, {"chat.above": "alt+shift+pageup"}),
        ({"asking.yes": "j"}, {"asking.yes": "j"}),
        ({"models.back": "ctrl+o"}, {"models.back": "ctrl+o"}),
        ({}, {}),
    ],
)
def test_what_can_be_is_taken(keys, made):
    assert keymap.effective(Settings(keymap=keys)) == made


def test_whatever_has_a_key_of_ours_can_be_given_another():
    """No binding of the package is without a name, and no name means two things with different keys."""
    names: dict[str, set[tuple[tuple[str, ...], str]]] = {}
    for module in keymap._module_names():
        own = [kind for kind in vars(import_module(module)).values() if isinstance(kind, type)]
        for kind in own:
            ours = vars(kind).get("BINDINGS", ()) if kind.__module__ == module else ()
            assert all(isinstance(one, Binding) and one.id for one in ours), kind
        for one in keymap._bound(module):
            if one.name is not None:
                names.setdefault(one.name, set()).add((one.keys, one.action.removeprefix("app.")))
    some = {"chat.new", "app.quit", "prompt.send", "conversations.delete", "asking.yes", "models.choose"}
    assert some <= names.keys()
    assert {name for name, meanings in names.items() if len(meanings) > 1} == set()
