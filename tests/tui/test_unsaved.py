"""A full disk: the chat reports unsaved replies while it is full and at the end, and saves them when it can."""

import re
import sqlite3
import sys

import pytest
from golden import wording
from tui.scripted_engine import talked, until

from localspec.store.database import Database, NoRoom
from localspec.store.store import Store
from localspec_tui.widgets.status_line import UnsavedLine


@pytest.fixture
def full(monkeypatch):
    """full(yes): make the disk full or not full."""
    save = Database.save
    state = {"full": False}

    def save_if_there_is_room(database, work):
        if state["full"]:
            raise NoRoom("The disk is full.")
        return save(database, work)

    monkeypatch.setattr(Database, "save", save_if_there_is_room)
    return lambda yes: state.update(full=yes)


def line(talk):
    found = talk.app._chat.query_one(UnsavedLine)
    return str(found.render()) if found.display else ""


async def test_it_is_shown_until_everything_is_saved(chat, full):
    async with chat(["a"], ["b"], ["c"], ["d"], ["e"]).opened(size=(60, 20)) as (talk, pilot):
        await talked(talk, pilot, "one")
        assert line(talk) == ""
        full(True)
        await talked(talk, pilot, "two")
        await until(pilot, lambda: line(talk).startswith(wording("not_kept_the_last_turn")))
        assert wording("what_said_now_kept_disk_full_2") in " ".join(talk.screen_text().split())
        await talked(talk, pilot, "three")
        assert line(talk) == wording("kept_last_2_turns_each_prompt")
        assert talk.thread.farewell("") == (
            "“one” is saved, but not the last 2 turns; continue with: localspec chat --conversation 1"
        )
        full(False)
        await talked(talk, pilot, "four")
        await until(pilot, lambda: line(talk) == "")
        assert wording("all_said_kept_now") in talk.screen_text()
        full(True)
        await talked(talk, pilot, "five")
        await until(pilot, lambda: line(talk))
        full(False)  # saving is tried again when the user leaves
    assert [prompt for prompt, *_ in talk.kept()] == ["one", "two", "three", "four", "five"]
    assert talk.thread.farewell("") == wording("one_kept_go_localspec_chat_2")


def test_a_draft_that_cannot_be_saved_is_reported_too(chat, full):
    talk = chat()

    async def story(pilot):
        full(True)
        await pilot.press(*"half")
        await until(pilot, lambda: line(talk) == "✗ not saved: the typed text · The disk is full.")
        await pilot.press(*["backspace"] * 4)
        await until(pilot, lambda: line(talk) == "")
        await pilot.press(*"more")
        await until(pilot, lambda: line(talk))

    talk.play(story, then=talk.app.keep_unsent)
    assert talk.thread.farewell(talk.app.unsent_lost) == wording("what_typed_sent_kept_disk_full")


def test_another_try_at_the_end_keeps_what_was_typed(chat, full):
    talk = chat()

    async def story(pilot):
        full(True)
        await pilot.press(*"half")
        await until(pilot, lambda: line(talk))
        full(False)

    talk.play(story, then=talk.app.keep_unsent)
    assert talk.app.unsent_lost == "" and talk.thread.farewell("") is None


async def test_starting_another_conversation_says_what_is_lost_of_this_one(chat, full):
    async with chat(["a"], ["b"]).opened(size=(80, 24)) as (talk, pilot):
        await talked(talk, pilot, "one")
        full(True)
        await talked(talk, pilot, "two")
        await until(pilot, lambda: line(talk))
        await pilot.press("ctrl+n")
        sentence = "“one” loses the last turn, which could not be saved: The disk is full."
        await until(pilot, lambda: sentence in " ".join(talk.screen_text().split()))
        assert line(talk) == ""


@pytest.mark.parametrize("there", [False, True])
async def test_a_disk_that_was_full_from_the_beginning(chat, monkeypatch, there):
    talk = chat(["a"], ["b"], ["c"])
    if there:
        with Store.open(talk.database, pytest.fail) as store:
            _, turn = store.history.say(None, "before", model="scripted", system=None)
            store.history.write(turn, "yes", "stop")
            talk.resumed = 1

    def no_room(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("localspec.store.database.open_writable", no_room)
    monkeypatch.setattr("localspec.store.database.move_to_file", no_room)
    last = "“before” is saved, but not the last turn; continue with: localspec chat --conversation 1"
    async with talk.playing(size=(80, 24)) as pilot:
        await talked(talk, pilot, "one")
        await until(pilot, lambda: line(talk) == wording("kept_last_turn_each_prompt_tries"))
        said = talk.thread.farewell("")
        assert said == last if there else said.startswith(wording("one_is_not_kept")) and "make room" in said
        await pilot.press(*"half")
        await until(pilot, lambda: wording("last_turn_what_typed") in line(talk))
        await pilot.press(*["backspace"] * 4)
        monkeypatch.undo()
        await talked(talk, pilot, "two")
        await until(pilot, lambda: line(talk) == "")
        kept = wording("all_said_kept_now") if there else wording("is_kept_in_it")
        assert kept in " ".join(talk.screen_text().split())
        await pilot.press("ctrl+n")
        await until(pilot, lambda: wording("kept_on_this_machine_alone") in talk.screen_text())
    assert [prompt for prompt, *_ in talk.kept()] == [*(["before"] if there else []), "one", "two"]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no limit can be set from outside")
def test_a_full_disk_is_reported_at_the_end(tmp_path):
    import resource

    from tui.terminal import scripted_chat

    with scripted_chat(tmp_path, '["a"], ["b"]', "-m", "demo") as terminal:
        terminal.shows("❯ Say something", "ready")
        terminal.send("one\r")
        terminal.shows("1 token", "❯ Say something")  # it has ended
        resource.prlimit(terminal.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        terminal.send("two\r")
        terminal.shows(wording("not_kept_the_last_turn"), "❯ Say something")
        terminal.send("half typed")
        terminal.shows(wording("last_turn_what_typed"))
        terminal.send("\x11")
        assert terminal.ends() == 0
        assert re.sub(r"\s+", " ", terminal.afterwards).strip() == (wording("one_kept_but_last_turn_nor_what"))
        terminal.check_that_it_is_whole()
