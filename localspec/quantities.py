"""Sizes, counts and times in readable form, and the parsing of durations."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime

from localspec.errors import UsageMistake

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_DAY = 86400
_LENGTHS = {"h": 3600, "hour": 3600, "d": _DAY, "day": _DAY, "w": 7 * _DAY, "week": 7 * _DAY}
_LENGTHS |= {"y": 365 * _DAY, "year": 365 * _DAY}
_SHORT = {"s": 1, "second": 1, "m": 60, "minute": 60, "h": 3600, "hour": 3600}


def size(count: float, digits: int = 1) -> str:
    """Return a number of bytes in readable form."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:,.{digits}f} {_UNITS[power]}" if power else "1 byte" if count == 1 else f"{count:,.0f} bytes"


def gib(count: float, digits: int = 1) -> str:
    """Return bytes as a number of GiB, without the unit."""
    return f"{count / 2**30:.{digits}f}"


def distinct(form: Callable[[float, int], str], first: int, second: int) -> tuple[str, str]:
    """Return two sizes as `form(size, digits)` writes them, with enough digits to show which is larger."""
    shown = form(first, 1), form(second, 1)
    for digits in range(2, 10):
        if shown[0] != shown[1] or first == second:
            break
        shown = form(first, digits), form(second, digits)
    return shown


def amount(count: int) -> str:
    """Return a number of parameters in readable form: `1.7 B`, `494 M`."""
    for unit, name in ((1e9, "B"), (1e6, "M")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:,}"


def counted(count: int, noun: str, several: str = "") -> str:
    """Return a count with its noun: `1 phrase`, `1,234 phrases`. `several` is a plural that does not end in s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"


def tokens_a_second(speed: float) -> str:
    """Return a speed in words: `61.3 tokens/s`, `2,437 tokens/s`."""
    return f"{speed:,.1f} tokens/s" if speed < 100 else f"{speed:,.0f} tokens/s"


def short_pace(speed: float) -> str:
    """Return a reply's speed for a line of figures: `37 tok/s`, or `8.2 tok/s`."""
    return f"{speed:,.{0 if speed >= 9.95 else 1}f} tok/s"


def expected_pace(speed: float, measured: bool) -> str:
    """Return the speed of a model: `61.3 tokens/s` if measured, `about 61.3 tokens/s` if predicted."""
    return tokens_a_second(speed) if measured else f"about {tokens_a_second(speed)}"


def precision_in_words(dtype: str, quantize: str, bits: float | None) -> str:
    """Return the precision of weights in words. `bits` is the average per weight of GGUF blocks, otherwise None."""
    return f"{bits:.1f} bits per weight" if bits else dtype if quantize in ("none", "") else quantize


def pace_in_words(speed: float, measured: bool, ratio: float | None) -> tuple[str, ...]:
    """Return the speed in words, and the speedup from drafts (`ratio`) unless it is 1 or unknown."""
    pace, gain = expected_pace(speed, measured), speedup(ratio or 1.0)
    return (pace,) if gain == "as fast" else (pace, f"{gain} with drafts")


def m_words(m: float, rule: str) -> str:
    """Return the cost-effectiveness M of a drafter, and the rule that chose it: `M 1.07, chosen by speed`."""
    criterion = "M" if rule == "memory" else rule
    return f"M {m:.2f}, chosen by {criterion}"


def speedup(ratio: float) -> str:
    """Return a ratio of speeds in words: `1.6× faster`, `8 % faster`, `as fast`, `2 % slower`."""
    if ratio >= 1.095:
        return f"{ratio:.1f}× faster"
    percent = round(100 * (ratio - 1))
    return "as fast" if not percent else f"{abs(percent)} % {'faster' if percent > 0 else 'slower'}"


def parameters_words(count: int) -> str:
    """Return a number of parameters in words: `7.6 million`, `1.7 billion`."""
    for unit, name in ((10**9, "billion"), (10**6, "million")):
        if count >= 0.95 * unit:
            return f"{count / unit:.{0 if count >= 100 * unit else 1}f} {name}"
    return f"{count:,}"


def moment(seconds: float) -> str:
    """Return a time, given in seconds since 1970, as `2026-01-31 14:05` in this machine's time zone."""
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def day(seconds: float) -> str:
    """Return the day of a time, given in seconds since 1970, as `2026-01-31` in this machine's time zone."""
    return moment(seconds)[:10]


def ago(seconds: float, now: float) -> str:
    """Return how long before `now` a time was: `just now`, `3 hours ago`. If it was 31 days or more, return the day.

    Both times are in seconds since 1970.
    """
    passed = now - seconds
    for unit, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed >= 31 * 86400:
            break
        if passed >= unit:
            return f"{counted(int(passed // unit), name)} ago"
    return day(seconds) if passed >= 31 * 86400 else "just now"


def duration(seconds: float) -> str:
    """Return a duration: `12 s`, `3 min`, `1 h 20 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = int(seconds / 60 + 0.5)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def seconds_of(length: str) -> int:
    """Return a duration such as `12h`, `30d`, `4w`, `1y` or `30 days` as a number of seconds. Raises UsageMistake."""
    return _seconds(length, _LENGTHS, "12h, 30d, 4w or 1y")


def short_seconds_of(length: str) -> int:
    """Return a duration such as `30s`, `10m`, `2h` or `10 minutes` as a number of seconds. Raises UsageMistake."""
    return _seconds(length, _SHORT, "30s, 10m or 2h")


def _seconds(length: str, units: Mapping[str, int], such: str) -> int:
    match = re.fullmatch(rf"\s*([0-9]{{1,5}})\s*({'|'.join(units)})s?\s*", length, re.IGNORECASE)
    if match is None or int(match[1]) == 0:
        raise UsageMistake(f"{length[:80]!r} is not a duration; give one such as {such}.")
    return int(match[1]) * units[match[2].lower()]


WINDOW = 10.0  # seconds over which the speed is measured


class Arrival:
    """The progress of one download."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()  # times, and bytes that had arrived by then

    def parts(self, done: int, total: int, now: float) -> list[str]:
        """Return the progress, the speed and the remaining time in words, leaving out what is unknown.

        `done` of `total` bytes have arrived at the time `now`, in seconds.
        """
        self._samples.append((now, done))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW:
            self._samples.popleft()
        then, before = self._samples[0]
        words = [f"{size(done)} of {size(total)}"]
        if now > then and done > before:
            rate = (done - before) / (now - then)
            words += [f"{size(rate)}/s", f"{duration((total - done) / rate)} left"]
        return words
