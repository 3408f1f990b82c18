"""The first screen of an empty conversation, and the keys that choose among its prompts."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from golden import wording
from textual.events import Paste
from tui.scripted_engine import card, talked, until
from tui.test_conversations import keep

from localspec.chat.introduction import STARTERS
from localspec.config import Settings
from localspec.models.entries import Entry
from localspec.weights.checkpoint import Checkpoint
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.prompt import Prompt


def shown(talk) -> bool:
    return bool(talk.app._chat.query_one(FirstScreen).display)


def starters(monkeypatch, *prompts) -> None:
    """Let these be the prompts of the model that answers."""
    entry = Entry("scripted", Path("/x"), starters=prompts)
    monkeypatch.setattr("tui.scripted_engine.card", lambda name: replace(card(name), entry=entry))


async def test_it_says_who_answers_and_how_well_and_what_is_kept(chat):
    talk = chat()
    async with talk.playing(size=(98, 30)):
        text = talk.screen_text()
        assert "761 million parameters · fp32 · cpu" in text and "often wrong" in text
        assert all(starter in text for starter in STARTERS)
        assert f"(notwith--no-log),in{talk.database}" in "".join(text.split())  # wherever the path is broken
        assert "Last conversation:" not in text


@pytest.mark.parametrize("notice", [True, False])
async def test_a_small_window_cuts_no_more_than_the_path(chat, monkeypatch, notice):
    starters(monkeypatch, "Who are you?", "What can you do?", "And what not?")
    talk = chat()
    if notice:
        monkeypatch.setattr(Entry, "toy", True)
        talk.notices = [wording("model_named_small_demo_model")]
    keep(talk, "One question" if notice else "One question that is long enough to need a second line", days=1)
    async with talk.playing(size=(60, 20)) as pilot:
        await until(pilot, lambda: "And what not?" in talk.screen_text())
        text = talk.screen_text()
        assert "Last conversation: One question" in text and wording("no_log_keeps_nothing") in text
        assert notice or f"in{talk.database}"[:20] in "".join(text.split()), "all of the window is used"


async def test_a_toy_is_called_a_toy_and_brings_its_own_prompts(chat, monkeypatch):
    monkeypatch.setattr(Entry, "toy", True)
    talk = chat(["I am."])
    starters(monkeypatch, "Who are [you]?", "What else?")
    async with talk.playing() as pilot:
        assert "A toy" in talk.screen_text() and "Who are [you]?" in talk.screen_text()
        await pilot.press("3")
        assert talk.typed == "3", "there are only two"
        await pilot.press("backspace", "1")
        assert talk.app.query_one(Prompt).selected_text == "Who are [you]?", "it is replaced by what is typed"
        await pilot.press("enter")
        await until(pilot, talk.idle)
        assert talk.prompts() == ["Who are [you]?"] and not shown(talk)
        await pilot.press("1")
        assert talk.typed == "1", "once something was said a digit is a digit"


@pytest.mark.parametrize("registered", [True, False])
async def test_a_key_chooses_while_the_model_is_still_loading(chat, monkeypatch, registered):
    gate = threading.Event()
    talk = chat(["I am."])
    offered = ["Who are you?", "What else?"] if registered else STARTERS
    if registered:
        starters(monkeypatch, *offered)
    else:
        found = Checkpoint(card("x").path, {}, "LlamaForCausalLM", (), 600_000_000, 1_200_000_000)
        monkeypatch.setattr("localspec.chat.introduction.inspect", lambda path: found)
    talk.models["scripted"] = [gate, talk.engine]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: offered[1] in talk.screen_text())
        await pilot.press("2", "enter")
        assert talk.app._chat.outbox.typed == [offered[1]]
        gate.set()
        await until(pilot, lambda: talk.idle() and talk.prompts() == [offered[1]])


async def test_a_tiny_model_is_offered_no_prompt_that_it_cannot_answer(chat, monkeypatch):
    monkeypatch.setattr("localspec.chat.introduction.TINY", 1e9)
    async with chat().opened() as (talk, pilot):
        await until(pilot, lambda: "scripted" in talk.screen_text() and shown(talk))
        assert not any(starter in talk.screen_text() for starter in STARTERS)
        await pilot.press("1")
        assert talk.typed == "1"


async def test_it_comes_back_in_a_new_conversation_with_the_one_before(chat):
    async with chat(["Yes."], settings=Settings(keymap={"chat.resume": "f12"})).opened() as (talk, pilot):
        await talked(talk, pilot, "Quick sort, please")
        assert not shown(talk)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: shown(talk))
        assert "Last conversation: Quick sort, please, just now (f12)" in talk.screen_text()
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: talk.replies() == ["Yes."])
        assert not shown(talk)


async def test_a_digit_chooses_only_where_it_is_all_that_is_typed(chat):
    async with chat().opened() as (talk, pilot):
        for keys, typed in (
            ("2", STARTERS[1]),
            ("22", "22"),
            ("1 + 2", "1 + 2"),
            ("a1", "a1"),
            ("4", "4"),
            (["3", "end", "x"], STARTERS[2] + "x"),
            (["3", "end", "backspace"], STARTERS[2][:-1]),
            (["3", "backspace"], ""),
            ("2 please", "2 please"),
        ):
            await pilot.press(*("space" if key == " " else key for key in keys))
            assert talk.typed == typed
            await pilot.press("f7", "delete")
        talk.app.post_message(Paste("1"))
        await until(pilot, lambda: talk.typed)
        assert talk.typed == "1", "a paste chooses nothing"
        await pilot.press("backspace")
        await pilot.click(".starter", offset=(8, 0))
        assert talk.typed == STARTERS[0]


@pytest.mark.parametrize("size", [(40, 10), (30, 6), (80, 14)])
async def test_where_there_is_little_room_the_prompt_has_it(chat, size):
    async with chat().opened(size=size) as (talk, pilot):
        await pilot.press("ctrl+j", *"here", "ctrl+j", *"below")
        assert "below" in talk.screen_text()
