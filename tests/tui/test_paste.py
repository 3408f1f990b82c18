"""Escape sequences in pasted text never act as keys, wherever the terminal cuts its output into pieces."""

import asyncio
import random
import sys
from contextlib import suppress

import pytest
from each import each
from textual.app import App
from textual.events import Paste
from textual.widgets import Input
from tui.scripted_engine import until

from localspec.paths import Paths
from localspec.store.store import Store
from localspec.text import ALT_ENTER, PASTE_BEGIN, PASTE_END, PasteFilter
from localspec_tui.widgets.typed_text import LONGEST, OneLine, TypedText, after, before

HOSTILE = "x\x1b[31m\x1b\x1b[20\x1b[200~y\x1b\x1b[48;1;1;1;1t\x1b[I\x1b\r\x1b\x11\x1b"
SHOWN = "x␛[31m␛␛[20␛[200~y␛␛[48;1;1;1;1t␛[I␛\r␛\x11␛"


def test_pieces_of_any_length():
    pasted_text = PASTE_BEGIN, HOSTILE, PASTE_END
    sent = "".join(("a\x1b[A", *pasted_text, "\x1b[A\x1b\x1b[200", *pasted_text, "\x1bq"))
    given = sent.replace(HOSTILE, SHOWN)
    chance = random.Random(3)
    for _ in range(500):
        assert in_pieces(sent, chance) == given


def in_pieces(sent, chance):
    """Return what the filter passes on, for pieces of any length."""
    cuts = sorted(chance.sample(range(len(sent)), chance.randint(0, 20)))
    stream = PasteFilter()
    pieces = zip([0, *cuts], [*cuts, len(sent)], strict=True)
    return "".join(stream.read(sent[start:end]) for start, end in pieces)


def test_keys_are_given_on_at_once():
    stream = PasteFilter()
    assert [stream.read(char) for char in "\x1b[20x"] == list("\x1b[20x")


def test_letters_without_marks_are_a_paste():
    """GNU screen and consoles paste this way."""
    text = "Hello there, you all! 漢字"
    assert PasteFilter().read(f"\x1b[A{text}\rabc{text}\x11") == (
        f"\x1b[A{PASTE_BEGIN}{text}{PASTE_END}\r{PASTE_BEGIN}abc{text}{PASTE_END}\x11"
    )
    for keys in ("a few letters", "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", "\x1b[<35;100;100M" * 9, "\x1b[97;1;97u" * 9):
        assert PasteFilter().read(keys) == keys
    chance = random.Random(3)
    answer = "\x1b]11;rgb:ffff/ffff/ffff\x1b\\"
    assert all(in_pieces(answer, chance) == answer for _ in range(100))


def test_a_terminal_s_escape_and_enter_are_alt_enter():
    assert PasteFilter().read("a\x1b\r\x1b\nb") == f"a{ALT_ENTER}{ALT_ENTER}b"


async def test_what_was_copied_here_is_pasted_as_text(chat):
    async with chat().opened() as (talk, pilot):
        talk.app._clipboard = "one\x1b[31m\ntwo\u202e"
        await pilot.press("ctrl+v")
        await until(pilot, lambda: talk.typed == "one␛[31m\ntwo")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: talk.app.screen.query(Input))
        await pilot.press("ctrl+v")
        await until(pilot, lambda: talk.app.screen.query_one(Input).value == "one␛[31m two")


async def test_what_no_model_reads_is_refused_and_nothing_changes(chat):
    async with chat([]).opened() as (talk, pilot):
        await pilot.press(*"kept")
        talk.app.post_message(Paste("x" * LONGEST))
        await until(pilot, lambda: any("1,000,000" in one and "1,000,004" in one for one in toasts(talk)))
        assert talk.typed == "kept"
        talk.app.post_message(Paste("x" * 9))
        await until(pilot, lambda: talk.typed == "kept" + "x" * 9)


def toasts(talk):
    return [one.message for one in talk.app.toasts]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_keys_after_a_long_paste_without_marks_act_at_once(tmp_path):
    import psutil
    from tui.terminal import scripted_chat

    text = ("Hello there, you all! 漢字 " * 1000)[:20_000]
    with scripted_chat(tmp_path, "[['Yes.']]", "-m", "demo") as terminal:
        terminal.shows("❯ Say something", "ready")
        process = psutil.Process(terminal.process.pid)
        before = sum(process.cpu_times()[:2])
        terminal.send(text + "\x11")
        used = before
        while terminal.process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                used = sum(process.cpu_times()[:2])
            assert used - before < 1, "seconds of the processor"
            terminal._read(0.02)
        assert terminal.ends() == 0
    with Store.open(Paths(tmp_path).database, print) as store:
        (draft,) = store.drafts.take_orphaned()
    assert draft == text


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
