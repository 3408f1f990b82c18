"""The line above the prompt: which parts are shown first, and colours that never carry meaning without a word."""

from dataclasses import replace

from each import each
from golden import wording
from rich.cells import cell_len
from tui.scripted_engine import talked, until

from localspec.chat.figures import Figures
from localspec.events import Memory
from localspec_tui.widgets.status_line import line_of

KNOWN = Figures(
    tokens=4, seconds=2.5, tokens_per_second=61.34, speedup=2.41, saved_seconds=1.0, acceptance_length=3.12, used=1204,
    context=4096, sources={"target": 2, "phrases": 2}, exactness="bitwise", precision="int8",
    memory=Memory(0, 0, 0, 2**29),
)  # fmt: skip
OFF = replace(KNOWN, speedup=0.8, off_reason="drafts took 3.1× the time that they saved")


def line(figures: Figures, width: int) -> str:
    return line_of(figures, width).plain


@each(
    "width, shown",
    [
        (140, "61 tok/s · 2.4× faster · 3.1 tokens/step · context 29 %"),
        (56, "61 tok/s · 2.4× faster · 3.1 tokens/step · context 29 %"),
        (50, "61 tok/s · 2.4× faster · 3.1 tokens/step"),
        (34, "61 tok/s · 2.4× faster"),
        (14, "61 tok/s"),
        (5, ""),
    ],
)
def test_the_last_parts_are_left_out_first(width, shown):
    assert line(KNOWN, width) == shown


@each("figures", [KNOWN, OFF, Figures(), replace(KNOWN, speedup=None)])
@each("width", range(0, 200, 7))
def test_no_line_is_too_long(figures, width):
    assert cell_len(line(figures, width)) <= width


def styles(figures: Figures, text: str) -> str:
    found = line_of(figures, 200)
    at = found.plain.index(text)
    return " ".join(str(span.style) for span in found.spans if span.start <= at < span.end)


def test_a_loss_is_amber_and_says_so():
    assert "warning" in styles(OFF, "20 % slower")
    assert "success" in styles(KNOWN, "2.4× faster")


def test_the_figures_of_a_server_are_estimates_until_it_reports_them():
    figures = Figures(pieces_per_second=12.3)
    assert line(figures, 60) == "~12 tok/s"
    assert "~" not in line(replace(figures, tokens_per_second=9.0), 60)


def test_what_is_unknown_is_left_out():
    assert line(replace(KNOWN, speedup=None), 99) == "61 tok/s · 3.1 tokens/step · context 29 %"
    assert line(replace(KNOWN, speedup=1.0, acceptance_length=1.0, context=0), 99) == "61 tok/s"
    assert line(Figures(), 99) == ""


@each(
    "used, shown, colour",
    [(1, "context 1 %", ""), (3400, "context 83 %", "warning"), (4000, "! context 98 %", "error")],
)
def test_the_end_of_the_context_is_red_and_marked(used, shown, colour):
    figures = replace(KNOWN, used=used)
    assert shown in line(figures, 200) and colour in styles(figures, shown)
    assert colour != "error" or line(figures, 20) == shown, "it comes first"


async def test_a_conversation_that_continues_shows_from_the_start_how_full_the_context_is(chat):
    async with chat(["One."], ["Two."]).opened() as (talk, pilot):
        await until(pilot, lambda: talk.live == "ready")
        await talked(talk, pilot, "Hi")
        await until(pilot, lambda: "context 1 %" in talk.live)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [] and talk.live == "ready")
        talk.app._chat.conversations.resume(1)
        await until(pilot, lambda: talk.prompts() == ["Hi"])
        assert "context 1 %" in talk.live


async def test_a_warning_without_figures_ends_in_no_dot(chat):
    """A server may send no figures."""
    async with chat().opened() as (talk, pilot):
        await until(pilot, talk.idle)
        line = talk.app._chat.live
        line.show_figures(Figures(), "it repeats itself")
        assert str(line.render()) == wording("it_repeats_itself")
        line.show_figures(KNOWN, "it repeats itself")
        assert str(line.render()).startswith(wording("repeats_itself_61_tok_s"))
