"""A race: one prompt answered with and without drafts. The two replies take turns, and each has its own clock."""

import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from localspec.bench.turns import on_its_own_clock
from localspec.config import Settings
from localspec.events import Done, Event, Statistics, Text
from localspec.quantities import speedup
from localspec.text import one_line, safe

if TYPE_CHECKING:
    from localspec import Engine, Event, Limits, Sampling
    from localspec.choosing.choice import Choice
    from localspec.models.messages import Message

FEWEST = 16  # tokens after the first one; with fewer the time of a single step decides


@dataclass(frozen=True)
class Moment:
    """The text that one step added, and the seconds of this lane's own work until then."""

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
        seen = [moment for moment in self.moments if seconds is None or moment.seconds <= seconds]
        return "".join(moment.text for moment in seen), sum(moment.tokens for moment in seen)

    def decoding(self, seconds: float | None = None) -> float | None:
        """Return the seconds of decoding so far, or within the first `seconds` of this lane's work.

        The result is None while the prompt is read. Decoding begins with the first token and ends with the last.
        Tokens/s and speedup count only decoding, because both lanes read the same prompt.
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
    """Advance whichever lane's clock shows less time, until both lanes are done. Yield the lane after each event.

    So a change in the load of the machine affects both lanes, and each lane's clock counts only its own work.
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


def result(plain: Lane, speculative: Lane) -> RaceResult:
    """Return the result of a finished race. Speeds are not compared if there were no drafts, or too few tokens."""
    assert plain.statistics is not None and speculative.statistics is not None
    one, other = plain.statistics.token_ids, speculative.statistics.token_ids
    parted = None
    if one != other:
        pairs = zip(one, other, strict=False)
        parted = next((at for at, (a, b) in enumerate(pairs, start=1) if a != b), min(len(one), len(other)) + 1)
    speeds = plain.tokens_per_second, speculative.tokens_per_second
    if not all(speeds):
        return RaceResult(None, parted, "there was no second token")
    if not speculative.statistics.drafted:
        return RaceResult(None, parted, "no draft was checked")
    fewest = min(sum(moment.tokens for moment in lane.moments[1:]) for lane in (plain, speculative))
    if fewest < FEWEST:
        return RaceResult(None, parted, f"{fewest} tokens after the first are too few")
    return RaceResult(speeds[1] / speeds[0], parted)


LONGEST = 256  # tokens of a reply, if no number is given


def that_drafts(choice: "Choice") -> "Choice":
    """Return this choice. If it drafts nothing, return it with phrases: the race shows whether phrases pay."""
    from localspec.choosing.plans import AUTO_NODES

    return choice if choice.nodes else replace(choice, drafter="phrases", nodes=AUTO_NODES)


def racers(
    drafting: "Engine",
    messages: "Sequence[Message]",
    sampling: "Sampling",
    limits: "Limits",
    think: bool | None = None,
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Return a race's two lanes and the events of their replies, ready to start on one target, which is warmed up.

    `drafting` is a new engine whose choice is a result of `that_drafts`.
    """
    from localspec import Engine, Limits

    plain_choice = replace(drafting.choice, drafter="none", nodes=0, trained=(), draft=None)
    tokens = drafting.target.encode(messages, think)
    engines = [Engine(plain_choice, phrases="off", share_with=drafting), drafting]
    for _ in engines[0].session.generate(tokens, sampling, Limits(2)):  # the target's weights may still come from disk
        pass
    engines[0].session.rewind(0)
    lanes = [Lane("plain decoding"), Lane(f"with {one_line(drafting.choice.drafter)}")]
    sessions = [engine.session for engine in engines]
    return lanes, [on_its_own_clock(one, one.generate(tokens, sampling, limits)) for one in sessions]


def opponents(
    engine: "Engine", prompt: str, system: str | None, settings: Settings
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Return two lanes on the target of this engine. The engine stays unchanged: another engine drafts in the race."""
    from localspec import Engine, Limits

    limits = Limits(settings.max_tokens or LONGEST, settings.stop)
    asked: list[Message] = [{"role": "system", "content": system}] if system else []
    asked.append({"role": "user", "content": prompt})
    drafting = Engine(that_drafts(engine.choice), phrases="off", share_with=engine)
    return racers(drafting, asked, engine.sampling(settings), limits, engine.thinking(settings, system))


def sentences(lanes: Sequence[Lane], found: RaceResult) -> Iterator[str]:
    """Yield the sentences about the result of a race."""
    plain, fast = lanes
    speeds = f"{fast.tokens_per_second:.1f} and {plain.tokens_per_second:.1f} tokens/s after the first token"
    if found.speedup is None:
        yield (
            f"{fast.tokens_per_second:.1f} tokens/s {fast.name} and {plain.tokens_per_second:.1f} by plain decoding "
            f"after the first token; they cannot be compared: {found.why_not}."
        )
    else:
        ratio = speedup(found.speedup)
        yield f"{ratio} {fast.name} ({speeds})"
        if ratio == "as fast":
            yield "Drafts cost as much time here as they save."
        elif found.speedup < 1:
            yield "Drafts do not pay here: checking them took longer than they saved."
    if found.same:
        yield "✓ both texts are the same"
    else:
        yield (
            f"The texts differ from token {found.parted} on, because passes of several rows round differently here. "
            "Give `--exact` to make them the same, if this machine can."
        )
    assert fast.statistics is not None
    if fast.statistics.off_reason:
        yield f"Drafting was switched off: {one_line(fast.statistics.off_reason)}"
