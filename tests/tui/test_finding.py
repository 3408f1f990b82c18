"""Words found in the open conversation: Ctrl+F and /find."""

import threading
from unicodedata import normalize

import pytest
from golden import wording
from textual import events
from textual.widgets import Input
from tui.scripted_engine import say, talked, until

from localspec_tui.block_view import BlockView
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.find_line import FindLine
from localspec_tui.widgets.message_view import MessageView
from localspec_tui.widgets.mounted_turns import AROUND, BATCH, MOUNTED
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.status_line import BelowLine

SMALL = (60, 20)


def view(talk):
    return talk.app._chat.query_one(ConversationView)


def which(talk):
    """Return the text of the line, or "" if it is not shown."""
    line = talk.app._chat.query_one(FindLine)
    return str(line._count.render()).strip() if line.display else ""


def marked(talk):
    """Return the messages that are marked as found, and the word that is."""
    found = [one.source for one in talk.app._chat.query(MessageView) if one.has_class("-found")]
    return found, talk.app._chat.get_selected_text()


def numbers(talk):
    return [int(prompt.split()[1]) for prompt in talk.prompts()]


async def shown(pilot, talk):
    """Wait until there is a whole conversation, and nothing moves."""
    await until(pilot, lambda: len(talk.prompts()) == MOUNTED and view(talk).is_vertical_scroll_end)


async def find_the_needle(pilot, talk):
    """Find the only match."""
    await say(pilot, "/find needle")
    await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk)[0] and "needle" in talk.screen_text())


async def test_the_newest_is_shown_first_and_keys_continue(long):
    talk = long(40, {2: "A *rare* one.", 20: "Rare, too.\n\n" + "line\n\n" * 40 + "`rarely`", 39: "the rarest"})
    async with talk.playing(size=SMALL) as pilot:
        await shown(pilot, talk)
        before = talk.screen_text()
        await pilot.press("ctrl+f", *"RARE")
        await until(pilot, lambda: which(talk) == "1 of 4")
        await until(pilot, lambda: marked(talk) == (["the rarest"], "rare"))
        for key, seen, turn, at in (
            ("enter", "rarely", "Rare, too.", 2), ("up", "Rare, too.", "Rare, too.", 3),
            ("ctrl+f", "A rare one.", "A *rare* one.", 4), ("enter", "the rarest", "the rarest", 1),
            ("down", "A rare one.", "A *rare* one.", 4), ("shift+enter", "Rare, too.", "Rare, too.", 3),
        ):  # fmt: skip
            await pilot.press(key)
            await until(pilot, lambda at=at: which(talk) == f"{at} of 4")
            await until(pilot, lambda seen=seen: seen in talk.screen_text())
            (found,), word = marked(talk)
            assert found.startswith(turn) and word.lower() == "rare"
        await pilot.press("escape")
        await until(pilot, lambda: talk.screen_text() == before)
        assert numbers(talk) == list(range(40 - MOUNTED, 40)) and marked(talk) == ([], None)
        assert talk.app.focused is talk.app._chat.query_one(Prompt)


async def test_every_occurrence_is_marked_and_counted(long):
    talk = long(2, {0: "A fox.\n\n```\nfox = fox\n```\n\nThe *Fox* ends.", 1: "No animal."})

    def underlined():
        return sum(len(spans) for one in talk.app.screen.query(BlockView) for spans in one.matches.values())

    def row():
        return next(iter(talk.app.screen.selections.values())).start.x if talk.app.screen.selections else None

    async with talk.playing() as pilot:
        await until(pilot, lambda: len(talk.prompts()) == 2)
        await say(pilot, "/find fox")
        await until(pilot, lambda: which(talk) == "1 of 4" and underlined() == 4)
        assert marked(talk)[1] == "Fox", "the lowest first"
        for at, begins in ((2, 6), (3, 0), (4, 2), (1, 4)):
            await pilot.press("enter")
            await until(pilot, lambda at=at: which(talk) == f"{at} of 4")
            await until(pilot, lambda begins=begins: row() == begins)
            assert underlined() == 4
        await pilot.press("escape")
        await until(pilot, lambda: underlined() == 0 and not talk.app.screen.selections)


async def test_a_missing_word_is_reported_and_an_empty_search_reports_nothing(long):
    async with long(12, {4: "needle"}).opened() as (talk, pilot):
        await shown(pilot, talk)
        await pilot.press("ctrl+f", *"nowhere")
        await until(pilot, lambda: which(talk) == "not found")
        assert marked(talk) == ([], None)
        await pilot.press("enter")
        await until(pilot, lambda: which(talk) == "not found")
        await pilot.press("escape", "ctrl+f")
        assert talk.app.focused.selected_text == "nowhere", "the words of the last time, which the next ones replace"
        await pilot.press("backspace", "enter")
        await until(pilot, lambda: which(talk) == "")
        await pilot.press(*"needle")
        await until(pilot, lambda: which(talk) == "1 of 1")
        for message in (events.AppBlur(), events.AppFocus()):  # another window of the terminal
            talk.app.post_message(message)
            await pilot.pause()
        assert which(talk) == "1 of 1" and isinstance(talk.app.focused, Input)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [] and which(talk) == "")
        await pilot.press(*"hi")
        assert talk.typed == "hi"
        await pilot.press("ctrl+f")
        await until(pilot, lambda: wording("nothing_was_said_yet") in talk.screen_text())
        assert talk.app.focused is talk.app._chat.query_one(Prompt)


async def test_what_is_typed_behind_the_key_at_once_is_looked_for_and_what_is_sent_before_it_is_said(long):
    async with long(12, {4: "needle"}, ["Well."]).opened() as (talk, pilot):
        await shown(pilot, talk)
        for key in (*"hi", "enter", "ctrl+f", *"needle", "enter"):
            talk.app.post_message(events.Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: which(talk) == "1 of 1")
        await until(pilot, lambda: talk.idle() and talk.typed == "" and talk.prompts()[-1] == "hi")
    assert [asked[-1]["content"] for asked in talk.engine.asked] == ["hi"]


async def test_few_are_mounted_and_what_is_between_comes_when_one_reads_on(long):
    async with long(90, {40: "needle"}).opened(size=(80, 40)) as (talk, pilot):
        await shown(pilot, talk)
        await say(pilot, "/find needle")
        await until(pilot, lambda: which(talk) == "1 of 1" and 40 in numbers(talk))
        assert len(numbers(talk)) <= MOUNTED + 1 + 2 * AROUND + 2 * BATCH
        assert "new line" not in talk.screen_text(), "what is mounted above is no news"
        await pilot.press("alt+down")
        assert which(talk) == "" and talk.app.focused.source == "needle", "what was found has the focus, and stays"
        first = numbers(talk)[0]
        while len(numbers(talk)) < 90 - first:
            await pilot.press("pagedown")
            assert numbers(talk) == sorted({*numbers(talk)})
        await pilot.press(*["pagedown"] * 5)
        await until(pilot, lambda: view(talk).is_vertical_scroll_end)
        assert numbers(talk) == list(range(first, 90))


async def test_escape_goes_back_to_where_one_read(long):
    """Different turns may be mounted above and below than before, as the scroll bar shows."""
    talk = long(60, {3: "needle", 30: "thread", 55: "thimble"})

    def text():
        return [line[:-3] for line in talk.screen_text().split("\n")]

    async with talk.playing(size=(80, 24)) as pilot:
        await shown(pilot, talk)
        end = talk.screen_text()
        for far in (False, True):
            if far:
                await say(pilot, "/find thread")
                await until(pilot, lambda: "thread" in talk.screen_text() and which(talk))
                await pilot.press("alt+up", "pagedown", "escape")
            else:
                await pilot.press("pageup")
            await pilot.pause()
            before = text()
            await pilot.press("ctrl+f", *"needle")
            await until(pilot, lambda: which(talk) == "1 of 1" and "prompt 3 " in talk.screen_text())
            await pilot.press("escape")
            await until(pilot, lambda before=before: text() == before)
        await pilot.press("alt+up", "ctrl+end", "escape")
        await until(pilot, lambda: talk.screen_text() == end and numbers(talk) == list(range(50, 60)))


async def test_a_reply_that_comes_meanwhile_continues_and_is_found(long):
    gate, more = threading.Event(), threading.Event()
    talk = long(40, {5: "needle"}, ["The nee", gate, "dle is", more, " here.\n\n" + "line\n\n" * 40])
    async with talk.playing(size=SMALL) as pilot:
        await shown(pilot, talk)
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies()[-1] == "The nee")
        await say(pilot, "/find needle")
        await until(pilot, lambda: which(talk) == "1 of 1" and "prompt 5 " in talk.screen_text())
        gate.set()
        await until(pilot, lambda: talk.replies()[-1] == "The needle is")
        assert "prompt 5 " in talk.screen_text()
        await pilot.press("enter")
        await until(pilot, lambda: which(talk) == "1 of 2" and marked(talk)[0] == ["The needle is"])
        await pilot.press("enter")
        await until(pilot, lambda: which(talk) == "2 of 2" and "prompt 5 " in talk.screen_text())
        more.set()
        await until(pilot, lambda: talk.idle() and "prompt 5 " in talk.screen_text())
        await pilot.press("escape")
        await until(pilot, lambda: view(talk).is_vertical_scroll_end)
        assert talk.replies()[-1].startswith("The needle is here.")
    assert talk.kept()[-1][1].startswith("The needle is here.")


async def test_keys_for_messages_are_about_what_was_found(long, clipboard):
    async with long(40, {5: "needle"}).opened() as (talk, pilot):
        await shown(pilot, talk)
        await find_the_needle(pilot, talk)
        await pilot.press("ctrl+l")
        await until(pilot, lambda: clipboard == ["needle"])
        await pilot.press("f2")
        assert talk.typed == "prompt 5" and which(talk) == ""
        await pilot.press("!", "enter")
        await until(pilot, lambda: talk.prompts() == [*(f"prompt {n}" for n in range(5)), "prompt 5!"] and talk.idle())


async def test_a_prompt_that_waits_is_asked_meanwhile(long):
    gate = threading.Event()
    async with long(40, {5: "needle"}, ["One", gate, "."], ["Two."]).opened() as (talk, pilot):
        await shown(pilot, talk)
        await say(pilot, "first")
        await say(pilot, "second")
        await until(pilot, lambda: talk.replies()[-1] == "One")
        await find_the_needle(pilot, talk)
        gate.set()
        await until(pilot, lambda: talk.replies()[-1] == "Two." and talk.idle())
        await pilot.press("enter")
        await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk)[0] == ["needle"])
        await pilot.press("escape")
        await until(pilot, lambda: view(talk).is_vertical_scroll_end and talk.prompts()[-2:] == ["first", "second"])


async def test_a_click_on_the_prompt_stays_at_what_was_found(long):
    async with long(40, {5: "needle"}).opened() as (talk, pilot):
        await shown(pilot, talk)
        await find_the_needle(pilot, talk)
        await pilot.click(Prompt)
        await until(pilot, lambda: which(talk) == "" and marked(talk) == ([], None))
        assert "prompt 5 " in talk.screen_text()
        await talked(talk, pilot, "next")
        await until(pilot, lambda: view(talk).is_vertical_scroll_end and talk.prompts()[-1] == "next")
        assert len(talk.prompts()) <= MOUNTED + 1


async def test_escape_gives_the_focus_back(long):
    async with long(40, {}).opened() as (talk, pilot):
        await shown(pilot, talk)
        await pilot.press(*["alt+up"] * 8)
        read = talk.app.focused.source
        for words in ("prompt 38", "reply 5"):  # near and far
            await pilot.press("ctrl+f", "ctrl+u", *words)
            await until(pilot, lambda: which(talk).startswith("1 of") and marked(talk)[0])
            await pilot.press("up", "escape")
            await until(pilot, lambda: isinstance(talk.app.focused, MessageView) and talk.app.focused.source == read)
        await pilot.press("f2")
        assert talk.typed == "prompt 36"


@pytest.mark.parametrize("selected", ["proposed", "by hand"])
async def test_ctrl_c_stops_a_reply_unless_one_has_selected_something(long, clipboard, selected):
    gate = threading.Event()
    async with long(12, {4: "needle"}, ["Half", gate, "."]).opened() as (talk, pilot):
        await shown(pilot, talk)
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies()[-1] == "Half")
        await say(pilot, "/find needle")
        await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk)[1] == "needle")
        if selected == "by hand":
            await pilot.press("end", "shift+home")
        await pilot.press("ctrl+c")
        await until(pilot, lambda: clipboard == ["needle"] if selected == "by hand" else talk.live == "stopping")
        assert (talk.live != "stopping") == bool(clipboard) == (selected == "by hand")
        gate.set()
        await until(pilot, talk.idle)
        assert which(talk) == "1 of 1"


async def test_what_a_reply_says_meanwhile_is_found_without_a_key(long):
    """Text is also found while the reply grows. The shown match stays; if there was none, the new one is shown."""
    gates = [threading.Event() for _ in range(3)]
    talk = long(12, {5: "rare"}, ["A nee", gates[0], "dle", gates[1], " and a rare", gates[2], " one."])
    async with talk.playing() as pilot:
        await shown(pilot, talk)
        await say(pilot, "Go")
        await until(pilot, lambda: talk.replies()[-1] == "A nee")
        await pilot.press("ctrl+f", *"needle")
        await until(pilot, lambda: which(talk) == "not found")
        gates[0].set()
        await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk) == (["A needle"], "needle"))
        await pilot.press("ctrl+u", *"rare")
        await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk)[0] == ["rare"])
        gates[1].set()
        await until(pilot, lambda: which(talk) == "2 of 2")
        assert marked(talk)[0] == ["rare"]
        await pilot.press("ctrl+u", *"one.")
        await until(pilot, lambda: which(talk) == "not found")
        await pilot.press("escape")
        assert talk.live != "stopping", "it would take a second Escape"
        await pilot.press("ctrl+f")
        gates[2].set()
        await until(pilot, lambda: talk.idle() and which(talk) in ("1 of 1", "1 found"))


async def test_the_words_of_the_last_time_are_counted_and_not_yet_shown(long):
    async with long(40, {5: "needle", 7: "needles"}).opened() as (talk, pilot):
        await shown(pilot, talk)
        before = talk.screen_text()
        await say(pilot, "/find needle")
        await until(pilot, lambda: which(talk) == "1 of 2")
        await pilot.press("escape")
        await until(pilot, lambda: talk.screen_text() == before)
        await pilot.press("ctrl+f")
        await until(pilot, lambda: which(talk) == "2 found")
        assert marked(talk) == ([], None) and view(talk).is_vertical_scroll_end
        await pilot.press("enter")
        await until(pilot, lambda: which(talk) == "1 of 2" and marked(talk)[0] == ["needles"])


@pytest.mark.parametrize("sizes", [((60, 20), (120, 40)), ((120, 40), (60, 20))], ids=["larger", "smaller"])
async def test_what_was_found_is_in_sight_in_a_terminal_of_another_size(long, sizes):
    talk = long(12, {number: "many words " * 60 + f"needle{number}" for number in range(12)})
    async with talk.playing(size=sizes[0]) as pilot:
        await shown(pilot, talk)
        await pilot.press("ctrl+f", *"needle8")
        await until(pilot, lambda: which(talk) == "1 of 1" and "needle8" in talk.screen_text())
        await pilot.resize_terminal(*sizes[1])
        await until(pilot, lambda: talk.app.size == sizes[1])
        await pilot.pause()
        page = talk.screen_text()
        await until(pilot, lambda: "needle8" in page.split("find needle8")[0])
        assert marked(talk)[1] == "needle8"
        assert not talk.app.query_one(BelowLine).display, "nothing is new"


async def test_accents_are_found_however_they_are_written(long):
    talk = long(12, {4: normalize("NFC", "Große **Cafés**") + normalize("NFD", " Cafés")})
    async with talk.playing() as pilot:
        await shown(pilot, talk)
        for other in ("NFD", "NFC"):
            await say(pilot, "/find " + normalize(other, "CAFÉ"))
            await until(pilot, lambda: which(talk) == "1 of 2" and marked(talk)[1] == normalize("NFD", "Café"))
            await pilot.press("down")
            await until(pilot, lambda: which(talk) == "2 of 2" and marked(talk)[1] == normalize("NFC", "Café"))
            await pilot.press("escape")
        await pilot.press("ctrl+f")
        await pilot.press("ctrl+u", *"GROSSE")
        await until(pilot, lambda: which(talk) == "1 of 1" and marked(talk)[1] == "Große")
