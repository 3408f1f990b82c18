"""A typed prompt that was not sent is restored after a crash, a signal, or Ctrl+Q."""

import os
import signal
import sys
import threading

import psutil
import pytest
from golden import wording
from tui.scripted_engine import say, talked, until

from localspec.config import Settings
from localspec.store import drafts as drafts_module
from localspec.store.store import Store


@pytest.fixture
def another_process(monkeypatch):
    """Let this process count as another one, which began later."""

    def begin() -> None:
        monkeypatch.setattr(drafts_module, "_is_alive", lambda process, began: False)

    return begin


def kept(talk):
    with Store.open(talk.database, pytest.fail) as store:
        return [row[0] for row in store._database.read(lambda c: c.execute("SELECT text FROM draft").fetchall())]


async def test_what_waits_and_what_is_typed_survive_a_crash(chat, another_process):
    gate = threading.Event()
    before = chat(["Half", gate, "."])
    async with before.playing() as pilot:
        await say(pilot, "asked")
        await until(pilot, lambda: before.replies() == ["Half"])
        await say(pilot, "waits")
        await pilot.press(*"half", "ctrl+j", *"typed")
        await until(pilot, lambda: kept(before) == ["waits\n\nhalf\ntyped"])
        gate.set()
        await until(pilot, before.idle)
    another_process()
    talk = chat()
    with Store.open(talk.database, pytest.fail) as store:
        store.drafts.keep("waits\n\nhalf\ntyped")

    async with talk.playing() as pilot:
        await until(pilot, lambda: talk.typed == "waits\n\nhalf\ntyped")
        assert wording("restored_your_unsent_draft") in talk.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: talk.prompts() == ["waits\n\nhalf\ntyped"] and talk.idle())
        await until(pilot, lambda: kept(talk) == [])


@pytest.mark.parametrize("log", [True, False])
def test_it_is_kept_at_the_end_where_something_is_kept(chat, log):
    talk = chat(settings=Settings(log=log))

    async def story(pilot):
        await pilot.press(*"half", "ctrl+q")

    talk.play(story, then=talk.app.keep_unsent)
    assert kept(talk) == (["half"] if log else [])


async def test_the_draft_of_another_window_stays_there(chat):
    talk = chat()
    with Store.open(talk.database, pytest.fail) as store:
        store.drafts._owner = (psutil.Process().ppid(), psutil.Process(psutil.Process().ppid()).create_time())
        store.drafts.keep("theirs")

    async with talk.playing():
        assert talk.typed == ""
    assert kept(talk) == ["theirs"]


def test_what_was_typed_for_another_does_not_come_here_and_stays_there(chat):
    one, other = "http://one:8000/v1", "http://two:8000/v1"
    for server, said in ((None, "local"), (one, "remote")):
        before = chat(settings=Settings(server=server))

        async def types(pilot, said=said):
            await pilot.press(*said)

        before.play(types, then=before.app.keep_unsent)
        with Store.open(before.database, pytest.fail) as store:  # by a process before this one
            store._database.save(lambda connection: connection.execute("UPDATE draft SET began = began - 1000"))
    for server, back in ((other, ""), (one, "remote"), ("off", "local")):
        talk = chat(settings=Settings(server=server))

        async def story(pilot, talk=talk, back=back):
            assert talk.typed == back
            await pilot.press("delete")

        talk.play(story)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_kill_loses_nothing(tmp_path):
    from tui.terminal import scripted_chat

    terminal = scripted_chat(tmp_path, '[["Half", closed]]')
    terminal.shows("ready")
    terminal.send("asked\r")
    terminal.shows("Half")
    terminal.send("waits\rhalf typed")
    terminal.shows("prompt waiting (esc takes it back)", "half typed")
    file = tmp_path / "data" / "localspec.db-wal"  # drafts are saved within a second
    terminal.until(lambda: b"half typed" in file.read_bytes())
    os.kill(terminal.process.pid, signal.SIGKILL)
    terminal.ends()
    again = scripted_chat(tmp_path, "[]", "-c")
    again.shows("waits", "half typed", wording("restored_your_unsent_draft"))
    again.send("\x11")
    again.ends()


def test_what_an_earlier_chat_left_is_kept_where_one_leaves_before_it_is_shown(chat):
    talk = chat()

    async def story(pilot):
        talk.app._chat.draft._aside[7] = "as it was"
        await pilot.press("ctrl+q")

    talk.play(story, then=talk.app.keep_unsent)
    assert kept(talk) == ["as it was"]


def test_a_draft_belongs_to_the_conversation_in_which_it_was_typed(chat, another_process):
    before = chat(["First."])

    async def first(pilot):
        await talked(before, pilot, "one")
        await pilot.press(*"half")

    before.play(first, then=before.app.keep_unsent)
    another_process()
    talk = chat(["Second."])

    async def story(pilot):
        await until(
            pilot, lambda: "Your unsent prompt waits in “one” (ctrl+r)." in " ".join(talk.screen_text().split())
        )
        assert talk.typed == ""
        await say(pilot, "/resume 1")
        await until(pilot, lambda: talk.typed == "half" and wording("restored_your_unsent_draft") in talk.screen_text())
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [] and talk.typed == "")
        await say(pilot, "/resume 1")
        await until(pilot, lambda: talk.prompts() == ["one"] and "half" in talk.typed)

    talk.play(story)


async def test_a_draft_of_a_new_conversation_waits_for_the_next_new_one(chat):
    async with chat(["First."]).opened() as (talk, pilot):
        await talked(talk, pilot, "one")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [])
        await pilot.press(*"half")
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: talk.prompts() == ["one"])
        assert talk.typed == ""
        await until(pilot, talk.idle)
        await talk.app._chat._save_draft()
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.typed == "half" and talk.prompts() == [])


async def test_no_suggestion_goes_behind_a_restored_draft(chat, another_process):
    with Store.open(chat().database, pytest.fail) as store:
        store.drafts.keep("typed")
    another_process()
    async with chat().opened() as (talk, pilot):
        await until(pilot, lambda: talk.typed == "typed")
        first = talk.app._chat.first
        assert first.display and first.starter("1") is None
        await pilot.press("f7", "delete", "ctrl+n")
        await until(pilot, lambda: talk.typed == "" and first.starter("1") is not None)
