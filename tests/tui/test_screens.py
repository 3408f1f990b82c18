"""The screens that keys open: new and earlier conversations, other models, the system prompt."""

import threading

import pytest
from clocks import PATIENCE
from golden import wording
from textual.widgets import OptionList
from tui.scripted_engine import back, say, talked, until

from localspec.config import Settings
from localspec.store.conversations import ConversationInfo, Found
from localspec.store.store import Store
from localspec_tui.screens.conversations import ConversationsScreen
from localspec_tui.widgets.typed_text import TypedText


async def test_ctrl_n_begins_a_new_conversation(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await talked(talk, pilot, "first")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await until(pilot, lambda: talk.replies() == [] and "Last conversation: first" in talk.screen_text())
        await talked(talk, pilot, "second")
        assert talk.prompts() == ["second"]
    assert len(talk.engine.asked[1]) == 1
    assert [turn[0] for turn in talk.kept()] == ["second"]


async def test_ctrl_n_in_mid_reply_stops_and_keeps_it(chat):
    gate = threading.Event()
    async with chat(["Half", gate, ""]).opened() as (talk, pilot):
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+n")
        gate.set()
        await until(pilot, lambda: talk.prompts() == [])
    assert talk.kept() == [("first", "Half", "interrupted")]


async def test_ctrl_r_continues_with_an_earlier_one(chat):
    async with chat(["Reply about [cats]."], ["Reply about dogs."], ["More on cats."]).opened() as (talk, pilot):
        for prompt in ("Say [cats]", "Say dogs"):
            await talked(talk, pilot, prompt)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Say [cats]" in talk.screen_text())
        assert talk.screen_text().index("Say dogs") < talk.screen_text().index("Say [cats]")
        await pilot.press("down", "enter")
        await until(pilot, lambda: talk.replies() == ["Reply about [cats]."])
        await until(pilot, back(talk))
        assert "Say [cats]" in talk.screen_text().splitlines()[0]
        await talked(talk, pilot, "Go on")
    assert [turn[0] for turn in talk.kept()] == ["Say [cats]", "Go on"]
    assert [message["content"] for message in talk.engine.asked[-1]] == ["Say [cats]", "Reply about [cats].", "Go on"]


async def test_conversations_are_searched_by_what_was_said_which_is_text(chat):
    async with chat(["The capital is [bold]Vienna[/] [/]."], ["A poem."]).opened() as (talk, pilot):
        for prompt in ("[red]Geography[/red] [/]", "Write"):
            await talked(talk, pilot, prompt)
            await pilot.press("ctrl+n")
            await until(pilot, lambda: talk.prompts() == [])
        await pilot.press("ctrl+r", *"vienna")
        await until(pilot, lambda: "The capital is [bold]Vienna[/] [/]." in talk.screen_text())
        await until(pilot, lambda: talk.app.screen.query_one(OptionList).option_count == 1)
        assert "[red]Geography[/red] [/]" in talk.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: talk.replies() == ["The capital is [bold]Vienna[/] [/]."])
        await until(pilot, lambda: "[red]Geography[/red] [/]" in talk.screen_text().splitlines()[0])


async def test_what_was_looked_for_last_counts(chat):
    begun, gate = threading.Event(), threading.Event()

    class Slow:
        """A history whose first search takes longest."""

        def conversations(self, limit, among):
            return []

        def search(self, words, limit):
            if words == "a":
                begun.set()
                assert gate.wait(PATIENCE)
            return [Found(ConversationInfo(1, f"found for {words}", "scripted", 0.0, 0.0, 1), 1, "…")]

    async with chat().opened() as (talk, pilot):
        talk.app._chat.conversations.history = Slow()
        await pilot.press("ctrl+r", "a")
        await until(pilot, begun.is_set)
        await pilot.press("b")
        await until(pilot, lambda: "found for ab" in talk.screen_text())
        gate.set()
        for _ in range(10):
            await pilot.pause(0.01)
        assert "found for ab" in talk.screen_text()
        await pilot.press("escape")


async def test_nothing_found_is_reported_and_escape_goes_back(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("ctrl+r")
        await until(pilot, lambda: wording("conversation_kept_here_yet") in talk.screen_text())
        await pilot.press(*"zebra")
        await until(pilot, lambda: "Nothing was found." in talk.screen_text())
        await pilot.press("enter", "up", "down", "escape")
        await until(pilot, back(talk))


async def test_a_click_chooses_a_conversation_and_a_deleted_one_is_reported(chat):
    talk = chat(["Hello."])

    async def listed(pilot):
        await pilot.press("ctrl+n", "ctrl+r")
        await until(pilot, lambda: isinstance(talk.app.screen, ConversationsScreen) and "1 turn" in talk.screen_text())

    async with talk.playing() as pilot:
        await talked(talk, pilot, "first")
        await listed(pilot)
        await pilot.click("OptionList", offset=(4, 0))
        await until(pilot, lambda: talk.replies() == ["Hello."])
        await listed(pilot)
        talk.app._chat.conversations.history.remove([1])
        await pilot.press("enter")
        await until(pilot, lambda: "There is no conversation 1 here" in talk.screen_text())


async def test_resuming_shows_what_was_said_and_gives_an_unanswered_prompt_back(chat):
    """A process that was killed leaves such a conversation."""
    talk = chat(["At last."])
    with Store.open(talk.database, pytest.fail) as store:
        for prompt, reply, ended in (("one", "Answered.", ("stop",)), ("half", "Half of", ()), ("two", "", None)):
            talk.resumed, turn = store.history.say(talk.resumed, prompt, model="scripted", system=None)
            if ended is not None:
                store.history.write(turn, reply, *ended)
    async with talk.playing() as pilot:
        await until(pilot, lambda: talk.typed == "two")
        assert talk.prompts() == ["one", "half"] and talk.replies() == ["Answered.", "Half of"]
        assert "(cut off" in talk.screen_text()
        await pilot.press("enter")
        await until(pilot, talk.idle)
    kept = talk.kept()
    assert (kept[0], kept[-1]) == (("one", "Answered.", "stop"), ("two", "At last.", "stop"))


async def test_ctrl_s_sets_the_system_prompt(chat):
    async with chat(["Aye."], ["Plain."], settings=Settings(system="Be brief.")).opened() as (talk, pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Be brief." in talk.screen_text())
        await pilot.press("f7", *"Talk like", "enter", *"a pirate.", "ctrl+s")
        await until(pilot, back(talk))
        await talked(talk, pilot, "Hi")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "a pirate." in talk.screen_text())
        await pilot.press("f7", "space", "ctrl+s")
        await until(pilot, back(talk))
        await talked(talk, pilot, "Ho")
    assert talk.engine.asked[0][0] == {"role": "system", "content": "Talk like\na pirate."}
    assert talk.engine.asked[1][0]["role"] == "user"


@pytest.mark.parametrize("typed", ["", "Be long."])
async def test_another_system_prompt_is_kept_before_anything_more_is_said(chat, typed):
    talk = chat()
    with Store.open(talk.database, pytest.fail) as store:
        talk.resumed, turn = store.history.say(None, "one", model="scripted", system="Be brief.")
        store.history.write(turn, "First.", "stop")

    async with talk.playing() as pilot:
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "Be brief." in talk.screen_text())
        await pilot.press("f7", *(typed or ["backspace"]), "ctrl+s")
        await until(pilot, lambda: talk.conversation.system == (typed or None))
    with Store.open(talk.database, pytest.fail) as store:
        assert store.history.read(talk.resumed).system == (typed or None)


def test_escape_leaves_the_system_prompt_as_it_was_and_what_was_typed_comes_back(chat):
    talk = chat(["Aye."], settings=Settings(system="Be brief."))

    async def opened(pilot):
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "System prompt" in talk.screen_text())
        return talk.app.screen.query_one(TypedText).text, "not saved yet" in talk.screen_text()

    async def story(pilot):
        assert await opened(pilot) == ("Be brief.", False)
        await pilot.press("escape")
        await until(pilot, back(talk))
        assert wording("what_you_typed") not in talk.screen_text(), "nothing was"
        await pilot.press("ctrl+s", *" Not", "escape")
        await until(pilot, lambda: "ctrl+s brings back what you typed." in talk.screen_text())
        await talked(talk, pilot, "Hi")
        assert await opened(pilot) == ("Be brief. Not", True)
        await pilot.press("ctrl+z")
        assert talk.app.screen.query_one(TypedText).text == "Be brief."
        await pilot.press("escape")
        await until(pilot, back(talk))
        assert await opened(pilot) == ("Be brief.", False)

    talk.play(story)
    assert talk.engine.asked[0][0] == {"role": "system", "content": "Be brief."}
