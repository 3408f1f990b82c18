"""A paragraph that grows is wrapped, laid out and drawn as if all of it were new."""

import random
import threading
from itertools import accumulate

import pytest
from rich._wrap import divide_line
from textual.content import Content
from textual.geometry import Region
from textual.layouts.vertical import VerticalLayout
from textual.visual import Visual
from textual.widget import Widget
from tui.scripted_engine import say, until

from localspec_tui.growing_paragraph import GrowingParagraph, Wrapped
from localspec_tui.reply_markdown import ReplyMarkdown
from localspec_tui.widgets.conversation_view import ConversationView
from localspec_tui.widgets.prompt import Prompt

PIECES = ["a", "word", " ", " ", "  ", "-", "漢字", "e\u0301", "👩‍🚀", "sesquipedalian" * 3, ", ", "x" * 12 + " "]

REPLY = [
    "One *two* three **four five",
    " six** seven `eight nine ten",
    " eleven` twelve thirteen " + "fourteen " * 30,
    "\nfifteen [sixteen](https://example.org/" + "s" * 90 + ") seventeen",
    " and " + "more " * 40 + "**bold",
    " that ends** here.\n\n## A head",
    "ing\n\n- one\n- tw",
    "o\n\nAnd on it " + "goes " * 60,
    "on.  \nA line end in it, " + "then " * 40,
    "\n\n```python\nx = 1\n",
    "```\n\n> a quote " + "that is long " * 20,
    "\n\n" + "The end of it " * 50,
]


def test_what_is_wrapped_again_is_wrapped_as_a_whole():
    chance = random.Random(5)
    for _ in range(300):
        width, text, wrapped = chance.randint(1, 30), "", None
        wrapped = Wrapped(Content(), width, [])
        for _ in range(12):
            if chance.random() < 0.2:
                text = text[: chance.randrange(len(text) + 1)]
            text += "".join(chance.choices(PIECES, k=chance.randint(0, 12)))
            before, lines = wrapped, wrapped.content.plain
            wrapped, stay = wrapped.instead(Content(text))
            assert wrapped.breaks == divide_line(text, width), (width, text)
            rows = list(zip([0, *before.breaks], [*before.breaks, len(lines)], strict=True))
            assert all(lines[first:end] == text[first:end] for first, end in rows[:stay])


def test_lines_that_look_otherwise_do_not_stay():
    text = "one two three four five six seven eight nine ten"
    plain, _ = Wrapped(Content(), 10, []).instead(Content(text))
    assert plain.breaks == [8, 19, 28, 34, 45]
    assert plain.instead(Content(text))[1] == 4, "a word may go on at the end of the last"
    assert plain.instead(Content(text).stylize("bold", 24, 27))[1] == 1
    assert plain.instead(Content(text).stylize("bold"))[1] == 0


@pytest.mark.parametrize("selected", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_reply_that_grows_is_drawn_as_if_all_of_it_were_new(chat, selected):
    gates = [threading.Event() for _ in REPLY]
    talk = chat([step for piece in zip(REPLY, gates, strict=True) for step in piece])

    async def story(pilot):
        talk.app._chat.query_one(Prompt).cursor_blink = False
        await say(pilot, "Hi")
        screen = talk.app._chat
        for source, gate in zip(accumulate(REPLY), gates, strict=True):
            await until(pilot, lambda source=source: talk.replies() == [source])
            await pilot.pause(0.05)
            if selected:
                screen.text_select_all()
                await pilot.pause(0.05)
            markdown = screen.query_one(ReplyMarkdown)
            size = markdown.content_region.size
            ours = markdown.arrange(size).placements
            assert ours == VerticalLayout().arrange(markdown, [*markdown.displayed_children], size.with_height(0))
            region = screen.query_one(ConversationView).region
            seen = screen._compositor.render_strips()[region.y : region.bottom]
            for paragraph in screen.query(GrowingParagraph):
                width, height = paragraph.size
                content = paragraph._render()
                theirs = Visual.to_strips(paragraph, content, width, height, paragraph.visual_style)
                assert height == content.get_height(paragraph.styles, width)
                assert [paragraph.render_line(y).text for y in range(height)] == [strip.text for strip in theirs]
            for widget in screen.query(Widget):
                widget.refresh(layout=True)  # all is drawn anew
            await pilot.pause(0.05)
            assert seen == screen._compositor.render_strips()[region.y : region.bottom]
            if selected:
                screen.clear_selection()
            gate.set()

    talk.play(story, size=(90, 24))


def test_the_bar_is_textual_s_own(chat):
    more = threading.Event()
    talk = chat(["One. " * 900, more])

    async def story(pilot):
        await say(pilot, "Hi")
        view = talk.app._chat.query_one(ConversationView)
        await until(pilot, lambda: view.show_vertical_scrollbar)
        bar = view.vertical_scrollbar
        for y in (0, 3, 7.5, 20):
            view.scroll_to(y=y, animate=False, force=True)
            await pilot.pause(0.05)
            for over in (False, True):
                bar.mouse_over = over
                width, height = bar.size
                drawn = bar.render_lines(Region(0, 0, width, height))
                theirs = Visual.to_strips(bar, bar._render(), width, height, bar.visual_style)
                filters = bar.get_line_filters()
                for one in filters:
                    theirs = [strip.apply_filter(one, bar.background_colors[1]) for strip in theirs]
                assert drawn == theirs
        more.set()

    talk.play(story, size=(90, 24))


def test_the_cursor_stays_while_a_reply_comes(chat):
    more = threading.Event()
    talk = chat(["One.", more])

    async def story(pilot):
        await say(pilot, "Hi")
        await until(pilot, lambda: talk.replies() == ["One."])
        prompt = talk.app._chat.query_one(Prompt)
        prompt._cursor_visible = False
        seen = []
        for _ in range(3):
            prompt._toggle_cursor_blink_visible()
            seen.append(prompt._cursor_visible)
        more.set()
        await until(pilot, talk.idle)
        await until(pilot, lambda: prompt.blinks)
        prompt._cursor_visible = True
        prompt._toggle_cursor_blink_visible()
        assert seen == [True] * 3 and not prompt._cursor_visible

    talk.play(story)
