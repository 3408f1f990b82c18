"""A selection by the mouse begins and ends at the nearest text, wherever it is pressed and released."""

from textual.events import MouseDown, MouseMove, MouseUp, Paste
from tui.scripted_engine import talked, until

from localspec_tui.block_view import PlainText
from localspec_tui.widgets.reply_view import ReplyMarkdown

REPLY = """A paragraph.

```python
def f():
    return 1
```

- item a
- item b

| n | m |
|---|---|
| aa | 日本 |
| cc | dd |

Last one."""


async def selected(talk, pilot, press, release):
    for kind, (x, y) in ((MouseDown, press), (MouseMove, release), (MouseUp, release)):
        talk.app.screen._forward_event(kind(None, x, y, 0, 0, 1, False, False, False, screen_x=x, screen_y=y))
        await pilot.pause()
    text = talk.app.screen.get_selected_text()
    talk.app.screen.clear_selection()
    return text


async def test_a_selection_is_clipped_to_the_nearest_text(chat):
    async with chat(["Above.\n\n" * 20 + REPLY]).opened((80, 34)) as (talk, pilot):
        await talked(talk, pilot, "How?")
        await until(pilot, lambda: "Last one." in talk.screen_text())
        view = talk.app.query_one(ReplyMarkdown)
        rows = [view.region.y + at for at in range(view.size.height)]
        row = {
            word: next(y for at, y in enumerate(rows) if word in view.render_line(at).text)
            for word in ("A para", "def", "return", "item a", "item b", "aa", "cc", "Last")
        }
        for press, release, expected in (
            ((5, "A para"), (9, row["A para"] + 1), "paragraph."),  # the blank line between two blocks
            ((5, "A para"), (78, "A para"), "paragraph."),
            ((5, "A para"), (79, "A para"), "paragraph."),
            *(((x, "item b"), (8, "item b"), "item") for x in (0, 1, 2)),
            *(((x, "def"), (16, "return"), "def f():\n    return 1") for x in (2, 3, 4)),
            ((3, "item a"), (8, "item b"), "item a\n• item"),
            ((9, row["item a"] - 1), (10, "item b"), "• item a\n• item b"),
            ((4, "aa"), (6, "aa"), "aa"),
            ((4, "aa"), (7, "aa"), "aa"),
            ((4, "aa"), (10, "aa"), "aa │ 日"),
            ((4, "aa"), (11, "aa"), "aa │ 日"),  # the other half of the character
            ((4, "aa"), (15, "aa"), "aa │ 日本"),
            ((40, "aa"), (11, "cc"), "cc │ dd"),
            ((4, "cc"), (30, "Last"), "cc │ dd\nLast one."),
            ((30, "Last"), (4, "cc"), "cc │ dd\nLast one."),  # upwards
        ):
            ends = [(x, row.get(y, y)) for x, y in (press, release)]
            assert await selected(talk, pilot, *ends) == expected, (press, release)


async def test_selected_code_has_its_tabs(chat):
    async with chat(["Code:\n\n```c\nif (a)\n\tb\t= c;\n```\n\nEnd."]).opened((80, 24)) as (talk, pilot):
        talk.app.post_message(Paste("one\ttwo"))
        await pilot.press("enter")
        await until(pilot, lambda: "End." in talk.screen_text())
        for view, first, last, ends, expected in (
            (ReplyMarkdown, "if", "= c", (5, 40), "(a)\n\tb\t= c;"),
            (ReplyMarkdown, "= c", "= c", (10, 18), "b\t="),
            (PlainText, "one", "one", (1, 9), "ne\ttw"),
        ):
            view = talk.app.query_one(view)
            row = {
                word: next(y for y in range(view.size.height) if word in view.render_line(y).text)
                for word in (first, last)
            }
            press, release = (
                (view.region.x + x, view.region.y + row[word]) for x, word in zip(ends, (first, last), strict=True)
            )
            assert await selected(talk, pilot, press, release) == expected
