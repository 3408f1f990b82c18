"""Replies as Markdown: nothing in them is obeyed, nothing is dropped, and chunks make no difference."""

import asyncio
import random

import pytest
from each import each
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.geometry import Region

from localspec_tui.growing_document import GrowingDocument, parser, read_blocks
from localspec_tui.widgets.reply_view import ReplyMarkdown

FORBIDDEN = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069",
}
FORBIDDEN -= {"\n"}

HOSTILE = {
    "entities": "A &#27;[31m &#x1b;]0;x&#7; &#x9b;2J &#x202e;txt.exe &#8237; &#155; &lt;b&gt; &#0; &#13;",
    "link title": '[text](http://e.org/&#27;[2J "ti&#x1b;tle&#x202e;")',
    "link text": "[a&#27;b](http://e.org) <http://e.org/&#27;> http://e.org/&#x1b;x",
    "image": '![al&#27;t](http://e.org/i&#27;.png "t&#27;")',
    "reference": "[a][r]\n\n[r]: http://e.org/&#27; 'ti&#27;'",
    "code": "`&#27;` and\n\n```py&#27;thon\n&#27;[31m\n```\n\n    indented &#27;",
    "heading": "# He&#27;ad\n\n## &#x202e;\n\nSetext &#27;\n===",
    "list": "- &#27;\n- [ ] &#x9b;\n\n1. &#27;\n\n999999999. &#27;",
    "table": "| &#27; | b |\n|---|---|\n| [/red] | [link='x']&#27; |\n| \\| | `|` |",
    "quote": "> " * 12 + "deep &#27;",
    "raw": "\x1b[31mred\x1b]52;c;aGk=\x07 \x9b2J \u202eevil\u2066 \x00 \x7f \r over",
    "markup": "[red]not red[/red] [/] [@click=app.quit]no[/] [link=http://e.org]x[/link] \\[x]",
    "html": "List<int> x\n\n<think>plan</think>\n\n<div>block\n\n</div>\n\n<script>alert(1)</script> a < b <!-- c -->",
    "long word": "x" * 5000 + "\n\n" + "`" + "y" * 3000 + "`",
    "many lines": "```python\n" + "\n".join(f"print({n})  # [bold]" for n in range(400)) + "\n```",
    "unclosed": "**bold *it `code [link](http://e.org",
    "brackets": "[" * 500 + "]" * 500,
    "empty": "",
    "blank": "\n\n \n\t\n",
    "odd heading": "#" * 8 + " x\n\n# " + "İ\u0130 " * 30,
}

NO_FORMULA = "- [ ] open\n- [x] done\n\n`\\(code\\)` [a \\] b](http://e.org) **\\(x\\)**"


class Shown(App[None]):
    """A reply on a screen, and the text that the screen has received."""

    CSS = "BlockView { height: auto; }"

    def __init__(self, reply: ReplyMarkdown) -> None:
        super().__init__()
        self.reply = reply

    def compose(self) -> ComposeResult:
        with VerticalScroll():
            yield self.reply

    def blocks(self) -> list[str]:
        """Return the kind and the text of every block, with the mark before its first line."""
        return [
            f"{block.kind}: {''.join(margin.text for margin in block.lead)}{block.text}" for block in self.reply.blocks
        ]


def rendered(text: str, chunks: list[str] | None = None) -> list[str]:
    """Return the blocks of a whole reply, or of one that comes in chunks."""
    app = Shown(ReplyMarkdown(text if chunks is None else ""))

    async def run() -> list[str]:
        async with app.run_test(size=(80, 24)) as pilot:
            for chunk in chunks or ():
                await app.reply.append(chunk)
            await pilot.pause()
            return app.blocks()

    return asyncio.run(run())


@pytest.mark.slow
@each("name", HOSTILE)
def test_no_control_character_is_shown(name):
    shown = "".join(rendered(HOSTILE[name]))
    assert not FORBIDDEN & set(shown)


ONLY_THE_END_DECIDES = {"reference", "list"}  # how earlier blocks are read


@pytest.mark.slow
@each("name", [name for name in HOSTILE if name not in ("many lines", "long word")])
def test_no_control_character_is_shown_while_a_reply_comes_and_no_part_is_missing(name):
    text = HOSTILE[name]
    shown = rendered(text, [*chunked(text, random.Random(name)), "\n\nend"])
    assert not FORBIDDEN & set("".join(shown))
    assert shown[:-1] == rendered(text) or name in ONLY_THE_END_DECIDES


@pytest.mark.slow
def test_lines_are_counted_as_the_parser_counts_them():
    """Python splits lines at more characters than Markdown, and Textual counts lines to know what it has shown."""
    text = "one\x0bone\x0cone\x85one\n\ntwo\x1c\x1d\x1etwo\n\n# three\n\nfour"
    whole = rendered(text)
    assert rendered(text, [text[:20], text[20:]]) == whole
    assert rendered(text, list(text)) == whole


@each("name", HOSTILE)
def test_no_attribute_holds_a_control_character(name):
    def walk(tokens):
        for token in tokens:
            yield token
            yield from walk(token.children or ())

    for token in walk(parser().parse(HOSTILE[name])):
        texts = [token.content, token.info, *map(str, token.attrs.values())]
        assert not (FORBIDDEN - {"\t"}) & set("".join(texts)), token


def test_markup_html_and_what_is_no_formula_are_shown_as_they_stand():
    source = "\n\n".join((HOSTILE["markup"], HOSTILE["html"], NO_FORMULA))
    shown = "\n".join(rendered(source))
    for part in (
        "[red]not red[/red] [/] [@click=app.quit]no[/] [link=http://e.org]x[/link] \\[x]",
        *("List<int> x", "<think>plan</think>", "<div>block", "</div>"),
        *("<script>alert(1)</script> a < b", "<!-- c -->"),
        *("[ ] open", "[x] done", r"\(code\) a \] b \(x\)"),
    ):
        assert part in shown
    (token,) = parser().parse("```python title=x\n1\n```")
    assert token.info == "python", "a language is the first word after the fence"


FORMULAS = [
    r"so \(a^2+b^2\) is",
    r"\[ \int_0^1 x\,dx \]",
    r"\(a_1 * b\) and \(_x_ \{*\}\)",
    r"\(unclosed _ and",
    r"closed only \) \] \,",
    r"\[ \begin{matrix} a & b \\ c & d \end{matrix} \]",
]


@each("formula", FORMULAS)
def test_a_formula_stays_as_it_is_written(formula):
    assert rendered(formula) == [f"paragraph: {formula}"]


ALIGNED = "\\begin{aligned}\nx &= a_1 \\\\\n- y_1 &= \\{b\\}\n=\n\\end{aligned}"
IN_LINES = {
    "after a line": (
        f"We *have*:\n\\[\n{ALIGNED}\n\\]\nand *so* on",
        ["We have:", f"\\[\n{ALIGNED}\n\\]", "and so on"],
    ),
    "dollars": (f"$${ALIGNED}$$\n\nand *so* on", [f"$${ALIGNED}$$", "and so on"]),
    "unclosed": ("\\[\n*a*\n- b", ["\\[\n*a*\n- b"]),
    "in a list": ("- as\n  $$\n  a\n  + b\n  $$", ["as", "$$\na\n+ b\n$$"]),
    "in a quote": ("> \\[\n> a\n> # b\n> \\]\n\nand *so* on", ["\\[\na\n# b\n\\]", "and so on"]),
    "up to a blank line": ("\\[ a\n\n- *b*", ["\\[ a", "b"]),
    "within a line": ("\\[ a \\] is\n*so*\n- b", ["\\[ a \\] is so", "b"]),
    "code": ("    $$\n    - a\n", []),
}


@pytest.mark.slow
@each("name", IN_LINES)
def test_a_formula_has_the_lines_that_it_was_written_in(name):
    text, paragraphs = IN_LINES[name]
    shown = rendered(text)
    found = [one.removeprefix("paragraph: ").lstrip("•▌ ") for one in shown if one.startswith("paragraph")]
    assert found == paragraphs
    assert rendered(text, list(text)) == shown


@pytest.mark.slow
@each(
    "before, after",
    [
        ("| a | b |\n|---|---|\n| 1 | 2 |\n``", "`python\ncode\n```"),  # what looked like a row begins a fence
        ("| a | b |\n|---|---|\n| 1 | 2 |\n1", ". item"),
        ("| a | b |\n|---|---|\n", "| 1 | 2 |\n| 3 | 4 |\n\nafter"),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n", "| 3"),
    ],
)
def test_a_table_may_shrink_while_it_comes(before, after):
    assert rendered(before + after, [before, after]) == rendered(before + after)


def chunked(text: str, chance: random.Random) -> list[str]:
    chunks, rest = [], text
    while rest:
        size = min(len(rest), chance.choice((1, 2, 3, 5, 8, 30)) * max(len(text) // 200, 1))
        chunks.append(rest[:size])
        rest = rest[size:]
    return chunks


def test_definitions_of_links_are_shown():
    source = """It is so [1], as [the docs][d] and [A b][] say.

[1]: https://e.org/one%20page
[D]: <https://e.org/日本> "A title"
[a  b]: /relative

> [2]: https://e.org/two

Last. [3]

[3]: https://e.org/&#27;"""
    shown = [
        "paragraph: It is so [1], as the docs and [A b] say.",
        "definition: [1]: https://e.org/one%20page",
        "definition: [D]: https://e.org/日本 A title",
        "definition: [a b]: /relative",
        "definition: ▌ [2]: https://e.org/two",
        "paragraph: Last. [3]",
        "definition: [3]: https://e.org/&#27;",
    ]
    assert rendered(source) == shown
    app = Shown(ReplyMarkdown(source))

    async def run() -> list[str]:
        async with app.run_test(size=(80, 24)):
            return [app.reply.render_line(y).text.rstrip() for y in range(app.reply.size.height)]

    lines = asyncio.run(run())
    assert lines[1:5] == ["", *(one.removeprefix("definition: ") for one in shown[1:4])]
    document = GrowingDocument()
    for character in source:
        document.append(character)
    assert [block.above for block in document.blocks] == [block.above for block in read_blocks(source)]


def test_a_link_is_shown_and_not_opened(monkeypatch):
    app = Shown(ReplyMarkdown("[text](http://e.org/%1b[2J%E2%80%AE?q=secret)"))
    told, opened = [], []
    monkeypatch.setattr(app, "notify", lambda message, **more: told.append((message, more["markup"])))
    monkeypatch.setattr(app, "open_url", lambda *url: opened.append(url))

    async def run() -> None:
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.click(ReplyMarkdown, offset=(1, 0))
            await pilot.pause()

    asyncio.run(run())
    assert told == [("http://e.org/␛[2J?q=secret", False)]
    assert opened == []


def test_a_reply_that_was_removed_while_the_screen_is_drawn_is_blank():
    app = Shown(ReplyMarkdown("text"))

    async def run() -> None:
        async with app.run_test(size=(80, 24)):
            await app.reply.remove()
            assert [strip.text for strip in app.reply.render_lines(Region(0, 0, 4, 1))] == ["    "]

    asyncio.run(run())
