"""Slash commands in the prompt: the same as in the line-by-line chat, and never sent to the model."""

import pytest
from golden import wording
from tui.scripted_engine import ScriptedEngine, card, say, talked, until

from localspec.chat.commands import COMMANDS
from localspec.models import registry
from localspec.store.store import Store
from localspec_tui import slash_commands
from localspec_tui.widgets.message_view import NoticeView
from localspec_tui.widgets.prompt import Prompt


def test_every_listed_command_does_something():
    assert list(slash_commands.COMMANDS) == [command.name for command in COMMANDS]


async def test_new_and_resume(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await talked(talk, pilot, "first")
        await say(pilot, "/new")
        await until(pilot, lambda: talk.prompts() == [])
        await say(pilot, "/resume 1")
        await until(pilot, lambda: talk.prompts() == ["first"])
        await say(pilot, "/resume x")
        await until(pilot, lambda: "/resume needs the number of a conversation, not x" in talk.screen_text())
    assert len(talk.engine.asked) == 1


async def test_system_model_and_title(chat, monkeypatch):
    talk = chat(["One."], ["Two."])
    talk.models["other"] = other = ScriptedEngine(["Other."])
    monkeypatch.setattr(registry, "named_card", card)
    async with talk.playing() as pilot:
        await say(pilot, "/system Be [kind].")
        await say(pilot, "first")
        await until(pilot, lambda: talk.replies() == ["One."] and talk.idle())
        await say(pilot, "/title [My] chat")
        await until(pilot, lambda: "[My] chat" in talk.screen_text().splitlines()[0])
        await say(pilot, "/model other")
        await until(pilot, lambda: "other" in talk.screen_text().splitlines()[0] and talk.idle())
        await say(pilot, "second")
        await until(pilot, lambda: talk.replies() == ["One.", "Other."])
    assert other.asked[0][0] == {"role": "system", "content": "Be [kind]."}
    with Store.open(talk.database, pytest.fail) as store:
        assert [info.title for info in store.history.conversations()] == ["[My] chat"]


async def test_an_unknown_command_is_reported_and_given_back(chat):
    async with chat(["Said."]).opened() as (talk, pilot):
        await say(pilot, "/nwe")
        await until(pilot, lambda: wording("no_command_nwe") in talk.screen_text())
        assert talk.typed == "/nwe"
        await say(pilot, "/resume 99")  # in its place
        await until(pilot, lambda: wording("no_conversation_99") in talk.screen_text())
        assert talk.typed == "/resume 99" and wording("there_is_no_command") not in talk.screen_text()
        await say(pilot, "//etc")
        await until(pilot, lambda: talk.prompts() == ["/etc"] and talk.idle())
    assert [message["content"] for message in talk.engine.asked[0]] == ["/etc"]


async def test_a_title_for_what_is_not_kept_is_refused(chat):
    async with chat().opened() as (talk, pilot):
        await say(pilot, "/title none")
        await until(pilot, lambda: wording("this_conversation_is_not_kept") in talk.screen_text())


async def test_a_refusal_stands_once_however_often_it_is_requested_and_quotes_little(chat):
    async with chat(["Well."]).opened() as (talk, pilot):
        await until(pilot, talk.idle)
        screen = talk.app._chat
        for _ in range(3):
            screen.post_message(Prompt.Sent("/nonsense" + "x" * 500))
        await until(
            pilot, lambda: [one.sentence[:27] for one in screen.query(NoticeView)] == ["There is no command '/nonse"]
        )
        screen.post_message(Prompt.Sent("/new " + "y" * 500))
        await until(pilot, lambda: ["takes no text" in one.sentence for one in screen.query(NoticeView)] == [True])
        assert len(screen.query_one(NoticeView).sentence) < 150
