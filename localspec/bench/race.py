"""A race: one prompt answered with and without drafts, in two growing columns of text.

The two replies take turns, and each has its own clock.
"""

import json
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from os import terminal_size
from typing import TYPE_CHECKING

from rich.cells import set_cell_size

from localspec.config import Settings
from localspec.events import Done, Event, Statistics, Text
from localspec.marks import bar, wrapped
from localspec.quantities import counted, speedup
from localspec.text import one_line, safe

if TYPE_CHECKING:
    from localspec import Engine, Sampling
    from localspec.decoding.session import Session
    from localspec.models.messages import Message

FEWEST = 16  # tokens after the first one; with fewer the time of a single step decides


@dataclass(frozen=True)
class Moment:
    """The text and the number of tokens that one step added to a lane, and the lane's clock after that step."""

    seconds: float
    text: str
    tokens: int


@dataclass
class Lane:
    """One of the two lanes of a race: its name, its reply so far, and the seconds that it has worked."""

    name: str
    moments: list[Moment] = field(default_factory=list)
    seconds: float = 0.0
    statistics: Statistics | None = None  # once the reply has finished
    _thinks: bool = False  # whether the last text was a thought

    def add(self, event: Text) -> None:
        """Add the text of a step: first the model's thoughts, then its answer."""
        self._thinks = self._thinks or bool(event.reasoning)
        text = event.reasoning
        if event.text:
            text += ("\n\n" if self._thinks else "") + event.text
            self._thinks = False
        self.moments.append(Moment(self.seconds, safe(text), len(event.tokens)))

    def until(self, seconds: float | None = None) -> tuple[str, int]:
        """Return the text and the number of tokens after this many seconds; None means now."""
        past = [moment for moment in self.moments if seconds is None or moment.seconds <= seconds]
        return "".join(moment.text for moment in past), sum(moment.tokens for moment in past)

    def decoding(self, seconds: float | None = None) -> float | None:
        """Return the seconds of decoding so far, or within the first `seconds` of this lane's work.

        The result is None while the prompt is read. Decoding begins with the first token and ends with the last.
        """
        if not self.moments or (seconds is not None and seconds < self.moments[0].seconds):
            return None
        first, last = self.moments[0].seconds, self.moments[-1].seconds
        return (last if seconds is None else min(seconds, last)) - first

    @property
    def tokens_per_second(self) -> float:
        """The tokens per second of decoding; 0 before the second token."""
        passed = self.decoding() or 0.0
        return sum(moment.tokens for moment in self.moments[1:]) / passed if passed > 0 else 0.0


@dataclass(frozen=True)
class RaceResult:
    """The result of a race: the speedup of the second lane in decoding, and where the texts differ."""

    speedup: float | None
    parted: int | None  # the number of the first token that differs, from 1
    why_not: str = ""  # why there is no speedup

    @property
    def same(self) -> bool:
        return self.parted is None


def race(lanes: Sequence[Lane], streams: Sequence[Generator[Event, None, None]]) -> Iterator[Lane]:
    """Advance the lane whose clock shows less time, until both lanes are done. Yield the lane after each event.

    This way, a change in the load of the machine affects both lanes. Each lane's clock counts only the lane's work.
    """
    running = dict(enumerate(streams))
    while running:
        current = min(running, key=lambda index: lanes[index].seconds)
        lane, began = lanes[current], time.perf_counter()
        event = next(running[current])
        lane.seconds += time.perf_counter() - began
        match event:
            case Text():
                lane.add(event)
            case Done(_, statistics):
                lane.statistics = statistics
                running.pop(current).close()
        yield lane


def result(plain: Lane, speculative: Lane) -> RaceResult:
    """Return the result of a finished race. Speeds are not compared if there were no drafts, or too few tokens."""
    assert plain.statistics is not None and speculative.statistics is not None
    expected, actual = plain.statistics.token_ids, speculative.statistics.token_ids
    parted = None
    if expected != actual:
        pairs = zip(expected, actual, strict=False)
        parted = next((n for n, (a, b) in enumerate(pairs, start=1) if a != b), min(len(expected), len(actual)) + 1)
    speeds = plain.tokens_per_second, speculative.tokens_per_second
    if not all(speeds):
        return RaceResult(None, parted, "a reply ended before its second token")
    if not speculative.statistics.drafted:
        return RaceResult(None, parted, "no draft was checked")
    fewest = min(sum(moment.tokens for moment in lane.moments[1:]) for lane in (plain, speculative))
    if fewest < FEWEST:
        too_few = f"a reply has only {counted(fewest, 'token')} after its first token, which is too few"
        return RaceResult(None, parted, too_few)
    return RaceResult(speeds[1] / speeds[0], parted)


LONGEST = 256  # tokens of a reply, if no number is given


def on_its_own_clock(session: "Session", events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """Yield the events of a session's reply. The session's clock stands still while other replies have their turns."""
    with closing(events):
        for event in events:
            left = time.perf_counter()
            yield event
            session.rest(time.perf_counter() - left)


def with_drafts(engine: "Engine") -> "Engine":
    """Return a new engine with the target and the drafter of `engine`.

    If `engine` does not draft, the new engine drafts with phrases: the race shows whether phrases pay.
    """
    from localspec import Engine
    from localspec.choosing.plans import AUTO_NODES

    choice = engine.choice
    drafts = choice if choice.nodes else replace(choice, drafter="phrases", nodes=AUTO_NODES)
    return Engine(drafts, phrases="off", share_with=engine)


def racers(
    drafting: "Engine", prompt: str, system: str | None, settings: Settings, sampling: "Sampling"
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Return the two lanes of a race and the generators of their events, after warming up the target.

    `drafting` is a new engine with a drafter. Both lanes use its target.
    """
    from localspec import Engine, Limits

    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": prompt})
    plain_choice = replace(drafting.choice, drafter="none", nodes=0, trained=(), draft=None)
    tokens = drafting.target.encode(messages, drafting.thinking(settings, system))
    engines = [Engine(plain_choice, phrases="off", share_with=drafting), drafting]
    for _ in engines[0].session.generate(tokens, sampling, Limits(2)):  # the target's weights may still come from disk
        pass
    engines[0].session.rewind(0)
    lanes = [Lane("plain decoding"), Lane(f"with {one_line(drafting.choice.drafter)}")]
    limits = Limits(settings.max_tokens or LONGEST, settings.stop)
    sessions = [engine.session for engine in engines]
    return lanes, [on_its_own_clock(session, session.generate(tokens, sampling, limits)) for session in sessions]


def opponents(
    engine: "Engine", prompt: str, system: str | None, settings: Settings
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Return two lanes on the target of this engine. The engine stays unchanged: another engine drafts in the race."""
    return racers(with_drafts(engine), prompt, system, settings, engine.sampling(settings))


def sentences(lanes: Sequence[Lane], outcome: RaceResult) -> Iterator[str]:
    """Yield the sentences about the result of a race."""
    plain, fast = lanes
    speed, of_plain, with_drafts = fast.tokens_per_second, plain.tokens_per_second, fast.name
    if outcome.speedup is None:
        yield (
            f"After the first token: {speed:.1f} tokens/s {with_drafts}, and {of_plain:.1f} by plain decoding. They "
            f"cannot be compared: {outcome.why_not}."
        )
    else:
        ratio = speedup(outcome.speedup)
        yield f"{ratio} {with_drafts} ({speed:.1f} tokens/s after the first token instead of {of_plain:.1f})"
        if ratio == "as fast":
            yield "Drafts cost as much time here as they save."
        elif outcome.speedup < 1:
            yield "Drafts do not pay here: checking them took longer than they saved."
    if outcome.same:
        yield "✓ both texts are the same"
    else:
        yield (
            f"The texts differ from token {outcome.parted} on, because here a pass rounds differently if it computes "
            "several tokens. Give `--exact` to make them the same, if this machine can."
        )
    assert fast.statistics is not None
    if fast.statistics.off_reason:
        yield f"Drafting was switched off: {one_line(fast.statistics.off_reason)}"


# -- as it is displayed ------------------------------------------------------------------------------------------------

LEAST_COLUMNS, MOST_COLUMNS, AROUND = 24, 160, 10  # AROUND: lines outside the text: six, and the sentences at the end
TEXT_LINES = 16  # most lines of a reply; the last ones are shown
PAUSE = 1 / 20  # seconds between two frames
READING = "reading…"  # shown while the prompt is read; it fits into the narrowest column
LIVE = "race: both take turns, step by step"
REPLAY, REPLAYED = "replay at true speed", "replayed at true speed"
LINGER = 2.0  # seconds that the last frame of a recording stays


def fits(size: terminal_size) -> bool:
    """Return whether a terminal of this size has room for the two columns of a race."""
    return size.columns >= LEAST_COLUMNS and size.lines > AROUND


def frame(lanes: Sequence[Lane], size: terminal_size, seconds: float | None = None) -> list[str]:
    """Return the lines that show the race as it is now, or as it was after `seconds` of each lane's clock.

    Lines are cut to the size of the terminal, which may have shrunk: a longer line would wrap into the next one.
    """
    width = (max(LEAST_COLUMNS, min(MOST_COLUMNS, size.columns)) - 4) // 2
    height = max(1, min(TEXT_LINES, size.lines - AROUND))
    columns_of_lines = [_column(lane, width, height, seconds) for lane in lanes]
    rule = "─" * width + "─┼─" + "─" * width
    rows = [" │ ".join(set_cell_size(cell, width) for cell in cells) for cells in zip(*columns_of_lines, strict=True)]
    wide = min(2 * width + 3, size.columns - 1)  # terminals may wrap in the last column
    lines = [_caption(lanes, seconds), rows[0], rule, *rows[1 : height + 1], rule, *rows[height + 1 :]]
    return [set_cell_size(line, wide).rstrip() for line in lines[: size.lines]]


def ends(lanes: Sequence[Lane]) -> float:
    """Return the length of the replay in seconds."""
    return max(lane.seconds for lane in lanes)


def _caption(lanes: Sequence[Lane], seconds: float | None) -> str:
    if seconds is None:
        return LIVE
    return REPLAY if seconds < ends(lanes) else REPLAYED


def _column(lane: Lane, width: int, height: int, seconds: float | None) -> list[str]:
    """Return the lines of a lane's column: its name, `height` lines of text, a bar, and figures."""
    text, tokens = lane.until(seconds)
    passed = lane.seconds if seconds is None else min(seconds, lane.seconds)
    over = lane.statistics is not None and passed >= lane.seconds
    total = max(1, len(lane.statistics.token_ids)) if lane.statistics else None
    drawn_bar = bar(tokens / total, width) if total else ""
    lines = wrapped(text, width)[-height:]
    return [
        lane.name,
        *lines,
        *[""] * (height - len(lines)),
        drawn_bar,
        _figures(tokens, lane.decoding(seconds))
        + (f", {lane.tokens_per_second:.1f} tokens/s" if over and width >= 36 else ""),
    ]


def _figures(tokens: int, decoding: float | None) -> str:
    return READING if decoding is None else f"{counted(tokens, 'token')}, {_seconds(decoding)}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"


def moments(lanes: Sequence[Lane]) -> Iterator[float]:
    """Yield the times for drawing the replay at true speed, in seconds since its start."""
    end = ends(lanes)
    times = {0.0, *(moment.seconds for lane in lanes for moment in lane.moments), *(lane.seconds for lane in lanes)}
    shown = -PAUSE
    for now, later in pairwise([*sorted(times), end + PAUSE]):
        if now - shown >= PAUSE or later > now + PAUSE or now == end:  # earlier changes are shown in the next frame
            shown = now
            yield now


def redrawn(lines: Sequence[str], height: int) -> str:
    """Return the terminal output that draws `lines` over the last frame, which has `height` lines."""
    up = f"\x1b[{height}A" if height else ""
    return up + "".join(f"\r\x1b[K{line}\n" for line in lines)


def whole_screen(lines: Sequence[str]) -> str:
    """Return the terminal output that fills the whole screen with the lines of a frame."""
    return "\x1b[H" + "\r\n".join(f"\x1b[K{line}" for line in lines) + "\x1b[J"


def recording(lanes: Sequence[Lane], size: terminal_size, end: Sequence[str], title: str, now: int) -> Iterator[str]:
    """Yield the lines of a file in asciinema's format, version 2: the replay at true speed, and the result.

    `now` is the present time in seconds since 1970. https://docs.asciinema.org/manual/asciicast/v2/
    """
    head = {"version": 2, "width": size.columns, "height": size.lines, "timestamp": now, "title": title}
    yield json.dumps(head) + "\n"
    height, seconds = 0, 0.0
    for seconds in moments(lanes):
        lines = frame(lanes, size, seconds)
        yield _output(seconds, redrawn(lines, height))
        height = len(lines)
    yield _output(seconds, "".join(f"{line}\n" for line in end))
    yield _output(seconds + LINGER, "")


def _output(seconds: float, text: str) -> str:
    return json.dumps([round(seconds, 6), "o", text.replace("\n", "\r\n")]) + "\n"
