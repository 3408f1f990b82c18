"""`@path` in the prompt of the full screen."""

import threading

import pytest
from golden import wording
from textual.events import Paste
from tui.scripted_engine import say, talked, until

from localspec.errors import UsageMistake
from localspec_tui.widgets.status_line import AttachedLine


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    (place / "notes.txt").write_text("first line\nsecond line\n")
    (place / "null").write_bytes(b"a\0b")
    monkeypatch.chdir(place)
    return place


def attached(talk):
    line = talk.app.query_one(AttachedLine)
    return str(line.render()) if line.display else ""


def read_by_the_model(talk):
    return [messages[-1]["content"] for messages in talk.engine.asked]


async def test_it_is_completed_counted_read_and_folded(chat, folder):
    async with chat(["Sorted."], ["Again."]).opened() as (talk, pilot):
        await pilot.press(*"sort @no")
        await until(pilot, lambda: "notes.txt" in talk.screen_text())
        await pilot.press("tab")
        assert talk.typed == "sort @notes.txt "
        await until(pilot, lambda: attached(talk) == "+ notes.txt (23 bytes, 23 tokens)")
        await pilot.press("enter")
        await until(pilot, lambda: talk.replies() == ["Sorted."] and talk.idle())
        assert attached(talk) == "" and talk.prompts() == ["sort @notes.txt "]
        assert "+ notes.txt (23 bytes)" in talk.screen_text() and "second line" not in talk.screen_text()
        (folder / "notes.txt").unlink()
        await pilot.press("f5")  # the text as it was
        await until(pilot, lambda: talk.replies() == ["Again."] and talk.idle())
        await pilot.press("f2")
        assert talk.typed == "sort @notes.txt "
    assert read_by_the_model(talk) == ["first line\nsecond line\n\nsort @notes.txt "] * 2


async def test_a_resumed_conversation_is_folded_too(chat, folder):
    before = chat(["Sorted."])
    async with before.playing() as pilot:
        await talked(before, pilot, "sort @notes.txt")
    talk = chat()
    talk.resumed = 1
    async with talk.playing() as pilot:
        await until(pilot, lambda: talk.replies() == ["Sorted."])
        assert talk.prompts() == ["sort @notes.txt"]
        assert "+ notes.txt (23 bytes)" in talk.screen_text() and "second line" not in talk.screen_text()
        await pilot.press("up")
        assert talk.typed == "sort @notes.txt"


async def test_a_prompt_of_which_one_sees_a_part_says_how_long_it_is(chat):
    scripts = [UsageMistake("It is far too long.")], [UsageMistake("It is too long.")], ["Said."]
    async with chat(*scripts).opened() as (talk, pilot):
        talk.app.post_message(Paste("\n".join(["word"] * 1000)))
        await until(pilot, lambda: "1,000 lines, 4,999 tokens" in attached(talk))
        assert wording("too_long_4_999_tokens_model_reads") in attached(talk)
        await pilot.press("enter")
        await until(pilot, lambda: talk.idle() and "It is far too long." in talk.screen_text())
        await pilot.press("enter")
        await until(pilot, lambda: talk.idle() and "It is too long." in talk.screen_text())
        assert "It is far too long." not in talk.screen_text()
        assert talk.typed.startswith("word") and talk.app._chat.top._title == ""
        await pilot.press("f7", "delete")
        assert attached(talk) == "" and talk.typed == ""
        await say(pilot, "short")
        await until(pilot, lambda: talk.replies() == ["Said."] and talk.app._chat.top._title == "short")
        await until(pilot, lambda: talk.idle() and "too long" not in talk.screen_text())


async def test_an_unreadable_file_is_reported_and_the_prompt_given_back(chat, folder):
    (folder / "long").write_text("x" * 2000)
    async with chat(["Said."]).opened() as (talk, pilot):
        await pilot.press(*"see @long")
        await until(pilot, lambda: "too long: 2,009 tokens, but the model reads at most 1,024" in attached(talk))
        await pilot.press("ctrl+u")
        await until(pilot, lambda: attached(talk) == "")
        await pilot.press(*"see @null")
        await until(pilot, lambda: "@null has NUL bytes" in attached(talk))
        await pilot.press("enter")
        await until(pilot, lambda: "✗ @null has NUL bytes" in talk.screen_text())
        assert talk.typed == "see @null" and talk.prompts() == []
        await pilot.press(*["backspace"] * 4)
        await say(pilot, "/nope")
        await until(pilot, lambda: "✗ @/nope cannot be read" in talk.screen_text())
        assert talk.typed == "see @/nope" and talk.prompts() == []
        await pilot.press(*["backspace"] * 6)
        await say(pilot, "me@home @none")
        await until(pilot, lambda: talk.idle() and talk.replies() == ["Said."])
    assert read_by_the_model(talk) == ["see me@home @none"]


async def test_a_slow_disk_holds_no_key_up(chat, folder, monkeypatch):
    gate = threading.Event()
    talk = chat()
    monkeypatch.setattr(talk.app._chat._attached, "_measure", lambda text: gate.wait(20) and [])
    async with talk.playing() as pilot:
        await pilot.press(*"see @notes.txt")
        await pilot.pause(0.3)
        await pilot.press(*" and on")
        assert talk.typed == "see @notes.txt and on"
        gate.set()


async def test_a_prompt_that_waits_has_the_text_of_when_it_was_sent(chat, folder):
    gate = threading.Event()
    async with chat([gate, "One."], ["Two."]).opened() as (talk, pilot):
        await say(pilot, "first")
        await say(pilot, "then @notes.txt")
        await until(pilot, lambda: "waiting (" in talk.screen_text())
        (folder / "notes.txt").write_text("changed")
        gate.set()
        await until(pilot, lambda: talk.replies() == ["One.", "Two."] and talk.idle())
    assert read_by_the_model(talk)[1] == "first line\nsecond line\n\nthen @notes.txt"


async def test_files_of_the_command_line_are_folded(chat, folder):
    async with chat(["One."], ["Two."], files="given\n").opened(size=(140, 30)) as (talk, pilot):
        await say(pilot, f"first @{folder}/notes.txt")
        await until(pilot, lambda: talk.replies() == ["One."] and talk.idle())
        assert wording("the_files_of_file") in talk.screen_text() and "given" not in talk.screen_text()
        assert "+ notes.txt (23 bytes)" in talk.screen_text() and talk.screen_text().count(str(folder)) <= 1
        await talked(talk, pilot, "second")
        await say(pilot, "/edit with @notes.txt")
        await until(pilot, lambda: len(talk.engine.asked) == 3 and talk.idle())
    assert read_by_the_model(talk)[0] == f"given\n\nfirst line\nsecond line\n\nfirst @{folder}/notes.txt"
    assert read_by_the_model(talk)[2] == "first line\nsecond line\n\nwith @notes.txt"
