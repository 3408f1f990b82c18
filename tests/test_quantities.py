import pytest
from each import each
from golden import matching

from localspec.errors import UsageMistake
from localspec.quantities import (
    ago,
    amount,
    distinct,
    duration,
    gib,
    moment,
    pace_in_words,
    seconds_of,
    size,
    speedup,
    tokens_a_second,
)

NOW = 1_700_000_000.0
MINUTE, HOUR, DAY = 60, 3600, 86400


@each(
    "before, shown",
    [
        (0, "just now"),
        (59, "just now"),
        (MINUTE, "1 minute ago"),
        (59 * MINUTE, "59 minutes ago"),
        (HOUR, "1 hour ago"),
        (23 * HOUR, "23 hours ago"),
        (DAY, "1 day ago"),
        (30 * DAY, "30 days ago"),
        (-5, "just now"),
    ],
)
def test_how_long_ago(before, shown):
    assert ago(NOW - before, NOW) == shown


@each(
    "form, first, second, shown",
    [
        (gib, 3 * 2**30, 2**30, ("3.0", "1.0")),
        (gib, 858_000_000, 857_000_000, ("0.799", "0.798")),
        (gib, 10**9, 10**9, ("0.9", "0.9")),
        (gib, 10**9 + 1, 10**9, ("0.93132258", "0.93132257")),
        (size, 2**30 + 2**20, 2**30, ("1.001 GiB", "1.000 GiB")),
        (size, 2**30, 2**30 - 2**20, ("1.0 GiB", "1,023.0 MiB")),
        (size, 1001, 1000, ("1,001 bytes", "1,000 bytes")),
    ],
)  # fmt: skip
def test_two_sizes_have_enough_digits_to_show_which_is_larger(form, first, second, shown):
    assert distinct(form, first, second) == shown


def test_what_is_long_ago_has_its_day():
    assert ago(NOW - 31 * DAY, NOW) == moment(NOW - 31 * DAY)[:10] and len(ago(0, NOW)) == 10


@each(
    "count, shown", [(44, "44"), (999_999, "999,999"), (1_440_000, "1.44 M"), (494_032_768, "494 M"), (8.2e9, "8.2 B")]
)
def test_amounts(count, shown):
    assert amount(count) == shown


def test_sizes():
    assert (size(1), size(1023), size(1536), size(2**34)) == ("1 byte", "1,023 bytes", "1.5 KiB", "16.0 GiB")


@each("seconds, shown", [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (3570, "1 h 0 min"), (4800, "1 h 20 min")])
def test_durations(seconds, shown):
    assert duration(seconds) == shown


@each(
    "written, seconds",
    [("12h", 12 * HOUR), ("30d", 30 * DAY), (" 4 W ", 28 * DAY), ("1 week", 7 * DAY), ("2 years", 730 * DAY)],
)
def test_a_length_of_time_is_understood(written, seconds):
    assert seconds_of(written) == seconds


@each("written", ["", "30", "d", "0d", "-3d", "1.5d", "3 months", "3dd", "123456d", "\u0663d", "3d\x1b[2J"])
def test_invalid_values_are_refused(written):
    with pytest.raises(UsageMistake, match=matching("length_time_give_one_such_12h_30d")):
        seconds_of(written)


@each("speed, shown", [(8.57, "8.6"), (99.94, "99.9"), (8570.0, "8,570"), (1600.4, "1,600")])
def test_speeds(speed, shown):
    assert tokens_a_second(speed) == f"{shown} tokens/s"


def test_what_is_predicted_of_a_speed_is_about():
    assert pace_in_words(61.32, True, None) == pace_in_words(61.32, True, 1.004) == ("61.3 tokens/s",)
    assert pace_in_words(2437.4, False, 1.84) == ("about 2,437 tokens/s", "1.8× faster with drafts")


@each(
    "ratio, shown",
    [
        (1.6, "1.6× faster"),
        (12.34, "12.3× faster"),
        (1.095, "1.1× faster"),
        (1.08, "8 % faster"),
        (1.004, "as fast"),
        (0.996, "as fast"),
        (0.98, "2 % slower"),
        (0.4, "60 % slower"),
        (0.0, "100 % slower"),
    ],
)
def test_a_speedup_reads_the_same_everywhere(ratio, shown):
    assert speedup(ratio) == shown
