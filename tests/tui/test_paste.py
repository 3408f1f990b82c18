"""Escapes in what is pasted never become keys, wherever a terminal's output is cut into pieces."""

import asyncio
import random

import pytest
from each import each
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.app import App
from textual.events import Key, Paste
from textual.keys import _character_to_key
from textual.widgets import Input
from tui.scripted_engine import until

from localspec_tui import paste as module
from localspec_tui.paste import PasteFilter
from localspec_tui.widgets.graphemes import after, before
from localspec_tui.widgets.keys_in_order import OneLine
from localspec_tui.widgets.prompt import Prompt
from localspec_tui.widgets.typed_text import LONGEST, TypedText

HOSTILE = "x\x1b[31m\x1b\x1b[20\x1b[200~y\x1b\x1b[48;1;1;1;1t\x1b[I\x1b\r\x1b\x11\x1b"
SHOWN = "x␛[31m␛␛[20␛[200~y␛␛[48;1;1;1;1t␛[I␛\r␛\x11␛"


def test_pieces_of_any_length():
    pasted_text = BRACKETED_PASTE_START, HOSTILE, BRACKETED_PASTE_END
    sent = "".join(("a\x1b[A", *pasted_text, "\x1b[A\x1b\x1b[200", *pasted_text, "\x1bq"))
    given = sent.replace(HOSTILE, SHOWN)
    chance = random.Random(3)
    for _ in range(500):
        cuts = sorted(chance.sample(range(len(sent)), chance.randint(0, 20)))
        stream = PasteFilter()
        pieces = zip([0, *cuts], [*cuts, len(sent)], strict=True)
        assert "".join(stream.shown(sent[start:end]) for start, end in pieces) == given


def test_keys_are_given_on_at_once():
    stream = PasteFilter()
    assert [stream.shown(char) for char in "\x1b[20x"] == list("\x1b[20x")


def test_textual_gets_one_paste_and_no_keys():
    module.install()
    parser = XTermParser()
    sent = BRACKETED_PASTE_START + HOSTILE + BRACKETED_PASTE_END + "z"
    told = [message for char in sent for message in parser.feed(char)]
    paste, key = told
    assert isinstance(paste, Paste) and paste.text == SHOWN
    assert isinstance(key, Key) and key.character == "z"


def test_what_was_copied_here_is_pasted_as_text(chat):
    talk = chat()

    async def story(pilot):
        talk.app._clipboard = "one\x1b[31m\ntwo\u202e"
        await pilot.press("ctrl+v")
        await until(pilot, lambda: talk.typed == "one␛[31m\ntwo")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: talk.app.screen.query(Input))
        await pilot.press("ctrl+v")
        await until(pilot, lambda: talk.app.screen.query_one(Input).value == "one␛[31m two")

    talk.play(story)


def letters(text):
    for character in text:
        yield Key(_character_to_key(character), character)


@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_letters_that_wait_are_one_insertion(chat, count):
    """As screen and consoles paste: without marks around it."""
    talk = chat([])
    text = ("Hello there, you all! 漢字 " * count)[:count]

    async def story(pilot):
        prompt, insertions = talk.app._chat.query_one(Prompt), []
        replace = prompt._replace_via_keyboard
        prompt._replace_via_keyboard = lambda *given: insertions.append(given) or replace(*given)
        for key in letters(text):
            key.set_sender(pilot.app)
            pilot.app._driver.send_message(key)
        await until(pilot, lambda: len(talk.typed) >= count)
        assert talk.typed == text and len(insertions) < count / 20

    talk.play(story)


def test_letters_and_other_keys_stay_in_order(chat):
    talk = chat(["Yes."])

    async def story(pilot):
        for keys in (letters("abc"), [Key("backspace", None)], letters("dé f"), [Key("enter", "\r")], letters("next")):
            for key in keys:
                key.set_sender(pilot.app)
                pilot.app._driver.send_message(key)
        await until(pilot, lambda: talk.prompts() == ["abdé f"] and talk.typed == "next")

    talk.play(story)


@pytest.mark.parametrize("marked", [True, False])
def test_what_no_model_reads_is_refused_and_nothing_changes(chat, marked):
    talk = chat([])

    async def story(pilot):
        await pilot.press(*"kept")
        text = "x" * LONGEST
        talk.app.post_message(Paste(text) if marked else Key("letters", text))
        await until(pilot, lambda: any("1,000,000" in one and "1,000,004" in one for one in toasts(talk)))
        assert talk.typed == "kept"
        talk.app.post_message(Paste("x" * 9))
        await until(pilot, lambda: talk.typed == "kept" + "x" * 9)

    talk.play(story)


def toasts(talk):
    return [one.message for one in talk.app._notifications]


PARTS = {
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "flag": "\U0001f1e9\U0001f1ea",
    "skin": "\U0001f44d\U0001f3fd",
    "accent": "e\u0301",
    "vowel": "\u0928\u093f",
    "keycap": "1\ufe0f\u20e3",
    "tags": "\U0001f3f4\U000e0067\U000e0062\U000e007f",
}


@pytest.mark.slow
@each("name", PARTS)
@each("around", [("a", "b"), (PARTS["flag"] * 40, PARTS["flag"])])
def test_a_character_of_several_parts_is_one_for_every_key(name, around):
    left, right = around
    text = left + PARTS[name] + right
    at = len(left + PARTS[name])
    assert before(text, at) == len(left) and after(text, len(left)) == at

    class Fields(App[None]):
        def compose(self):
            yield TypedText()
            yield OneLine(select_on_focus=False)

    async def run():
        app = Fields()
        async with app.run_test() as pilot:
            area, line = app.query_one(TypedText), app.query_one(OneLine)
            for field in (area, line):
                field.focus()
                for keys, rest in ((["backspace"], left + right), (["left", "delete"], left + right), (["left", "right", "x"], left + PARTS[name] + "x" + right)):  # fmt: skip
                    if field is area:
                        area.put(text)
                        area.move_cursor((0, at))
                    else:
                        line.value, line.cursor_position = text, at
                    await pilot.press(*keys)
                    assert (area.text if field is area else line.value) == rest, keys

    asyncio.run(run())
