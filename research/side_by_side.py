"""Lets replies take turns by their tokens, so that a change of the machine's speed affects the same part of each."""

import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from statistics import fmean
from typing import Any

import numpy as np
import psutil
from figures import DRAWS

from localspec.events import Done, Event, Statistics, Text

TURN = 0.05  # seconds of work: a step or two of a large model, the whole reply of one that fits into caches
DISTURBED = 0.1  # of a core, used by other programs: a reply does not count
LEAST = 8  # tokens of a reply that counts
PLAIN = "none"  # the drafter of plain decoding

Turns = Sequence[Mapping[str, Any]]  # one a prompt: {"replies": {drafter: figures}}


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


class OtherPrograms:
    """A meter that returns how many cores other programs used since the last call. Child processes do not count."""

    def __init__(self) -> None:
        self._last = self._read()

    def __call__(self) -> float:
        now, last = self._read(), self._last
        self._last = now
        passed = max(now[0] - last[0], 1e-9)
        return max(0.0, (now[1] - last[1]) - (now[2] - last[2])) / passed

    @staticmethod
    def _read() -> tuple[float, float, float]:
        """Return the time, the busy seconds of all cores, and the CPU seconds of this process and its children."""
        times, usage = psutil.cpu_times(), os.times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        return time.monotonic(), sum(times[:8]) - idle, sum(usage[:4])


# -- figures of saved replies ------------------------------------------------------------------------------------------


def total(turns: Turns, name: str, key: str) -> float:
    return float(sum(turn["replies"][name][key] for turn in turns))


def length(turns: Turns, name: str) -> float:
    """Return the tokens per step of a drafter's replies."""
    return total(turns, name, "tokens") / total(turns, name, "steps")


def speedup(turns: Turns, name: str) -> float:
    return total(turns, PLAIN, "seconds") / total(turns, name, "seconds")


def worth(turns: Turns, name: str) -> float:
    """Return M of a drafter: its speedup divided by its relative memory (S3D, eq. 13)."""
    memory = fmean(turn["replies"][name]["bytes"] / turn["replies"][PLAIN]["bytes"] for turn in turns)
    return speedup(turns, name) / memory


def interval(turns: Turns, name: str) -> tuple[float, float]:
    """Return the 95 % bounds of a drafter's speedup, from bootstrap samples of the prompts."""
    seconds = np.array([[turn["replies"][variant]["seconds"] for variant in (PLAIN, name)] for turn in turns])
    drawn = seconds[np.random.default_rng(0).integers(len(seconds), size=(DRAWS, len(seconds)))].sum(1)
    low, high = np.percentile(drawn[:, 0] / drawn[:, 1], (2.5, 97.5))
    return float(low), float(high)
