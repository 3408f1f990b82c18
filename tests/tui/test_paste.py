"""Escapes in what is pasted never become keys, wherever a terminal's output is cut into pieces."""

import random

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.events import Key, Paste
from textual.widgets import Input
from tui.scripted_engine import until

from localspec_tui import paste as module
from localspec_tui.paste import PasteFilter

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
