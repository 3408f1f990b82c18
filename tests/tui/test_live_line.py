"""The line above the prompt: what finds room first, and colours that never speak alone."""

from dataclasses import replace

import pytest
from golden import wording
from rich.cells import cell_len
from tui.scripted_engine import talked, until

from localspec.chat.figures import Figures, HeldMemory
from localspec.chat.wording import short_number
from localspec_tui.widgets.live_line import line_of

KNOWN = Figures(
    tokens=4, seconds=2.5, tokens_per_second=61.34, speedup=2.41, saved_seconds=1.0, acceptance_length=3.12, used=1204,
    context=4096, sources={"target": 2, "phrases": 2}, exactness="bitwise", precision="int8",
    memory=HeldMemory(peak=2**29),
)  # fmt: skip
OFF = replace(KNOWN, speedup=0.8, off_reason="drafts take 3.1 times the time they save")


def line(figures: Figures, width: int) -> str:
    return line_of(figures, width).plain


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (140, "61.3 tokens/s · ×2.4 over plain · 3.1 a step · ctx ▰▱▱▱▱ 1.2k/4.1k · same text ✓ · the model 50%, past replies 50% · 0.50 GiB · int8"),
        (78, "61.3 tokens/s · ×2.4 · 3.1 a step · ctx 1.2k/4.1k · same text ✓ · 0.50 GiB"),
        (58, "61.3 tokens/s · ×2.4 · 3.1 a step · ctx 1.2k/4.1k · same ✓"),
        (50, "61.3 tokens/s · ×2.4 · 3.1 a step · ctx 1.2k/4.1k"),
        (34, "61.3 tokens/s · ×2.4 · 3.1 a step"),
        (24, "61.3 tokens/s · ×2.4"),
        (14, "61.3 tokens/s"),
        (5, "×2.4"),
        (2, ""),
    ],
)  # fmt: skip
def test_the_most_important_finds_room_first(width, shown):
    assert line(KNOWN, width) == shown


@pytest.mark.parametrize("figures", [KNOWN, OFF, Figures(), replace(KNOWN, speedup=None)])
@pytest.mark.parametrize("width", range(0, 200, 7))
def test_no_line_is_too_long(figures, width):
    assert cell_len(line(figures, width)) <= width


def test_why_drafting_is_off_is_a_sentence_where_there_is_room():
    assert wording("drafts_now_drafts_take_3_1_times") in line(OFF, 140)
    assert "61.3 tokens/s · ×0.80 as fast · 3.1 a step" in line(OFF, 110), "and not ×0.80 slower, which it is not"
    assert line(OFF, 78) == "61.3 tokens/s · ×0.80 · 3.1 a step · ctx 1.2k/4.1k · drafts off · same text ✓"
    assert line(OFF, 59) == "61.3 tokens/s · ×0.80 · 3.1 a step · ctx 1.2k/4.1k · same ✓", "what tells least goes first"


def styles(figures: Figures, text: str) -> str:
    found = line_of(figures, 200)
    at = found.plain.index(text)
    return " ".join(str(span.style) for span in found.spans if span.start <= at < span.end)


def test_a_loss_is_amber_and_says_so():
    assert "warning" in styles(OFF, wording("n0_80_fast_without_drafts"))
    assert "success" in styles(KNOWN, "×2.4 over plain")


def test_what_a_server_sends_is_a_guess_until_it_tells():
    figures = Figures(pieces_per_second=12.3)
    assert line(figures, 60) == wording("n12_3_tokens_s_if_each_piece_comes") and line(figures, 30) == "~12.3 tokens/s"
    assert "~" not in line(replace(figures, tokens_per_second=9.0), 60)


def test_a_speedup_that_is_not_known_yet_is_grey():
    unknown = replace(KNOWN, speedup=None)
    assert "$" not in styles(unknown, "×?")
    for known in (replace(unknown, drafts=False), replace(unknown, off_reason="why"), Figures()):
        assert "×" not in line(known, 200)


@pytest.mark.parametrize(
    ("used", "shown", "colour"),
    [(100, "▰▱▱▱▱ 100/4.1k", ""), (3400, "▰▰▰▰▱ 3.4k/4.1k", "warning"), (4000, "▰▰▰▰▰ ! 4k/4.1k", "error")],
)
def test_the_end_of_the_context_is_red_and_marked(used, shown, colour):
    figures = replace(KNOWN, used=used)
    assert shown in line(figures, 200) and colour in styles(figures, shown.split()[-1])


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0"), (999, "999"), (1000, "1k"), (1204, "1.2k"), (9999, "10k"), (131072, "131k")]
)
def test_numbers_of_tokens_are_short(count, words):
    assert short_number(count) == words


def test_a_conversation_that_goes_on_shows_from_the_start_how_full_the_context_is(chat):
    talk = chat(["One."], ["Two."])

    async def story(pilot):
        await talked(talk, pilot, "Hi")
        await until(pilot, lambda: "6/1k" in talk.live)
        await pilot.press("ctrl+n")
        await until(pilot, lambda: talk.prompts() == [] and "1k" not in talk.live)
        talk.app._chat.resume(1)
        await until(pilot, lambda: talk.prompts() == ["Hi"])
        assert "6/1k" in talk.live

    talk.play(story)


def test_a_warning_without_figures_ends_in_no_dot(chat):
    """A server may tell none."""
    talk = chat()

    async def story(pilot):
        await until(pilot, talk.idle)
        line = talk.app._chat._live
        line.show_figures(Figures(), "it repeats itself")
        assert str(line.render()) == wording("it_repeats_itself")
        line.show_figures(KNOWN, "it repeats itself")
        assert str(line.render()).startswith(wording("repeats_itself_61_3_tokens_s"))

    talk.play(story)
