"""Another conversation is opened while the chat is busy: no reply is lost, or added to the wrong conversation."""

import sys
import threading

import pytest
from golden import wording
from textual import events
from tui.scripted_engine import card, say, talked, until
from tui.test_conversations import keep

from localspec.store.history import Presence


def burst(pilot, keys: str) -> None:
    """Send keys all at once, as a slow terminal does."""
    for key in keys:
        name = {"\x0e": "ctrl+n", "\r": "enter", " ": "space"}.get(key, key)
        pilot.app.post_message(events.Key(name, key))


async def test_what_is_typed_behind_ctrl_n_is_said_in_the_new_one(chat):
    gate = threading.Event()
    async with chat(["Half a reply", gate, "."], ["New."]).opened() as (talk, pilot):
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Half a reply"])
        burst(pilot, "\x0ehi there\r")
        gate.set()
        await until(pilot, lambda: talk.replies() == ["New."])
        assert talk.prompts() == ["hi there"] and talk.typed == ""
    assert [message["content"] for message in talk.engine.asked[1]] == ["hi there"]


async def test_a_prompt_that_is_sent_before_the_new_one_is_there_waits_for_it(chat):
    """The engine's thread is busy: it shows the new conversation only after the prompt was sent."""
    gate = threading.Event()
    async with chat(["Half", gate], ["New."], ["Newer."]).opened() as (talk, pilot):
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Half"])
        await pilot.press("ctrl+n", "ctrl+n")
        await say(pilot, "hi")
        gate.set()
        await until(pilot, lambda: talk.replies() == ["New."])
        await say(pilot, "more")
        await until(pilot, lambda: talk.replies() == ["New.", "Newer."])
    assert talk.kept() == [("hi", "New.", "stop"), ("more", "Newer.", "stop")]


async def test_a_prompt_of_the_command_line_is_found_again(chat):
    gate = threading.Event()
    talk = chat(["Yes."], first="from the shell")
    talk.models["scripted"] = [gate, talk.engine]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: "from the shell" in talk.screen_text())
        await pilot.press("a", "escape", "up")
        assert talk.typed == "from the shell"
        gate.set()


def test_a_low_window_shows_where_one_types(chat):
    talk = chat()

    async def story(pilot):
        for letter in "abcdefg":
            await pilot.press(letter, "ctrl+j")
        await pilot.press("z")
        await until(pilot, lambda: "z" in talk.screen_text())

    talk.play(story, size=(40, 6))
    talk = chat()
    talk.play(story, size=(80, 10))


@pytest.mark.parametrize("way", ["new", "resume", "model"])
async def test_what_cuts_a_reply_short_says_so(chat, models, way):
    models("scripted")
    gate = threading.Event()
    talk = chat(["Before."], ["Half a reply", gate, "."])

    def toasts():
        return [notification.message for notification in talk.app._notifications]

    async with talk.playing() as pilot:
        await talked(talk, pilot, "Before?")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        assert not toasts()
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies() == ["Half a reply"])
        if way == "new":
            await pilot.press("ctrl+n")
        elif way == "resume":
            talk.app._chat.conversations.resume(1)
        else:
            talk.app._chat.models.switch(card("scripted"))
        await until(pilot, lambda: toasts() == [wording("reply_under_way_stopped_what_said")])
        gate.set()
        await until(pilot, lambda: talk.idle() and not talk.app._chat.outbox.to_be_shown)
    assert [(prompt, reason) for prompt, _, reason in talk.kept()] == [("Go", "interrupted")] or way == "resume"


async def test_opening_a_conversation_that_is_open_elsewhere_is_reported_at_once(chat, monkeypatch):
    """The notice comes at once, not with the first prompt."""
    entered = []

    def enter(presence, conversation):
        entered.append(conversation)
        return conversation == 1 and entered.count(1) == 1

    monkeypatch.setattr(Presence, "enter", enter)
    talk = chat(["New."])
    keep(talk, "Of the sea", "Of the hills")
    talk.resumed = 2

    def told() -> bool:
        return wording("conversation_open_another_window") in " ".join(talk.screen_text().split())

    async with talk.playing(size=(80, 24)) as pilot:
        await until(pilot, lambda: "Of the hills" in talk.prompts())
        assert not told()
        await say(pilot, "/resume 1")
        await until(pilot, lambda: talk.prompts() == ["Of the sea"] and told())
        await say(pilot, "/new")
        await until(pilot, lambda: not told())
        await say(pilot, "hi")
        await until(pilot, lambda: talk.replies() == ["New."])
    assert [*dict.fromkeys(entered)] == [2, 1, None, 3]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="presence is not tracked on Windows")
def test_two_windows_on_one_conversation(tmp_path):
    from tui.terminal import scripted_chat

    with scripted_chat(tmp_path, '["a"], ["b"]', "-m", "demo") as first:
        first.shows("❯ Say something", "ready")
        first.send("one\r")
        first.shows("1 token", "❯ Say something")
        with scripted_chat(tmp_path, "[]", "-m", "demo", "-c") as second:
            second.shows(wording("open_in_another_window"), "❯ Say something")
            second.send("\x11")
            assert second.ends() == 0
        with scripted_chat(tmp_path, "[]", "-m", "demo", "--plain", "-c") as third:
            third.shows(wording("open_in_another_window"), "> ")
        assert "another window" not in first.text
        first.send("\x11")
        assert first.ends() == 0
