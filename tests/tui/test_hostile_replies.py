"""Replies that are expensive to draw: their cost compared with plain text of the same size, complete and growing."""

import asyncio
import re
import resource
import time
from pathlib import Path

import pytest
from each import each
from golden import wording
from real.whole_matrix import WHOLE_MATRIX
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static
from tui.hostile_replies import SIZE, hostile_replies
from tui.scripted_engine import say, talked, until

import localspec_tui
from localspec.text import safe
from localspec_tui.growing_document import LONGEST, GrowingDocument, read_blocks
from localspec_tui.widgets.reply_view import ReplyMarkdown, ReplyView

REPLIES = hostile_replies()
MORE = 2.0  # seconds of a core that a reply may cost more than plain text
MEMORY = 100 * 2**20
# Those that took longest before, or did not end.
WORST = ["newlines in a fence", "bullets", "table of 20", "short headings", "fence without a language"]
OTHERS = [name for name in REPLIES if name not in WORST]
PARTS = [WORST, *(pytest.param(OTHERS[at::4], marks=[pytest.mark.slow, WHOLE_MATRIX]) for at in range(4))]
in_parts = pytest.mark.parametrize("names", PARTS, ids=["worst", "1", "2", "3", "4"])


class Page(App[None]):
    CSS_PATH = Path(localspec_tui.__file__).parent / "app.tcss"

    def __init__(self, shown: Static | ReplyMarkdown) -> None:
        super().__init__()
        self.shown = shown

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.shown


def cost(shown: Static | ReplyMarkdown) -> float:
    """Return the seconds of a core for showing it, going to its end, and a resize."""

    async def run() -> float:
        app = Page(Static())
        async with app.run_test(size=(100, 30)) as pilot:
            scroll = app.query_one(VerticalScroll)
            before = time.process_time()
            await scroll.mount(shown)
            await pilot.pause()
            scroll.scroll_end(animate=False)
            await pilot.pause()
            await pilot.resize_terminal(83, 30)
            await pilot.pause()
            return time.process_time() - before

    return asyncio.run(run())


def test_there_are_fifty_kinds_and_each_is_as_long_as_may_be():
    assert len(REPLIES) >= 50 and SIZE == LONGEST
    assert all(0.9 * SIZE < len(text.encode()) <= SIZE for text in REPLIES.values())


@pytest.mark.slow
@in_parts
def test_a_reply_costs_little_more_than_plain_text_and_a_piece_the_same_however_long_it_is(names):
    cost(ReplyMarkdown("# warm\n\n```python\n1\n```\n"))
    for name in names:
        text = safe(REPLIES[name])
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        reply = ReplyMarkdown(REPLIES[name])
        dear = cost(reply)
        more_memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most) * 1024
        whole = read_blocks(text) if names is WORST else reply.blocks
        # A control character is shown as a symbol of three bytes, so some of these replies are too long.
        assert reply.is_plain is (len(text.encode()) > LONGEST), name
        assert reply.blocks == whole, name
        assert more_memory < MEMORY, name
        if dear > MORE:  # else it is no more than that, whatever plain text costs
            assert dear - cost(Static(text, markup=False)) < MORE, name
        grows(name, text, whole)


def grows(name, text, whole) -> None:
    """Append half of the text in pieces. Only the last part is read again, or a block that cannot be divided has grown by 1/8."""
    document, read, text = GrowingDocument(), [], text[: len(text) // 2]
    settle = document.settle
    document.settle = lambda tail, reader: read.append(len(tail)) or settle(tail, reader)
    began = time.process_time()
    for at in range(0, len(text), 1024):
        document.append(text[at : at + 1024])
    assert document.source == text, name
    # not minutes, as of a pattern that goes back again and again
    assert time.process_time() - began < 4 * MORE, name
    if not document._tail or document._tail[-1].kind != "code":  # which is read quickly, all of it each time: 16 times
        assert sum(read) < 10 * len(text), f"characters of {name} that were read"
    assert letters(document.blocks) >= 0.2 * letters(whole), name


def letters(blocks) -> int:
    return sum(len("".join(block.text.split())) for block in blocks)


@pytest.mark.slow
@each(
    "text",
    [
        "".join(f"{n}. item *{n}*\n" for n in range(1, 900)),
        "- a\n\n" + "".join(f"- item {n}\n" for n in range(900)) + "\nafter",
        "```python\n" + "".join(f"a = {n}\n\n" for n in range(900)) + "```\n\nafter",
        "| a | b |\n|---|---|\n" + "".join(f"| {n} | *b* |\n" for n in range(900)) + "\nafter",
        " ".join(f"word{n} **bold{n}**" for n in range(900)) + "\n\nafter",
        "".join(f"paragraph {n}\n\n# head {n}\n\n" for n in range(200)),
    ],
)
def test_a_long_block_that_grows_is_shown_up_to_its_end(text):
    whole, document = read_blocks(text), GrowingDocument()
    for at in range(0, len(text), 97):
        document.append(text[at : at + 97])
        *_, word, _ = re.findall(r"[a-z]+\d*", document.source)
        assert word in " ".join(block.text for block in document.blocks[-3:])
    assert document.blocks[: document.settled] == whole[: document.settled]


@each(
    "pieces",
    [
        ["Three fruits", ":\n", "-", " apple", "\n", "-", " pear", "\n\n", "a total of", "\n", "=", " 3"],
        ["> a", "\n> ", "-", "- b", "\n", "-"],
        ["- a", "\n  ", "=", "= b"],
        ["a\n", "#", "include", "\n", "``", "x"],
    ],
)
def test_no_paragraph_is_a_heading_for_a_moment(pieces):
    document = GrowingDocument()
    for piece in pieces:
        document.append(piece)
        assert not any(block.kind.startswith("h") for block in document.blocks), document.source
    document.append("\n\ntext\n---\n")
    assert document.blocks[-1].kind == "h2", "one that is meant"


async def test_a_longer_reply_is_plain_text_and_it_is_reported(chat):
    text = "- *item*\n" * (LONGEST // 9 + 1)
    async with chat([text[: LONGEST // 2], text[LONGEST // 2 :]]).opened() as (talk, pilot):
        await talked(talk, pilot, "Hi")
        reply = talk.app._chat.query_one(ReplyMarkdown)
        await until(pilot, lambda: wording("longer_64_shown_plain") in talk.screen_text())
        assert [(block.kind, block.text) for block in reply.blocks] == [("plain", text)]


@pytest.mark.parametrize("name", ["newlines in a fence", pytest.param("bullets", marks=pytest.mark.slow)])
async def test_a_conversation_with_such_a_reply_can_be_opened(chat, name):
    async with chat([REPLIES[name]]).opened() as (talk, pilot):
        await talked(talk, pilot, "Hi")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: not talk.replies())
        spent = time.process_time()
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: talk.replies() == [REPLIES[name]])
        reply = talk.app._chat.query_one(ReplyView)
        await until(pilot, lambda: reply.size.height > 1000)
        assert time.process_time() - spent < 2 * MORE
        await say(pilot, "x")
