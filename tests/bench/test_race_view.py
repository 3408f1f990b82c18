import json
from os import terminal_size

import pyte
import pytest
from each import each
from reply_statistics import said
from rich.cells import cell_len

from localspec.bench.race import (
    LIVE,
    PAUSE,
    READING,
    REPLAY,
    REPLAYED,
    Lane,
    Moment,
    fits,
    frame,
    moments,
    recording,
    redrawn,
    whole_screen,
)
from localspec.marks import wrapped

TEXT = "Once upon a time a fox met 世界 and 狐, and Donaudampfschifffahrtsgesellschaft followed.\n\nThe\tend. "
WORDS = TEXT.split(" ")


def lane(name: str, step: float) -> Lane:
    moments = [Moment(1.0 + step * at, f"{word} ", 1) for at, word in enumerate(WORDS)]
    return Lane(name, moments, moments[-1].seconds, said(range(len(WORDS))))


@pytest.fixture
def lanes() -> list[Lane]:
    return [lane("plain decoding", 0.5), lane("with phrases", 0.2)]


@each("columns", [24, 40, 60, 61, 80, 100, 300])
@each("lines", [11, 24, 60])
def test_a_picture_fits_whatever_was_said(lanes, columns, lines):
    size = terminal_size((columns, lines))
    assert fits(size)
    heights = set()
    for seconds in (0.0, 1.3, 2.0, 99.0, None):
        drawn = frame(lanes, size, seconds)
        assert max(map(cell_len, drawn)) < columns, "the last column stays free, for terminals that wrap there"
        assert all(line.count("│") == 1 for line in drawn[1:2] + drawn[3:-3])
        heights.add(len(drawn))
    assert len(heights) == 1 and heights.pop() <= lines - 4, "room for what is said at the end"


def test_too_small_a_terminal_gets_no_picture():
    assert not fits(terminal_size((23, 24))) and not fits(terminal_size((80, 10)))


@each("columns, lines", [(5, 2), (1, 1), (23, 24), (80, 6), (80, 10)])
def test_a_picture_fits_into_a_terminal_that_has_shrunk_meanwhile(lanes, columns, lines):
    drawn = frame(lanes, terminal_size((columns, lines)), 1.5)
    assert 0 < len(drawn) <= lines and max(map(cell_len, drawn)) < columns


def test_a_picture_says_what_one_sees(lanes):
    size, end = terminal_size((80, 30)), max(lane.seconds for lane in lanes)
    seen = [frame(lanes, size, seconds)[0] for seconds in (None, 0.0, end - 0.01, end, end + 1)]
    assert seen == [LIVE, REPLAY, REPLAY, REPLAYED, REPLAYED]
    assert frame(lanes, terminal_size((24, 30)), 0.0)[0] == REPLAY


def test_a_picture_shows_what_was_there_at_that_time(lanes):
    size = terminal_size((80, 30))
    early, late = (" ".join(frame(lanes, size, seconds)) for seconds in (1.5, 99.0))
    assert "2 tokens, 500 ms" in early and "3 tokens, 500 ms" in early and "end." not in early
    assert " ".join(frame(lanes, size, 0.9)).count(READING) == 2, "no time is shown that × does not count"
    assert f"{len(WORDS)} tokens" in late and late.count("followed.") == 2 and "tokens/s" in late
    live = [Lane("plain decoding"), Lane("with phrases", [Moment(0.25, "Hi", 1)], 0.25)]
    assert "1 token, 0 ms" in (drawn := " ".join(frame(live, size))) and READING in drawn


def test_text_is_broken_between_words_and_inside_of_long_ones():
    assert wrapped("one two three", 8) == ["one two", "three"] and wrapped("", 5) == [""]
    assert wrapped("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"] and wrapped("a\n\nb\tc", 9) == ["a", "", "b   c"]
    assert all(cell_len(line) <= 5 for line in wrapped("世界世界世界 x 狐狐狐", 5))
    assert "".join(wrapped("世界世界世界", 5)) == "世界世界世界"


def test_the_replay_keeps_the_true_times(lanes):
    times = list(moments(lanes))
    assert times == sorted(times) and times[0] == 0.0
    assert times[-1] == max(lane.seconds for lane in lanes), "it ends when the slower one has ended"
    assert {moment.seconds for lane in lanes for moment in lane.moments} <= {*times}


def test_many_steps_in_a_moment_are_one_picture():
    quick = [Lane(name, [Moment(at / 1000, "a", 1) for at in range(1, 501)], 0.5, said(range(500))) for name in "ab"]
    times = list(moments(quick))
    assert len(times) <= 0.5 / PAUSE + 2 and times[-1] == 0.5


def test_a_picture_is_drawn_over_the_one_before():
    assert redrawn(["a", "b"], 0) == "\r\x1b[Ka\n\r\x1b[Kb\n" and redrawn(["c"], 2) == "\x1b[2A\r\x1b[Kc\n"


def test_a_whole_screen_is_one_picture_whatever_stood_there(lanes):
    screen = pyte.HistoryScreen(80, 24)
    stream = pyte.Stream(screen)
    for columns, lines in [(80, 24), (60, 12), (120, 40), (20, 5), (80, 24)]:
        screen.resize(lines, columns)
        drawn = frame(lanes, terminal_size((columns, lines)), 99.0)
        stream.feed(whole_screen(drawn))
        assert [line.rstrip() for line in screen.display] == drawn + [""] * (lines - len(drawn))
    assert not screen.history.top, "nothing scrolled"


def test_a_recording_is_asciicast_version_2(lanes):
    size = terminal_size((80, 24))
    head, *events = map(json.loads, recording(lanes, size, ["× 2.00", "✓"], "title\x1b", 1_700_000_000))
    assert head == {"version": 2, "width": 80, "height": 24, "timestamp": 1_700_000_000, "title": "title\x1b"}
    times = [event[0] for event in events]
    assert times == sorted(times) and all(kind == "o" for _, kind, _ in events)
    assert events[-2][2] == "× 2.00\r\n✓\r\n" and times[-1] - times[-2] == pytest.approx(2.0)
    assert all("\n" not in data.replace("\r\n", "") for _, _, data in events), (
        "a raw terminal does not return by itself"
    )
