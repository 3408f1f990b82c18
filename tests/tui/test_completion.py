"""Slash completion on the full screen."""

import threading
import time

from golden import wording
from textual.widgets import OptionList
from tui.scripted_engine import say, talked, until

from localspec.chat.commands import COMMANDS, Suggestion
from localspec_tui.screens.models import ModelsScreen
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.suggestions import Suggestions


def offered(talk):
    """Return the lines of the list, if it is open."""
    shown = talk.app.query_one(Suggestions)
    return [str(option.prompt) for option in shown.options] if shown.display else []


async def test_a_slash_shows_the_commands_and_tab_completes(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("/")
        await until(pilot, lambda: len(offered(talk)) == len(COMMANDS))
        assert wording("let_another_model_answer") in talk.screen_text()
        await pilot.press("t")
        await until(pilot, lambda: len(offered(talk)) == 2)
        await pilot.press("i")
        await until(pilot, lambda: len(offered(talk)) == 1)
        await pilot.press("tab")
        assert talk.typed == "/title "
        await until(pilot, lambda: offered(talk) == [])
        await pilot.press(*["backspace"] * 7, *"/sy", "tab")  # as fast as one can
        assert talk.typed == "/system "


async def test_descriptions_are_wrapped(chat):
    async with chat().opened(size=(80, 24)) as (talk, pilot):
        [does] = [command.does for command in COMMANDS if command.name == "set"]
        assert len(does) > 50
        await pilot.press(*"/set")
        await until(pilot, lambda: does in " ".join(talk.screen_text().split()))
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: talk.app.size.width == 40 and does in " ".join(talk.screen_text().split()))
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: "/set [KEY [VALUE]]  change how replies" in talk.screen_text())


async def test_arrow_keys_choose_and_enter_takes_what_was_chosen(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("/", "down", "down", "up", "up")
        await until(pilot, lambda: talk.app.query_one(Suggestions).highlighted == len(COMMANDS) - 1)
        await pilot.press("down", "down", "down", "enter")
        assert talk.typed == "/model "
        await pilot.press("enter")  # complete without a name
        await until(pilot, lambda: isinstance(talk.app.screen, ModelsScreen))


async def test_enter_completes_what_is_no_command_yet_and_obeys_what_is_one(chat):
    async with chat(["One."]).opened() as (talk, pilot):
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["One."] and talk.idle())
        await say(pilot, "/ne")
        assert talk.typed == "/new" and talk.prompts() == ["first"]
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == [])


async def test_escape_closes_it_and_stops_nothing(chat):
    gate = threading.Event()
    async with chat(["It goes", gate, " on."]).opened() as (talk, pilot):
        await say(pilot, "hello")
        await until(pilot, lambda: talk.replies() == ["It goes"])
        await pilot.press("/")
        await until(pilot, lambda: offered(talk))
        await pilot.press("escape")
        assert offered(talk) == [] and talk.typed == "/"
        await pilot.press("n")
        await pilot.pause()
        assert offered(talk) == []
        await pilot.press("tab")
        assert talk.typed == "/new"
        gate.set()
        await until(pilot, talk.idle)
    assert talk.kept() == [("hello", "It goes on.", "stop")]


async def test_text_and_earlier_prompts_open_nothing(chat):
    async with chat().opened() as (talk, pilot):
        for text in ("//", "//new", "a /"):
            await pilot.press(*text)
            await pilot.pause(0.05)
            assert offered(talk) == []
            await pilot.press("f7", "delete")
        await say(pilot, "/set seed 4")
        await say(pilot, "/set seed 5")
        await pilot.press("up", "up")
        assert talk.typed == "/set seed 4" and offered(talk) == []


async def test_conversations_are_offered_by_their_titles(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await talked(talk, pilot, "sorting")
        await say(pilot, "/new")
        await until(pilot, lambda: talk.prompts() == [])
        await say(pilot, "foxes")
        await until(pilot, lambda: talk.replies() == ["Two."] and talk.idle())
        await pilot.press(*"/resume ")
        await until(pilot, lambda: len(offered(talk)) == 2)
        await pilot.press(*"sort")
        await until(pilot, lambda: len(offered(talk)) == 1 and "sorting" in offered(talk)[0].lower())
        await pilot.press("tab", "enter")
        await until(pilot, lambda: talk.replies() == ["One."])


async def test_a_slow_disk_holds_no_key_up_and_tab_waits_a_moment_for_it(chat, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr("localspec_tui.screens.chat.look_up", lambda need, history: gate.wait(20) and [])
    async with chat().opened() as (talk, pilot):
        await pilot.press(*"/model ", *"abc")
        assert talk.typed == "/model abc"
        await pilot.press("f7", *"@hos", "tab", "x")
        assert talk.typed == "@hosx" and isinstance(talk.app.focused, Prompt)
        gate.set()
        await pilot.press("f7", "delete")

        def slowly(need, history):
            time.sleep(0.05)
            return [Suggestion("hostile.txt", "")]

        monkeypatch.setattr("localspec_tui.screens.chat.look_up", slowly)
        await pilot.press(*"@hos", "tab", "x")  # as fast as one can
        assert talk.typed == "@hostile.txt x"
        assert isinstance(talk.app.focused, Prompt)


async def test_a_click_completes(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("/")
        await until(pilot, lambda: offered(talk))
        await pilot.click(Suggestions, offset=(3, 3))
        await until(pilot, lambda: talk.typed == "/system ")
        assert isinstance(talk.app.focused, Prompt)


async def test_tab_asks_for_the_list_of_what_was_put_there(chat, monkeypatch):
    talk = chat()
    monkeypatch.setattr("localspec_tui.screens.chat.look_up", lambda need, history: [Suggestion("hostile.txt", "")])
    async with talk.playing() as pilot:
        talk.app.query_one(Prompt).put("@hos")  # as an earlier prompt, which opens nothing
        await pilot.pause()
        assert offered(talk) == []
        await pilot.press("tab")
        assert talk.typed == "@hostile.txt "


async def test_tab_stays_in_a_command_or_a_path_that_nothing_completes(chat):
    async with chat(["One."]).opened() as (talk, pilot):
        await talked(talk, pilot, "hello")
        for text in ("/te", "@no-such-file"):
            await pilot.press(*text, "tab")
            assert talk.typed == text and isinstance(talk.app.focused, Prompt)
            await pilot.press("f7", "delete")
        await pilot.press("tab")
        assert not isinstance(talk.app.focused, Prompt | OptionList), "there is nothing to complete"
