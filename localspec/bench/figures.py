"""Figures of the report: from pairs of replies, with a drafter and without drafts, and from timed forwards."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median, quantiles
from typing import Any

from localspec.choosing.cost import linear
from localspec.engine.backends import Target
from localspec.engine.model_profile import ROWS, picks_after
from localspec.events import Statistics, possible

CONTEXT = 256  # tokens before a timed forward, if the model can hold as many
ROUNDS = 3  # at each look


@dataclass(frozen=True)
class RowCosts:
    """The costs of forwards by their rows (new tokens), relative to a forward of one row. That one takes `unit`
    seconds.
    """

    rows: tuple[int, ...]
    costs: tuple[float, ...]
    unit: float

    def mean(self, forwards: Mapping[int, int]) -> float:
        """Return the mean seconds of a forward. `forwards` counts forwards by their number of rows."""
        units = sum(count * linear(self.rows, self.costs, rows) for rows, count in forwards.items())
        return self.unit * units / sum(forwards.values())


class RowTimer:
    """A timer of forwards. A round times each number of rows, so that background load affects all numbers equally."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._rounds: list[dict[int, float]] = []  # seconds by rows

    def time_forwards(self, largest: int) -> None:
        """Time forwards of 1, 2, 4, … rows, up to the first of these numbers that is at least `largest`."""
        target = self._target
        rows = [n for index, n in enumerate(ROWS) if index == 0 or ROWS[index - 1] < largest]
        context = max(0, min(CONTEXT, target.context - rows[-1]))
        cache = target.cache(context + rows[-1])
        for _ in range(ROUNDS):
            seconds = {}
            for n in rows:
                tokens = [(7 + 31 * position) % target.vocab_size for position in range(n)]
                cache.assume(context)
                began = time.perf_counter()
                picks_after(target, cache, tokens)
                seconds[n] = time.perf_counter() - began
            self._rounds.append(seconds)

    def costs(self) -> RowCosts | None:
        """Return the costs of forwards by their number of rows, relative to one row: medians of all rounds of timing;
        None before the first round."""
        if not self._rounds:
            return None
        rows = sorted({n for seconds in self._rounds for n in seconds})
        medians = [median(seconds[n] / seconds[1] for seconds in self._rounds if n in seconds) for n in rows]
        unit = median(seconds[1] for seconds in self._rounds)
        return RowCosts(tuple(rows), tuple(accumulate(medians, max)), unit)  # more rows are never cheaper


def most_rows(forwards: Sequence[Mapping[int, int]]) -> int:
    """Return the most rows (new tokens) of one forward. Each of `forwards` counts forwards by their number of rows."""
    return max((rows for counts in forwards for rows in counts), default=1)


def of_row(
    replies: Sequence[Statistics],
    plain: Sequence[Statistics],
    categories: Sequence[str],
    read_bytes: int,
    bandwidth: float,
    comparable: bool = True,
    costs: RowCosts | None = None,
) -> dict[str, Any]:
    """Return the figures of one row of the report. A figure is None if nothing was measured for it.

    `replies` and the `plain` replies answer all prompts once or several times, in the same order. `categories` are the
    kinds of text of the prompts. A decode step reads `read_bytes` from memory, whose `bandwidth` is in bytes per
    second. The speedup is the median of the ratios of each reply to its plain reply. Texts are compared only if they
    are `comparable`, because rules other than `exact` change them. From the `costs` of forwards follows
    `speedup_limit`, the largest possible speedup. A row with a higher speedup is not `reliable`.
    """
    prompts = len(categories)
    pairs = [
        (reply, baseline, categories[turn % prompts])
        for turn, (reply, baseline) in enumerate(zip(replies, plain, strict=True))
        if reply.tokens_per_second and baseline.tokens_per_second  # a reply of one token has no speed
    ]
    speed, speed_quartiles = spread([reply.tokens_per_second for reply, _, _ in pairs])
    speedup, speedup_quartiles = spread([_speedup(reply, baseline) for reply, baseline, _ in pairs])
    parts = [_costs(reply, baseline) for reply, baseline, _ in pairs]
    draft, verify, host = (_median([cost[part] for cost in parts]) for part in range(3))
    limits = _limits([(reply, baseline) for reply, baseline, _ in pairs], costs) if costs else [None] * len(pairs)
    limit, limit_quartiles = spread([limit for limit in limits if limit is not None])
    memory = _median([_memory_held(reply) / _memory_held(baseline) for reply, baseline, _ in pairs])
    identical = [reply.token_ids == plain[turn % prompts].token_ids for turn, reply in enumerate(replies)]
    return {
        "prompts": prompts,
        "tokens": sum(len(reply.token_ids) for reply in replies),
        "tokens_per_second": rounded(speed),
        "tokens_per_second_quartiles": speed_quartiles,
        "speedup": rounded(speedup),
        "speedup_quartiles": speedup_quartiles,
        "speedup_limit": rounded(limit),
        "speedup_limit_quartiles": limit_quartiles,
        "reliable": None if speedup is None or limit is None else possible(speedup, limit),
        "acceptance_length": _acceptance_length(replies),
        "acceptance_by_depth": _acceptance_by_depth(replies),
        "draft_cost": rounded(draft),
        "verify_cost": rounded(verify),
        "host_cost": rounded(host),
        "bandwidth_share": rounded(speed and speed * read_bytes / bandwidth),
        "peak_bytes": max(reply.memory.peak for reply in replies),
        "M": rounded(speedup and memory and speedup / memory),
        "identical": all(identical) if comparable else None,
        "identical_prompts": sum(all(identical[index::prompts]) for index in range(prompts)) if comparable else None,
        "off_reason": next((reply.off_reason for reply in reversed(replies) if reply.off_reason), None),
        "categories": {
            category: {
                "speedup": rounded(
                    _median([_speedup(reply, baseline) for reply, baseline, kind in pairs if kind == category])
                ),
                "speedup_limit": rounded(
                    _median(
                        [
                            limit
                            for limit, (*_, kind) in zip(limits, pairs, strict=True)
                            if limit is not None and kind == category
                        ]
                    )
                ),
                "acceptance_length": _acceptance_length(
                    [reply for turn, reply in enumerate(replies) if categories[turn % prompts] == category]
                ),
            }
            for category in dict.fromkeys(categories)
        },
    }


def _speedup(reply: Statistics, plain: Statistics) -> float:
    return reply.tokens_per_second / plain.tokens_per_second


def _costs(reply: Statistics, plain: Statistics) -> tuple[float, float, float]:
    """Return the time of drafting, verification and the rest per step of `reply`; 1 is the time of a `plain` step."""
    unit = plain.decode_seconds / plain.steps * reply.steps
    draft, verify = reply.draft_seconds / unit, reply.verify_seconds / unit
    return draft, verify, reply.decode_seconds / unit - draft - verify


def _limits(pairs: Sequence[tuple[Statistics, Statistics]], costs: RowCosts) -> list[float | None]:
    """Return the highest possible speedup of each reply: the speedup if drafting took no time.

    It is acceptance length × plain step ÷ step without drafting. Each pair is a reply and the plain reply to the same
    prompt. A limit is None if the pair's forwards were not counted by rows. Both steps include Python's work between
    forwards, because for small models the limit would be too low without it.
    """
    counted = [(reply, plain) for reply, plain in pairs if reply.rows and plain.rows]
    host = _median([(plain.decode_seconds - plain.verify_seconds) / plain.steps for _, plain in counted])
    return [
        reply.acceptance_length * (costs.mean(plain.rows) + (host or 0.0)) / (costs.mean(reply.rows) + (host or 0.0))
        if reply.rows and plain.rows
        else None
        for reply, plain in pairs
    ]


def _memory_held(reply: Statistics) -> int:
    return reply.memory.target + reply.memory.drafter + reply.memory.cache


def _acceptance_length(replies: Sequence[Statistics]) -> float | None:
    steps = sum(reply.steps for reply in replies)
    return rounded(sum(reply.acceptance_length * reply.steps for reply in replies) / steps) if steps else None


def _acceptance_by_depth(replies: Sequence[Statistics]) -> list[float]:
    """Return the acceptance rate at each depth of draft trees, averaged over all replies.

    Replies are weighted by their drafted nodes times their acceptance rates at all smaller depths.
    """
    depths: list[list[tuple[float, float]]] = []
    for reply in replies:
        reached = float(reply.drafted)
        for depth, chance in enumerate(reply.acceptance_by_depth):
            if depth == len(depths):
                depths.append([])
            depths[depth].append((chance, reached))
            reached *= chance
    return [round(fmean(*zip(*depth, strict=True)), 4) for depth in depths]


def spread(values: Sequence[float]) -> tuple[float | None, list[float] | None]:
    """Return the median and its lower and upper quartiles."""
    if not values:
        return None, None
    low, middle, high = quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return middle, [round(low, 4), round(high, 4)]


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def rounded(value: float | None) -> float | None:
    """Return the value rounded to four decimals; None stays None."""
    return None if value is None else round(value, 4)
