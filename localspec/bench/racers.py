"""Who races: one model answering plainly, and the same with its drafter; and what is said when they are there."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from localspec.bench.race import Lane, Result
from localspec.bench.turns import on_its_own_clock
from localspec.config import Settings
from localspec.quantities import speedup
from localspec.text import one_line

if TYPE_CHECKING:
    from localspec import Engine, Event, Limits, Sampling
    from localspec.choosing.choice import Choice
    from localspec.models.messages import Message

LONGEST = 256  # tokens of a reply, where no number is given


def that_drafts(choice: "Choice") -> "Choice":
    """This choice, or one with phrases where it drafts nothing: whether that pays is for the race to show."""
    from localspec.choosing.plans import AUTO_NODES

    return choice if choice.nodes else replace(choice, drafter="phrases", nodes=AUTO_NODES)


def racers(
    drafting: "Engine",
    messages: "Sequence[Message]",
    sampling: "Sampling",
    limits: "Limits",
    think: bool | None = None,
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Two lanes and their replies, about to begin on one target, which is warmed up.

    `drafting` has seen nothing, and its choice is one `that_drafts`.
    """
    from localspec import Engine, Limits

    alone = replace(drafting.choice, drafter="none", nodes=0, trained=(), draft=None)
    tokens = drafting.target.encode(messages, think)
    engines = [Engine(alone, phrases="off", beside=drafting), drafting]
    for _ in engines[0].session.generate(tokens, sampling, Limits(2)):  # the target's weights come from disk
        pass
    engines[0].session.rewind(0)
    lanes = [Lane("plain decoding"), Lane(f"with {one_line(drafting.choice.drafter)}")]
    sessions = [engine.session for engine in engines]
    return lanes, [on_its_own_clock(one, one.generate(tokens, sampling, limits)) for one in sessions]


def opponents(
    engine: "Engine", prompt: str, system: str | None, settings: Settings
) -> "tuple[list[Lane], list[Generator[Event, None, None]]]":
    """Who races, on the target of this engine, which stays as it is: what drafts in the race is another one's."""
    from localspec import Engine, Limits

    limits = Limits(settings.max_tokens or LONGEST, settings.stop)
    asked: list[Message] = [{"role": "system", "content": system}] if system else []
    asked.append({"role": "user", "content": prompt})
    beside = Engine(that_drafts(engine.choice), phrases="off", beside=engine)
    return racers(beside, asked, engine.sampling(settings), limits, engine.thinking(settings, system))


def sentences(lanes: Sequence[Lane], found: Result) -> Iterator[str]:
    """Yield the sentences that tell how a race ended."""
    plain, fast = lanes
    speeds = f"{fast.tokens_per_second:.1f} and {plain.tokens_per_second:.1f} tokens/s after the first token"
    if found.speedup is None:
        yield (
            f"{fast.tokens_per_second:.1f} tokens/s {fast.name} and {plain.tokens_per_second:.1f} by plain decoding "
            f"after the first token, which is no comparison: {found.why_not}."
        )
    else:
        ratio = speedup(found.speedup)
        yield f"{ratio} {fast.name} ({speeds})"
        if ratio == "as fast":
            yield "Drafts cost as much time as they save here."
        elif found.speedup < 1:
            yield "Drafts do not pay here: checking them took longer than they saved."
    if found.same:
        yield "✓ both texts are the same"
    else:
        yield (
            f"The texts differ from token {found.parted} on: passes of several rows round differently here. `--exact` "
            "makes them the same where the machine can."
        )
    assert fast.statistics is not None
    if fast.statistics.off_reason:
        yield f"Drafting was switched off: {one_line(fast.statistics.off_reason)}"
