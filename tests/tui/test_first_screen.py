"""What stands where nothing was said yet, and the keys that choose among its prompts."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from golden import wording
from textual.events import Paste
from tui.scripted_engine import card, talked, until
from tui.test_conversations import keep

from localspec.chat.introduction import STARTERS
from localspec.checkpoint import Checkpoint
from localspec.config import Settings
from localspec.errors import DoesNotFit
from localspec.models.entries import Entry
from localspec_tui.widgets.first_screen import FirstScreen
from localspec_tui.widgets.prompt import Prompt


def shown(talk) -> bool:
    return bool(talk.app._chat.query_one(FirstScreen).display)


async def test_it_says_who_answers_and_how_well_and_what_is_kept(chat):
    talk = chat()
    async with talk.playing(size=(98, 30)):
        text = talk.screen_text()
        assert "761 million parameters · fp32 · cpu" in text and "often wrong" in text
        assert all(starter in text for starter in STARTERS)
        assert f"alone(--no-logkeepsnothing),in{talk.database}" in "".join(text.split())  # wherever the path is broken
        assert "Last:" not in text


async def test_a_small_window_with_a_notice_cuts_no_more_than_the_path(chat, monkeypatch):
    monkeypatch.setattr(Entry, "toy", True)
    entry = Entry("scripted", Path("/x"), starters=("Who are you?", "What can you do?", "And what not?"))
    monkeypatch.setattr("tui.scripted_engine.card", lambda name: replace(card(name), entry=entry))
    talk = chat()
    talk.notices = [wording("model_named_small_demo_model")]
    keep(talk, "One question", days=1)
    async with talk.playing(size=(60, 20)) as pilot:
        await until(pilot, lambda: "And what not?" in talk.screen_text())
        text = talk.screen_text()
        assert "Last: One question" in text and wording("no_log_keeps_nothing") in text


async def test_where_nothing_is_kept_it_says_so(chat):
    talk = chat(settings=Settings(log=False))
    async with talk.playing():
        assert wording("nothing_is_kept") in talk.screen_text()


async def test_a_toy_is_called_a_toy_and_brings_its_own_prompts(chat, monkeypatch):
    monkeypatch.setattr(Entry, "toy", True)
    talk = chat(["I am."])
    entry = Entry("scripted", Path("/x"), starters=("Who are [you]?", "What else?"))
    monkeypatch.setattr("tui.scripted_engine.card", lambda name: replace(card(name), entry=entry))
    async with talk.playing() as pilot:
        assert "A toy" in talk.screen_text() and "Who are [you]?" in talk.screen_text()
        await pilot.press("3")
        assert talk.typed == "3", "there are only two"
        await pilot.press("backspace", "1", "enter")
        await until(pilot, talk.idle)
        assert talk.prompts() == ["Who are [you]?"] and not shown(talk)


async def test_a_key_chooses_while_the_model_is_still_loading(chat, monkeypatch):
    gate = threading.Event()
    talk = chat(["I am."])
    entry = Entry("scripted", Path("/x"), starters=("Who are you?",))
    monkeypatch.setattr("tui.scripted_engine.card", lambda name: replace(card(name), entry=entry))
    talk.models["scripted"] = [gate, talk.engine]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: "1 Who are you?" in talk.screen_text())
        await pilot.press("1", "enter")
        assert talk.app._chat._outbox.typed == ["Who are you?"]
        gate.set()
        await until(pilot, lambda: talk.idle() and talk.prompts() == ["Who are you?"])


async def test_a_key_chooses_for_a_model_of_ones_own_as_well_while_it_loads(chat, monkeypatch):
    gate = threading.Event()
    talk = chat()
    found = Checkpoint(card("x").path, {}, "LlamaForCausalLM", (), 600_000_000, 1_200_000_000)
    monkeypatch.setattr("localspec.chat.introduction.inspect", lambda path: found)
    talk.models["scripted"] = [gate, talk.engine]
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: STARTERS[1] in talk.screen_text())
        await pilot.press("2")
        assert talk.typed == STARTERS[1]
        gate.set()
        await until(pilot, talk.idle)


async def test_where_nothing_is_told_all_of_a_small_window_is_used(chat, monkeypatch):
    entry = Entry("scripted", Path("/x"), starters=("Who are you?", "What can you do?", "And what not?"))
    monkeypatch.setattr("tui.scripted_engine.card", lambda name: replace(card(name), entry=entry))
    talk = chat()
    keep(talk, "One question that is long enough to need a second line", days=1)
    async with talk.playing(size=(60, 20)) as pilot:
        await until(pilot, lambda: "And what not?" in talk.screen_text())
        assert f"in{talk.database}"[:20] in "".join(talk.screen_text().split())


async def test_a_tiny_model_is_offered_no_prompt_that_it_cannot_answer(chat, monkeypatch):
    monkeypatch.setattr("localspec.chat.introduction.TINY", 1e9)
    talk = chat()
    async with talk.playing() as pilot:
        await until(pilot, lambda: "scripted" in talk.screen_text() and shown(talk))
        assert not any(starter in talk.screen_text() for starter in STARTERS)
        await pilot.press("1")
        assert talk.typed == "1"


async def test_it_comes_back_in_a_new_conversation_with_the_one_before(chat):
    talk = chat(["Yes."], settings=Settings(keymap={"chat.resume": "f12"}))
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Quick sort, please")
        assert not shown(talk)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: shown(talk))
        assert "Last: Quick sort, please, just now (f12)" in talk.screen_text()
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: talk.replies() == ["Yes."])
        assert not shown(talk)


@pytest.mark.parametrize(
    ("keys", "typed"),
    [
        ("2", STARTERS[1]),
        ("22", "22"),
        ("1 + 2", "1 + 2"),
        ("a1", "a1"),
        ("4", "4"),
        (["3", "end", "x"], STARTERS[2] + "x"),
        (["3", "end", "backspace"], STARTERS[2][:-1]),
        (["3", "backspace"], ""),
        ("2 please", "2 please"),
    ],
)
async def test_a_digit_chooses_only_where_it_is_all_that_is_typed(chat, keys, typed):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.press(*("space" if key == " " else key for key in keys))
        assert talk.typed == typed


async def test_what_is_chosen_is_seen_to_be_replaced_by_what_is_typed(chat):
    talk = chat(["Yes."])
    async with talk.playing() as pilot:
        await pilot.press("2")
        assert talk.app.query_one(Prompt).selected_text == STARTERS[1]
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == [STARTERS[1]] and talk.idle())


async def test_a_paste_chooses_nothing(chat):
    talk = chat()
    async with talk.playing() as pilot:
        talk.app.post_message(Paste("1"))
        await until(pilot, lambda: talk.typed)
        assert talk.typed == "1"


async def test_once_something_was_said_a_digit_is_a_digit(chat):
    talk = chat(["Yes."])
    async with talk.playing() as pilot:
        await talked(talk, pilot, "Hi")
        await pilot.press("1")
        assert talk.typed == "1"


async def test_a_click_chooses_too(chat):
    talk = chat()
    async with talk.playing() as pilot:
        await pilot.click(".starter", offset=(8, 0))
        assert talk.typed == STARTERS[0]


async def test_trouble_with_the_model_has_the_room(chat):
    talk = chat()
    talk.models["scripted"] = DoesNotFit("scripted needs 99.0 GiB.")
    async with talk.playing(ready=False) as pilot:
        await until(pilot, lambda: "✗ scripted needs" in talk.screen_text())
        assert not shown(talk)


@pytest.mark.parametrize("size", [(40, 10), (30, 6), (80, 14)])
async def test_where_there_is_little_room_the_prompt_has_it(chat, size):
    talk = chat()
    async with talk.playing(size=size) as pilot:
        await pilot.press("ctrl+j", *"here", "ctrl+j", *"below")
        assert "below" in talk.screen_text()
