"""Turns: compared rows take turns, so that disturbances affect all of them."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, TypeVar

from localspec.events import Done, Event, Statistics, Text

if TYPE_CHECKING:
    from localspec.decoding.session import Session

T = TypeVar("T")
TURN = 0.05  # seconds of work: a step or two of a large model, the whole reply of one that fits into caches


def in_turns(contenders: Sequence[T], turns: int) -> Iterator[tuple[int, T]]:
    """Yield every contender once per turn, with the number of the turn. Each turn begins with the next contender."""
    for turn in range(turns):
        first = turn % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            yield turn, contender


def on_its_own_clock(session: "Session", events: Generator[Event, None, None]) -> Generator[Event, None, None]:
    """Yield the events of a session's reply. The session's clock stands still while other replies have their turns."""
    with closing(events):
        for event in events:
            left = time.perf_counter()
            yield event
            session.rest(time.perf_counter() - left)


def side_by_side(replies: Mapping[str, Generator[Event, None, None]], turn: float = TURN) -> dict[str, Statistics]:
    """Run the replies together, and return the figures of each reply.

    The reply with the fewest tokens gets the next turn of `turn` seconds. So if a machine becomes slower for a while,
    it is slower for the same part of every text.
    """
    tokens, done = dict.fromkeys(replies, 0), dict[str, Statistics]()
    with ExitStack() as at_the_end:
        running = {name: at_the_end.enter_context(closing(reply)) for name, reply in replies.items()}
        while running:
            name, began = min(running, key=tokens.__getitem__), time.perf_counter()
            for event in running[name]:
                if isinstance(event, Text):
                    tokens[name] += len(event.tokens)
                if isinstance(event, Done):
                    done[name] = event.statistics
                    running.pop(name).close()
                    break
                if time.perf_counter() - began >= turn:
                    break
    return done


def remaining_words(seconds: float) -> str:
    """Return the remaining time in words: `12 s left`."""
    return f"{seconds:.0f} s left" if seconds <= 90 else f"{seconds / 60:.0f} min left"
