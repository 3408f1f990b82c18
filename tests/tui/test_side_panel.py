"""The side panel: figures of the reply in pictures, where there is room for them."""

from dataclasses import replace

from golden import wording
from rich.cells import cell_len
from tui.scripted_engine import talked, until

from localspec.chat.figures import Figures
from localspec.events import Memory
from localspec.marks import wrapped
from localspec_tui.widgets.side_panel import SidePanel, sparkline

FIGURES = Figures(
    tokens=248, seconds=4.1, tokens_per_second=61.3, speedup=2.4, saved_seconds=4.9, acceptance_length=3.1,
    acceptance_by_depth=(0.82, 0.61, 0.4), used=1204, context=4096, device="cpu", precision="int8", exactness="bitwise",
    sources={"phrases": 101, "prompt": 55, "target": 92},
    memory=Memory(2**31, 2**26, 2**28, 2**32), free=3 * 2**30,
)  # fmt: skip


def panel(talk):
    return talk.app.screen_stack[0].query_one(SidePanel)


async def test_it_is_opened_and_closed_and_stays_so(chat):
    async with chat(["Hello."], ["Again."]).opened(size=(100, 30)) as (talk, pilot):
        await talked(talk, pilot, "Hi")
        await pilot.pause()
        assert not panel(talk).display
        await pilot.press("f4")
        await until(pilot, lambda: "tokens proposed by" in talk.screen_text())
        assert panel(talk).region.x >= talk.app.screen.query_one("#talk").region.right, "at the side"
        await pilot.press("f1")  # the keys need the room
        await until(pilot, lambda: not panel(talk).display)
        await pilot.press("f1")
        await until(pilot, lambda: panel(talk).display)
        await pilot.press("f4")
        await until(pilot, lambda: not panel(talk).display)
        await pilot.resize_terminal(80, 30)
        await pilot.resize_terminal(120, 30)
        await pilot.pause()
        assert not panel(talk).display


async def test_where_there_is_no_room_at_the_side_it_lies_over_the_conversation(chat):
    async with chat(["Hello."]).opened(size=(58, 14)) as (talk, pilot):
        await until(pilot, talk.idle)
        panel(talk).show(replace(FIGURES, sources={"s3d": 57, "target": 43}))
        await pilot.press("f4")
        await until(pilot, lambda: "tokens proposed by" in talk.screen_text())
        assert talk.app.screen.query_one("#talk").size.width == 58
        assert panel(talk).region.right == 58 and panel(talk).max_scroll_y > 0
        await pilot.press("pagedown")
        await until(pilot, lambda: panel(talk).scroll_y > 0)
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: talk.app.screen.query_one("#talk").size.width == 66)
        await pilot.resize_terminal(58, 14)
        await pilot.press("f4")
        await until(pilot, lambda: "tokens proposed by" not in talk.screen_text())


async def test_what_it_shows(chat):
    async with chat().opened(size=(120, 40)) as (talk, pilot):
        panel(talk).add_class("-open")
        for number in range(1, 40):
            panel(talk).show(replace(FIGURES, tokens=6 * number, seconds=number / 10))
        for part in (
            "61 tok/s · 3.1 tokens/step", "██████", "2.4× faster, 4.9 s saved", "past replies  ████", "41%",
            "first token right: 82 %", "int8 on cpu", "context 1,204 of 4,096 tokens", wording("same_text_as_without_drafts"),
            "▇▇ ▅▅ ▃▃", "weights █", "2.0 GiB", "drafter ▏", "free    ██",
        ):  # fmt: skip
            await until(pilot, lambda part=part: part in talk.screen_text())
        off = "drafts were right too seldom to be worth their time\x1b[2J on this machine"
        panel(talk).show(replace(FIGURES, tokens=250, speedup=0.8, saved_seconds=-1.2, off_reason=off))
        await until(pilot, lambda: "20 % slower, 1.2 s lost" in talk.screen_text())
        page = " ".join(line.split("│")[-1].strip() for line in talk.screen_text().splitlines())
        assert f"drafting paused: {off.replace(chr(27), '␛')}" in page
        panel(talk).show(replace(FIGURES, tokens=2, speedup=None, saved_seconds=None))  # another reply
        await until(pilot, lambda: wording("speedup_not_known_yet") in talk.screen_text())
        assert len(panel(talk)._moments) == 1
        panel(talk).show(replace(FIGURES, tokens=3, speedup=None, saved_seconds=None, acceptance_by_depth=()))
        await until(pilot, lambda: "nothing was drafted" in talk.screen_text())
        plain = replace(FIGURES, tokens=3, speedup=None, acceptance_by_depth=(), drafts=False)
        panel(talk).show(plain)
        await until(pilot, lambda: "plain decoding is" in talk.screen_text())
        panel(talk).show(replace(plain, off_reason="no drafter pays here"))
        await until(pilot, lambda: "no drafts: no drafter pays" in talk.screen_text())
        assert "paused" not in talk.screen_text() and "fastest" not in talk.screen_text(), (
            "the reason stands there once"
        )
        panel(talk).show(replace(plain, no_drafts=True, off_reason="no drafter pays here"))
        await until(pilot, lambda: "because you chose" in talk.screen_text())
        assert "fastest" not in talk.screen_text()


def test_sparks_and_folds():
    assert sparkline([0, 5, 10]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    lines = [*wrapped("a sentence 日本語日本語日本語 anditsverylongword end", 8)]
    assert max(map(cell_len, lines)) <= 8
    assert "".join(lines).replace(" ", "") == "asentence日本語日本語日本語anditsverylongwordend"


async def test_without_content_it_takes_no_room(chat):
    """Many servers send no figures."""
    async with chat().opened() as (talk, pilot):
        await until(pilot, lambda: not panel(talk).has_class("-empty"))
        await pilot.press("f4")
        await until(pilot, lambda: panel(talk).display)
        panel(talk).show(Figures())
        await until(pilot, lambda: not panel(talk).display)
        await pilot.press("f4")
        await until(pilot, lambda: wording("no_figures_to_show_yet") in talk.screen_text())
        panel(talk).show(Figures(tokens=4, tokens_per_second=3.0))
        await until(pilot, lambda: "3.0 tok/s" in talk.screen_text() and panel(talk).display)


async def test_no_bar_is_too_long_where_the_panel_scrolls(chat):
    async with chat().opened(size=(100, 24)) as (talk, pilot):
        panel(talk).add_class("-open")
        for number in (1, 2, 3):
            panel(talk).show(replace(FIGURES, tokens=6 * number, seconds=number / 10))
        await until(pilot, lambda: "█" in talk.screen_text() and "free" in talk.screen_text())
        assert panel(talk).max_scroll_y == 0, "all of it is seen on 24 lines"
        await pilot.resize_terminal(100, 18)
        panel(talk).show(replace(FIGURES, sources={"s3d": 57, "target": 43}))
        await until(pilot, lambda: panel(talk).max_scroll_y > 0 and "57%" in talk.screen_text())
        lines = [line for line in talk.screen_text().splitlines() if "own layers" in line]
        assert lines and lines[0].rstrip().endswith("57%")
