"""The saved phrases: found, described, and permanently deleted."""

import threading

import pytest
import tokenizers
from clocks import PATIENCE
from golden import wording
from textual.widgets import OptionList
from tui.scripted_engine import say, until

from localspec.store.phrases import pack_key, pack_tokens
from localspec.store.store import Store
from localspec_tui.screens import phrases
from localspec_tui.screens.chat import ChatScreen
from localspec_tui.screens.phrases import PhrasesScreen

WORDS = ["the", " quick", " brown", " fox", " jumps", "\x1b[2J", "\n", " straße"]


@pytest.fixture
def kept(chat, tmp_path):
    """kept(): open a chat whose store has three phrases, two of them from one conversation."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: n for n, word in enumerate(WORDS)}, "the"))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    talk = chat(["One."])
    with Store.open(talk.database, pytest.fail) as store:
        number, turn = store.history.say(None, "A [fox]?", model="scripted", system=None)
        store.history.write(turn, "Yes.", "stop")
        pool = store.phrases.pool("/models/scripted", "hash", tmp_path)
        other = store.phrases.pool("other", "hash", tmp_path / "other")
        fox, brown, street = ((pack_key(*key), b"", pack_tokens(after)) for key, after in
                              (((0, 3), [4]), ((1, 2), [3, 5]), ((0, 6), [7])))  # fmt: skip
        store.phrases.learn(pool, [street])
        store.phrases.learn(pool, [fox, brown], [street], conversation=number)
        store.phrases.learn(other, [fox])
    return talk


def left(talk):
    with Store.open(talk.database, pytest.fail) as store:
        return {pool.model: pool.phrases for pool in store.phrases.pools()}


async def opened(talk, pilot):
    await until(pilot, lambda: isinstance(talk.app.screen, PhrasesScreen) and talk.app.screen._listed)
    return talk.app.screen


async def test_they_show_their_figures_and_are_searched(kept):
    async with kept.playing() as pilot:
        await pilot.press("f8")
        screen = await opened(kept, pilot)
        await until(pilot, lambda: "straße" in kept.screen_text())  # matches are drawn a moment later
        page = kept.screen_text()
        assert wording("scripted_3_phrases_past_replies") in page
        assert "the⏎ →  straße" in page and wording("said_once_guessed_right_1_reply") in page
        assert " quick brown →  fox␛[2J" in page and "used once, last in “A [fox]?”" in page
        assert len(screen._listed) == 3
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(kept.app.screen, ChatScreen))
        await say(pilot, "/phrases FOX jumps")
        screen = await opened(kept, pilot)
        assert [found.line for found in screen._listed] == ["the fox →  jumps"]
        await pilot.press(*" none")
        await until(pilot, lambda: "Nothing was found." in kept.screen_text())
        await pilot.press(*["backspace"] * 20, *"straße")
        await until(pilot, lambda: [found.line for found in screen._listed] == ["the⏎ →  straße"])


async def test_one_is_deleted_for_good_and_not_before_it_was_asked(kept):
    async with kept.playing() as pilot:
        await pilot.press("f8")
        screen = await opened(kept, pilot)
        await pilot.press("down", "down", "up")
        assert screen.query_one(OptionList).highlighted == 1
        line = screen._listed[1].line
        await pilot.press("ctrl+d")
        await until(pilot, lambda: f"Delete “{line}” for good?" in kept.screen_text())
        await pilot.press("n")
        await until(pilot, lambda: not screen._asking.asking)
        assert left(kept) == {"/models/scripted": 3, "other": 1}
        await pilot.press("ctrl+d", "y")
        await until(pilot, lambda: "Deleted 1 phrase." in kept.screen_text())
        await until(pilot, lambda: line not in [found.line for found in screen._listed])
    assert left(kept) == {"/models/scripted": 2, "other": 1}


async def test_a_chat_s_are_deleted(kept):
    async with kept.playing() as pilot:
        await pilot.press("f8")
        screen = await opened(kept, pilot)
        await pilot.press("f7")  # the one whose chat is unknown
        await until(pilot, lambda: wording("nobody_knows_which_chat") in kept.screen_text())
        await pilot.press("down", "f7")
        await until(pilot, lambda: "Delete the 2 phrases last used in “A [fox]?” for good?" in kept.screen_text())
        await pilot.press("y")
        await until(pilot, lambda: "Deleted 2 phrases." in kept.screen_text() and len(screen._listed) == 1)
    assert left(kept) == {"/models/scripted": 1, "other": 1}


async def test_all_of_a_model_are_deleted(kept):
    async with kept.playing() as pilot:
        await pilot.press("f8")
        screen = await opened(kept, pilot)
        await pilot.press("f8")
        await until(pilot, lambda: "Delete all 3 phrases of scripted for good?" in kept.screen_text())
        await pilot.press("escape")
        await until(pilot, lambda: not screen._asking.asking)
        await pilot.press("f8", "y")
        await until(pilot, lambda: "Deleted 3 phrases." in kept.screen_text() and not screen._listed)
        await pilot.press("ctrl+d", "f7", "f8")
        assert not screen._asking.asking
    assert left(kept) == {"/models/scripted": 0, "other": 1}
    assert "straße".encode() not in kept.database.read_bytes()


async def test_what_was_looked_for_last_counts(kept, monkeypatch):
    begun, gate, real = threading.Event(), threading.Event(), phrases.readable_phrases

    def slow(store, pool, decode, words):
        if words == "f":
            begun.set()
            assert gate.wait(PATIENCE)
        return real(store, pool, decode, words)

    monkeypatch.setattr(phrases, "readable_phrases", slow)
    async with kept.playing() as pilot:
        await pilot.press("f8")
        screen = await opened(kept, pilot)
        await pilot.press("f")
        await until(pilot, begun.is_set)
        await pilot.press("backspace", *"straße")
        gate.set()
        await until(pilot, lambda: [found.line for found in screen._listed] == ["the⏎ →  straße"])


def offered(talk):
    """Return the keys for deleting that are offered."""
    return [key for key in ("^d Delete", "f7 Delete this chat's", "f8 Delete all") if key in talk.screen_text()]


async def test_keys_that_have_nothing_to_delete_are_not_offered_and_do_nothing(chat):
    async with chat().opened() as (talk, pilot):
        await pilot.press("f8")
        await until(pilot, lambda: wording("phrases_kept_model_yet") in talk.screen_text())
        await pilot.press(*"fox")
        await until(pilot, lambda: "Nothing was found." in talk.screen_text())
        await until(pilot, lambda: "esc Back" in talk.screen_text() and not offered(talk))
        await pilot.press("ctrl+d", "f7", "f8")
        assert isinstance(talk.app.screen, PhrasesScreen) and not talk.app.screen._asking.asking


async def test_what_is_not_found_is_not_deleted_but_with_all(kept):
    async with kept.playing() as pilot:
        await pilot.press("f8")
        await opened(kept, pilot)
        await until(pilot, lambda: len(offered(kept)) == 3)
        await pilot.press(*"none of it")
        await until(pilot, lambda: offered(kept) == ["f8 Delete all"])
        await pilot.press(*["backspace"] * 10)
        await until(pilot, lambda: len(offered(kept)) == 3)
        await pilot.press("f8", "y")
        await until(pilot, lambda: "Deleted 3 phrases." in kept.screen_text() and not offered(kept))
