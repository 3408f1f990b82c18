"""Replies that take turns by their tokens, so that a change of the machine's speed affects the same part of each."""

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing

from localspec.events import Done, Event, Statistics, Text

TURN = 0.05  # seconds of work: a step or two of a large model, the whole reply of one that fits into caches


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
