"""A race: one prompt answered plainly and speculatively, step by step in turns, each against its own clock."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from localspec.events import Done, Event, Statistics, Text
from localspec.text import safe

FEWEST = 16  # tokens after the first one; over fewer the clock of one step decides


@dataclass(frozen=True)
class Moment:
    """What one step added, and when: seconds of this lane's own work since it was asked."""

    seconds: float
    text: str
    tokens: int


@dataclass
class Lane:
    """One of two that race: its name, its reply so far, and the seconds that it has worked."""

    name: str
    moments: list[Moment] = field(default_factory=list)
    seconds: float = 0.0
    statistics: Statistics | None = None  # when it has come to its end
    _thinks: bool = False  # whether the last words were thought

    def add(self, event: Text) -> None:
        """What a step added; what was thought stands before the answer."""
        self._thinks = self._thinks or bool(event.reasoning)
        text = event.reasoning
        if event.text:
            text += ("\n\n" if self._thinks else "") + event.text
            self._thinks = False
        self.moments.append(Moment(self.seconds, safe(text), len(event.tokens)))

    def until(self, seconds: float | None = None) -> tuple[str, int]:
        """The text and the number of tokens that were there after so many seconds, or that are there now."""
        seen = [moment for moment in self.moments if seconds is None or moment.seconds <= seconds]
        return "".join(moment.text for moment in seen), sum(moment.tokens for moment in seen)

    def decoding(self, seconds: float | None = None) -> float | None:
        """Seconds from the first token on, as of so many since it was asked, or now; None while the prompt is read.

        They end with the last token. It is these that tokens/s and × are about: both lanes read the same prompt.
        """
        if not self.moments or (seconds is not None and seconds < self.moments[0].seconds):
            return None
        first, last = self.moments[0].seconds, self.moments[-1].seconds
        return (last if seconds is None else min(seconds, last)) - first

    @property
    def tokens_per_second(self) -> float:
        """Of decoding alone, from the first token on; 0 before there is a second one."""
        passed = self.decoding() or 0.0
        return sum(moment.tokens for moment in self.moments[1:]) / passed if passed > 0 else 0.0


@dataclass(frozen=True)
class Result:
    """The end of a race: how many times as fast the second lane was, from the first token on, and where texts part."""

    speedup: float | None
    parted: int | None  # the number of the first token that differs, from 1
    why_not: str = ""  # why there is no speedup

    @property
    def same(self) -> bool:
        return self.parted is None


def race(lanes: Sequence[Lane], streams: Sequence[Generator[Event, None, None]]) -> Iterator[Lane]:
    """Lets the lane work whose clock is behind, until both are done; yields it after each event.

    So both meet the same machine, and what is there at any time is what would be there if each ran alone.
    """
    running = dict(enumerate(streams))
    while running:
        at = min(running, key=lambda one: lanes[one].seconds)
        lane, began = lanes[at], time.perf_counter()
        event = next(running[at])
        lane.seconds += time.perf_counter() - began
        match event:
            case Text():
                lane.add(event)
            case Done(_, statistics):
                lane.statistics = statistics
                running.pop(at).close()
        yield lane


def result(plain: Lane, speculative: Lane) -> Result:
    """Return what came of a race that is over. Speeds of replies without drafts, or of few tokens, are not compared."""
    assert plain.statistics is not None and speculative.statistics is not None
    one, other = plain.statistics.token_ids, speculative.statistics.token_ids
    parted = None
    if one != other:
        pairs = zip(one, other, strict=False)
        parted = next((at for at, (a, b) in enumerate(pairs, start=1) if a != b), min(len(one), len(other)) + 1)
    speeds = plain.tokens_per_second, speculative.tokens_per_second
    if not all(speeds):
        return Result(None, parted, "no second token came")
    if not speculative.statistics.drafted:
        return Result(None, parted, "no draft was checked")
    fewest = min(sum(moment.tokens for moment in lane.moments[1:]) for lane in (plain, speculative))
    if fewest < FEWEST:
        return Result(None, parted, f"{fewest} tokens after the first are too few")
    return Result(speeds[1] / speeds[0], parted)
