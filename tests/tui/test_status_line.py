"""Status lines show the parts that fit."""

import re

from each import each
from rich.cells import cell_len
from tui.scripted_engine import say, talked, until

from localspec.config import Settings
from localspec_tui.widgets.status_line import cut, fitting, whole_names

PARTS = ["61.3 tokens/s", "3.10 tokens/step", "phrases 71%, target 29%", "fp32"]


@each(
    "width, line",
    [
        (100, "61.3 tokens/s · 3.10 tokens/step · phrases 71%, target 29% · fp32"),
        (40, "61.3 tokens/s · 3.10 tokens/step · fp32"),
        (20, "61.3 tokens/s · fp32"),
        (13, "61.3 tokens/s"),
        (8, "61.3 to…"),
        (1, "…"),
        (0, ""),
    ],
)
def test_the_most_important_parts_that_fit(width, line):
    assert fitting(PARTS, width) == line


def test_nothing_is_nothing():
    assert fitting([], 10) == ""


@each("width", range(12))
def test_wide_characters_are_cut_in_cells(width):
    assert cell_len(cut("日本語のテキスト", width)) <= width


SAID = "If it took nothing, the text is in "


@each(
    "path, width, broken",
    [
        ("/home/me/copied.txt", 37, "/home/me/copied.txt"),
        ("/home/somebody/.local/share/localspec/copied.txt", 37, "/home/somebody/.local/share/\nlocalspec/copied.txt"),
        ("C:\\Users\\somebody\\AppData\\copied.txt", 20, "C:\\Users\\somebody\\\nAppData\\copied.txt"),
        ("/abcdefghijkl/copied.txt is there", 10, "/\nabcdefghijkl/\ncopied.txt is there"),
    ],
)
def test_a_path_is_broken_between_its_names(path, width, broken):
    shown = whole_names(SAID + path, width)
    assert shown == f"{SAID.strip()}{' ' if path == broken else chr(10)}{broken}"
    assert shown.replace("\n", "").replace(" ", "") == (SAID + path).replace(" ", ""), "and nothing of it is lost"


async def test_a_title_of_hostile_text_stays_one_safe_line(chat):
    async with chat(["Fine."]).opened() as (talk, pilot):
        await talked(talk, pilot, "two\nlines [red] " + "x" * 200)
        top = talk.screen_text().splitlines()[0]
        assert "two lines [red] xxx" in top and top.rstrip().endswith("…")


async def test_a_narrow_line_shows_the_title_rather_than_precision_and_device(chat):
    async with chat(["Fine."]).opened() as (talk, pilot):
        await talked(talk, pilot, "Who are you?")
        assert re.match(r" localspec · scripted · fp32 · cpu +Who are you\?", talk.screen_text())
        await pilot.resize_terminal(44, 20)
        await until(pilot, lambda: re.match(r" localspec · scripted · fp32 +Who are you\?", talk.screen_text()))


async def test_a_system_prompt_and_sampling_that_were_set_stand_at_the_top(chat):
    talk = chat(settings=Settings(system="Be [brief].", temperature=0.5))

    def top():
        return talk.screen_text().splitlines()[0]

    async with talk.playing() as pilot:
        assert "localspec · scripted · system prompt · temperature 0.5 · fp32 · cpu" in top()
        await say(pilot, "/set seed 7")
        await until(pilot, lambda: "temperature 0.5 · seed 7 · fp32" in top())
        await say(pilot, "/set seed default")
        await until(pilot, lambda: "temperature 0.5 · fp32" in top())
        await pilot.press("ctrl+s", *["backspace"] * 20, "ctrl+s")
        await until(pilot, lambda: "scripted · temperature 0.5 · fp32" in top())
        await pilot.resize_terminal(44, 20)
        await until(pilot, lambda: top().rstrip().endswith("localspec · scripted · temperature 0.5"))
